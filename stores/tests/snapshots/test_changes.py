"""Snapshots of what has changed: each is the store at its commit, whatever was written, and few bytes are sent."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stores.changed_keys import ChangedKeys, KeyRoom
from stores.engines.changes import ChangesCapture
from stores.engines.families import NEW, OLD
from stores.errors import StoreUnavailableError
from stores.interface import KeyValueStore
from stores.registry import open_store
from stores.snapshots.objects import FILES, StoreObjects
from stores.snapshots.taking import SnapshotTaker
from stores.strategies.store import Store
from stores.tests.snapshots.snapping_store import (
    PARTITION,
    key_of,
    keys,
    over_each_changing_backend,
    put,
    restored,
    snapping_store,
)
from stores.tests.snapshots.snapshotting import (
    WITHIN_S,
)
from stores.tests.tasks.setup import INDEXED


def work(store: KeyValueStore, randomly: random.Random) -> None:
    """Write at random: puts, deletes, ranges, writes that are rolled back, and values of each size."""
    for _ in range(randomly.randrange(1, 6)):
        start = randomly.randrange(300)
        kind = randomly.choice(["put", "put", "put", "delete", "range", "large", "rollback", "put again"])
        if kind == "put":
            put(store, range(start, start + randomly.randrange(1, 50)), randomly.randbytes(20))
        elif kind == "delete":
            for number in range(start, start + 10):
                store.delete(key_of(number))
        elif kind == "range":
            store.delete_range(*randomly.choice([(key_of(start), key_of(start + 30)), (None, key_of(5)), (None, None)]))
        elif kind == "large":
            store.put(key_of(start), randomly.randbytes(randomly.choice([0, 5_000, 300_000])))
        elif kind == "rollback":
            put(store, range(start, start + 20), b"never")
            store.rollback()
        else:
            store.delete_range(key_of(start), key_of(start + 20))
            put(store, range(start, start + 5), b"again")


@over_each_changing_backend
@pytest.mark.parametrize("seed", range(3))
def test_each_snapshot_is_the_store_at_its_commit(tmp_path: Path, backend: str, seed: int) -> None:
    randomly = random.Random(seed)
    options = {"staging_buffer_bytes": 2_000} if backend.endswith("indexed-batch") else {}
    expected: dict[int, dict[bytes, bytes]] = {}
    with snapping_store(tmp_path, backend, options=options) as snapping:
        put(snapping.store, range(1_000), b"x" * 1_150)
        for _ in range(30):
            snapping.commit()
            snapping.snap()
            expected[snapping.offset] = dict(snapping.store.all())
            for _ in range(randomly.randrange(3)):
                work(snapping.store, randomly)
                snapping.commit()
            work(snapping.store, randomly)
        indexes = [snapping.objects.index(name) for name in snapping.objects.indexes()]
        assert sum(bool(index.changes) for index in indexes) > 20
        for index in indexes:
            folder = tmp_path / f"restored-{index.offset}"
            assert restored(snapping, index, folder) == (expected[index.offset], index.offset)


@over_each_changing_backend
def test_files_of_changes_are_joined_and_few(tmp_path: Path, backend: str) -> None:
    """Each change is sent again about as often as the number of snapshots doubles."""
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(6_000), b"x" * 700)
        whole, counts, count = snapping.figures.bytes_total, [], 60
        for number in range(count):
            snapping.put_and_snap(range(100 * number, 100 * number + 100), b"y" * 100)
            counts.append(len(snapping.newest().changes))
        sent = (snapping.figures.bytes_total - whole) / count
        assert max(counts) <= 5
        assert 100 * 110 < sent < 100 * 130 * 5
        assert snapping.newest().files == snapping.objects.index(snapping.objects.indexes()[-1]).files


@over_each_changing_backend
def test_a_snapshot_is_whole_again_after_many_changes(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(5_000), b"x" * 100)
        wholes = 0
        for number in range(20):
            snapping.put_and_snap(range(300 * number, 300 * number + 1_000), b"%d" % number * 50)
            index = snapping.newest()
            wholes += not index.changes
            files, changes = (sum(file.num_bytes for file in each) for each in (index.files, index.changes))
            assert changes < 2 * files
        assert 1 <= wholes <= 6


@over_each_changing_backend
def test_a_snapshot_is_whole_after_a_failure_a_new_opening_and_too_many_keys(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with snapping_store(tmp_path, backend) as snapping:

        def next_is_whole(number: int) -> bool:
            snapping.put_and_snap(range(number, number + 10), b"%d" % number)
            return not snapping.newest().changes

        put(snapping.store, range(30_000), b"x" * 100)
        assert next_is_whole(0)
        assert not next_is_whole(1)
        # What the failed one was to send is in no file.
        put(snapping.store, range(500), b"lost")
        snapping.commit()
        with monkeypatch.context() as broken:
            broken.setattr(StoreObjects, "put_index", None)
            snapping.snap(failing=True)
        assert next_is_whole(2)
        assert not next_is_whole(3)
        for each in [*snapping.objects.sizes()]:
            snapping.objects.remove(FILES, each)
        put(snapping.store, range(500), b"lost again")
        snapping.commit()
        snapping.snap(failing=True)
        assert next_is_whole(4)
        assert not next_is_whole(5)
        # A snapshot that ends early, because the store is closed or swapped, leaves what it was to send in no file.
        snapping.taker.end()
        assert next_is_whole(6)
        monkeypatch.setattr(snapping.settings.key_room, "max_bytes", 2_000 * 100)
        put(snapping.store, range(4_000), b"too many")
        assert next_is_whole(7)
        assert not next_is_whole(8)
        expected = dict(snapping.store.all())
        assert restored(snapping, snapping.newest(), tmp_path / "restored")[0] == expected


def test_rocksdb_keeps_no_changes(tmp_path: Path) -> None:
    with snapping_store(tmp_path, INDEXED) as snapping:
        for number in range(3):
            put(snapping.store, range(1_000), b"%d" % number)
            snapping.commit()
            deadline = time.monotonic() + WITHIN_S
            while snapping.figures.offset != snapping.offset:
                assert time.monotonic() < deadline
                assert isinstance(snapping.store, Store)
                snapping.taker.after_commit(snapping.store, snapping.offset)
                snapping.taker.wait(WITHIN_S)
            assert not snapping.newest().changes


class Values:
    """The values of keys, as a reading has them."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = values
        self.sizes: list[int] = []

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = [self.values.get(key) for key in keys]
        self.sizes.append(sum(len(value or b"") for value in found))
        return found

    def end(self) -> None:
        pass


def test_changes_are_in_order_and_few_values_are_read_at_a_time(tmp_path: Path) -> None:
    """Values may be much larger than those before them."""
    values = {key_of(number): b"x" if number < 5_000 else b"x" * 40_000 for number in range(5_200)}
    reading, changed = Values(values), ChangedKeys(KeyRoom())
    shuffled = list(values)
    random.Random(0).shuffle(shuffled)
    changed.add(shuffled, [])
    ChangesCapture(reading, {}, [changed], tmp_path / "changes").complete()
    assert max(reading.sizes) <= 64 * 40_000
    assert sum(size > 1_200_000 for size in reading.sizes) <= 2
    content = (tmp_path / "changes" / "changes").read_bytes()
    places = [content.index(key) for key in values]
    assert places == sorted(places)


@over_each_changing_backend
def test_a_rollback_and_a_capture_that_fails_leave_the_next_snapshot_one_of_changes(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(1_000), b"x")
        put(snapping.store, range(10), b"never")
        snapping.store.rollback()
        snapping.taker.begin()
        put(snapping.store, range(10, 20), b"y")
        snapping.commit()
        with monkeypatch.context() as broken:
            broken.setattr("stores.engines.changes.ChangesCapture.__init__", None)
            snapping.taker.after_commit(snapping.store, snapping.offset)  # type: ignore[arg-type]
        assert snapping.figures.failed_total == 1
        snapping.put_and_snap(range(20, 30), b"z")
        [changes] = snapping.newest().changes
        assert changes.num_bytes < 20 * 30 + 100
        expected = dict(snapping.store.all())
        assert restored(snapping, snapping.newest(), tmp_path / "restored")[0] == expected


@over_each_changing_backend
def test_while_there_are_two_data_families_each_snapshot_is_whole(tmp_path: Path, backend: str) -> None:
    old, new = range(1_000), range(1_000, 2_000)
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        snapping.put_and_snap(old, b"old")
        snapping.store.timestamps.split({})
        for _ in range(2):
            snapping.store.put_all([(NEW + key, b"new") for key in keys(new)])
            snapping.commit()
            assert engine.changed is None
            snapping.snap()
            assert not snapping.newest().changes
        expected = dict(snapping.store.all())
        assert restored(snapping, snapping.newest(), tmp_path / "split")[0] == expected
        snapping.store.put_all([(OLD + key, None) for key in keys(old)])
        snapping.commit()
    with snapping_store(tmp_path, backend) as snapping:
        assert snapping.store.timestamps.split_has_ended
        snapping.offset = snapping.store.committed_offset(PARTITION) or 0
        for number in range(3):
            put(snapping.store, range(number, number + 5), b"last")
            snapping.store.delete(key_of(1_000 + number))
            snapping.commit()
            snapping.snap()
            assert bool(snapping.newest().changes) == (number > 0)
        expected = dict(snapping.store.all())
        assert len(expected) == 1_000 - 3 + 7
        assert restored(snapping, snapping.newest(), tmp_path / "ended")[0] == expected


@over_each_changing_backend
def test_closing_the_store_ends_the_reading_of_changes(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        snapping.put_and_snap(range(1_000), b"x")
        put(snapping.store, range(10), b"y")
        snapping.commit()
        changed, other = engine.changed, ChangedKeys(KeyRoom())
        other.add(list(changed.keys), [])
        captures = [
            engine.capture_changes(tmp_path / str(number), runs)
            for number, runs in enumerate([[other], [changed], [changed, other]])
        ]
        expected = dict(snapping.store.all())
    for capture in captures:
        # Keys of the others are forgotten, too.
        with pytest.raises(StoreUnavailableError, match=r"was closed|were forgotten"):
            capture.complete()
    with open_store(backend, tmp_path / "store") as store:
        assert dict(store.all()) == expected


def test_a_map_that_grows_ends_the_reading_of_changes(tmp_path: Path) -> None:
    with snapping_store(tmp_path, "lmdb-indexed-batch", options={"map_size_bytes": 1 << 20}) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        snapping.put_and_snap(range(1_000), b"x")
        put(snapping.store, range(10), b"y")
        snapping.commit()
        capture = engine.capture_changes(tmp_path / "captured", [engine.changed])
        put(snapping.store, range(3_000), b"z" * 1_000)
        snapping.commit()
        with pytest.raises(StoreUnavailableError, match="has grown"):
            capture.complete()
        assert len(dict(snapping.store.all())) == 3_000


@over_each_changing_backend
def test_a_snapshot_is_whole_if_another_taker_has_taken_one_meanwhile_or_the_kind_is_another(
    tmp_path: Path, backend: str
) -> None:
    with snapping_store(tmp_path, backend) as snapping:

        def next_is_whole(number: int) -> bool:
            snapping.put_and_snap(range(number, number + 10), b"%d" % number)
            expected = dict(snapping.store.all()), snapping.offset
            assert restored(snapping, snapping.newest(), tmp_path / f"restored-{number}") == expected
            return not snapping.newest().changes

        put(snapping.store, range(1_000), b"x")
        assert next_is_whole(0)
        assert not next_is_whole(1)
        put(snapping.store, range(500, 600), b"y")
        own = snapping.taker
        snapping.taker = SnapshotTaker(
            snapping.settings, snapping.objects, tmp_path / "store", lambda _: snapping.kind, snapping.figures
        )
        assert next_is_whole(2)
        snapping.taker = own
        assert next_is_whole(3)
        assert not next_is_whole(4)
        snapping.kind = replace(snapping.kind, changelog_id="other")
        assert next_is_whole(5)
        assert not next_is_whole(6)
