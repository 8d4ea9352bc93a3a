"""Snapshots of what has changed: each is the store at its commit, whatever was written, and few bytes are sent."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stores.changed_keys import ChangedKeys, KeyRoom
from stores.changelog import Changelog
from stores.command import main
from stores.engines.changes import ChangesCapture
from stores.engines.families import NEW, OLD
from stores.errors import StoreUnavailableError
from stores.interface import KeyValueStore, TopicPartition
from stores.registry import backend_named, open_store
from stores.snapshots import Snapshots
from stores.snapshots.index import SnapshotIndex
from stores.snapshots.objects import FILES, StoreObjects
from stores.snapshots.restoring import kind_of, make_store
from stores.snapshots.taking import SnapshotFigures, SnapshotTaker
from stores.strategies.store import Store
from stores.tasks import StoreConfig
from stores.tests.snapshots.snapshotting import (
    SNAPPED,
    WITHIN_S,
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
    store_path,
)
from stores.tests.tasks.setup import INDEXED, logged

PARTITION = TopicPartition("changelog", 0)
CHANGING = [name for name in SNAPPED if backend_named(name).load_engine().captures_changes]
over_each_changing_backend = pytest.mark.parametrize("backend", CHANGING)


class Snapping:
    """A store of which a snapshot is taken when ``snap`` says so."""

    def __init__(self, folder: Path, backend: str, options: dict[str, object], **given: Any) -> None:
        self.backend = backend
        self.settings = settings(folder, keep=1_000, cpu_share=None, **given)
        self.objects, self.figures = StoreObjects(self.settings.folder, PARTITION), SnapshotFigures()
        self.store = open_store(backend, folder / "store", options=options)
        self.offset = -1
        self.kind = kind_of("id", backend_named(backend), {})
        self.taker = SnapshotTaker(self.settings, self.objects, folder / "store", lambda _: self.kind, self.figures)
        self.taker.begin()

    def commit(self) -> None:
        self.offset += 1
        self.store.commit({PARTITION: self.offset})

    def snap(self, *, failing: bool = False) -> None:
        """Take a snapshot of the last commit, or attempt it."""
        assert isinstance(self.store, Store)
        done = self.figures.total, self.figures.failed_total
        self.taker.after_commit(self.store, self.offset)
        assert self.taker.wait(WITHIN_S)
        assert (self.figures.total, self.figures.failed_total) == (done[0] + (not failing), done[1] + failing)

    def newest(self) -> SnapshotIndex:
        return self.objects.index(self.objects.indexes()[0])

    def close(self) -> None:
        self.taker.end()
        self.store.close()


@contextmanager
def snapping_store(folder: Path, backend: str, **given: Any) -> Iterator[Snapping]:
    with closing(Snapping(folder, backend, given.pop("options", {}), **given)) as opened:
        yield opened


def key_of(number: int) -> bytes:
    return b"key %06d" % number


def keys(numbers: range) -> list[bytes]:
    return [key_of(number) for number in numbers]


def put(store: KeyValueStore, numbers: range, value: bytes) -> None:
    store.put_all([(key_of(number), value) for number in numbers])


def restored(snapping: Snapping, index: SnapshotIndex, folder: Path) -> tuple[dict[bytes, bytes], int | None]:
    """Return the records of a store that is made of a snapshot, and its offset."""
    make_store(snapping.objects, index, folder, backend_named(snapping.backend), 2)
    with open_store(snapping.backend, folder) as store:
        store.verify()
        return dict(store.all()), store.committed_offset(PARTITION)


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
        put(snapping.store, range(20_000), b"x" * 50)
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
        put(snapping.store, range(40_000), b"x" * 100)
        snapping.commit()
        snapping.snap()
        whole, counts, count = snapping.figures.bytes_total, [], 60
        for number in range(count):
            put(snapping.store, range(100 * number, 100 * number + 100), b"y" * 100)
            snapping.commit()
            snapping.snap()
            counts.append(len(snapping.newest().changes))
        sent = (snapping.figures.bytes_total - whole) / count
        assert max(counts) <= 5
        assert 100 * 110 < sent < 100 * 130 * 5
        assert snapping.newest().files == snapping.objects.index(snapping.objects.indexes()[-1]).files


@over_each_changing_backend
def test_a_snapshot_is_whole_again_after_many_changes(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(5_000), b"x" * 100)
        snapping.commit()
        snapping.snap()
        wholes = 0
        for number in range(20):
            put(snapping.store, range(300 * number, 300 * number + 1_000), b"%d" % number * 50)
            snapping.commit()
            snapping.snap()
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
            put(snapping.store, range(number, number + 10), b"%d" % number)
            snapping.commit()
            snapping.snap()
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


@over_each_changing_backend
def test_changes_that_no_snapshot_needs_are_not_kept(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        put(snapping.store, range(100), b"x")
        snapping.commit()
        assert not engine.changed
        snapping.snap()
        put(snapping.store, range(50), b"x")
        snapping.commit()
        assert len(engine.changed) == 50
        snapping.snap()
        put(snapping.store, range(2_000), b"y")
        snapping.commit()
        room = snapping.settings.key_room
        assert room.num_bytes > 2_000 * len(key_of(0))
    del engine, snapping
    gc.collect()
    assert room.num_bytes == 0


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


def test_changed_keys_are_bounded_for_all_stores_together() -> None:
    room = KeyRoom()
    room.max_bytes = 1_000_000
    first, second = ChangedKeys(room), ChangedKeys(room)
    first.add(keys(range(4_000)), [])
    second.add(keys(range(4_000)), [])
    assert first.complete
    assert second.complete
    second.add(keys(range(4_000, 8_000)), [])
    first.add(keys(range(4_000, 8_000)), [])
    # The first that finds no room gives its own up, and the other one goes on.
    assert [first.complete, second.complete] == [True, False]
    assert (len(first), len(second)) == (8_000, 0)
    third = ChangedKeys(room)
    third.add([], [(key_of(2 * number), key_of(2 * number)) for number in range(8_000)])
    assert not third.complete
    del first
    again = ChangedKeys(room)
    again.add(keys(range(8_000)), [])
    assert again.complete


@pytest.mark.parametrize("backend", ["lmdb-native", "sqlite-indexed-batch"])
@pytest.mark.parametrize("damage", ["zeros", "count", "no key"])
def test_a_damaged_file_of_changes_makes_no_store(
    tmp_path: Path, backend: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been sent with the damage."""
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(5_000), b"x" * 100)
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(10), b"y")
        snapping.commit()
        snapping.snap()
        index = snapping.newest()
        [[part]] = [file.parts for file in index.changes]
        path = tmp_path / "snapshots" / snapping.objects.path(FILES, part)
        content = path.read_bytes()
        at = content.rindex(b"K") + 1
        path.write_bytes(
            {
                "zeros": bytes(len(content)),
                "count": content[:at] + b"\xff" * 4 + content[at + 4 :],
                "no key": content[: at + 4] + bytes(4) + content[at + 8 :],
            }[damage]
        )

        def unverified(self: StoreObjects, part: object, write: Any) -> None:
            write(0, memoryview(self.folder.read(self.path(FILES, part))))

        monkeypatch.setattr(StoreObjects, "fetch", unverified)
        with pytest.raises(StoreUnavailableError, match="remove the snapshot"):
            restored(snapping, index, tmp_path / "restored")
        assert not (tmp_path / "restored" / "format.json").exists()


@over_each_changing_backend
def test_a_task_of_another_backend_begins_from_files_and_changes(tmp_path: Path, log: Changelog, backend: str) -> None:
    snapshots: Snapshots = settings(tmp_path)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(3_000)))
        snap(task, log)
        send(log, [*pairs_of(range(50), b"later"), *((key, b"") for key, _ in pairs_of(range(100, 120)))])
        offset = snap(task, log)
    objects = objects_in(snapshots)
    assert objects.index(objects.indexes()[0]).changes
    for other in (backend, INDEXED, CHANGING[0]):
        lose(tmp_path)
        contents, report = reopened(tmp_path, log, other, snapshots)
        assert (contents, report.snapshot_offset) == (logged(log, "s"), offset)


@over_each_changing_backend
def test_damaged_changes_lead_to_the_snapshot_before(tmp_path: Path, log: Changelog, backend: str) -> None:
    snapshots = settings(tmp_path)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(3_000)))
        offsets = [snap(task, log)]
        for number in range(2):
            send(log, pairs_of(range(50), b"later %d" % number))
            offsets.append(snap(task, log))
    objects = objects_in(snapshots)
    for changed, offset in zip(offsets[:0:-1], offsets[-2::-1], strict=True):
        [index] = [index for name in objects.indexes() if (index := objects.index(name)).offset == changed]
        path = tmp_path / "snapshots" / objects.path(FILES, index.changes[-1].parts[-1])
        path.write_bytes(path.read_bytes()[::-1])
        lose(tmp_path)
        contents, report = reopened(tmp_path, log, backend, snapshots)
        assert (contents, report.snapshot_offset) == (logged(log, "s"), offset)
        assert [file.name for file in store_path(tmp_path, backend).parent.iterdir()] == ["s"]


def test_keys_and_ranges_are_counted_by_their_bytes() -> None:
    room = KeyRoom()
    room.max_bytes = 1_000_000
    long = [b"%d" % number * 100_000 for number in range(10)]
    few, many = ChangedKeys(room), ChangedKeys(room)
    few.add(long[:4], [])
    assert few.complete
    many.add([], [(key, key) for key in long[4:]])
    assert not many.complete
    for _ in range(100):
        few.add(long[:4], [(long[4], None)])
    assert few.complete
    assert 500_000 < few.num_bytes < 510_000
    del many
    joined = ChangedKeys(room)
    joined.join(few)
    assert room.num_bytes == 2 * few.num_bytes
    few.release()
    for later in (joined, ChangedKeys(room)):
        later.join(few)
        assert not later.complete


@over_each_changing_backend
def test_a_file_with_many_ranges_is_not_joined_to_one_with_a_key(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(5_000), b"x")
        snapping.commit()
        snapping.snap()
        for number in range(0, 1_000, 10):
            snapping.store.delete_range(key_of(number), key_of(number + 1))
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(1), b"y")
        snapping.commit()
        snapping.snap()
        assert len(snapping.newest().changes) == 2
        expected = dict(snapping.store.all())
        assert restored(snapping, snapping.newest(), tmp_path / "restored")[0] == expected


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
        put(snapping.store, range(1_000), b"x")
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(10), b"never")
        snapping.store.rollback()
        snapping.taker.begin()
        put(snapping.store, range(10, 20), b"y")
        snapping.commit()
        with monkeypatch.context() as broken:
            broken.setattr("stores.engines.changes.ChangesCapture.__init__", None)
            snapping.taker.after_commit(snapping.store, snapping.offset)  # type: ignore[arg-type]
        assert snapping.figures.failed_total == 1
        put(snapping.store, range(20, 30), b"z")
        snapping.commit()
        snapping.snap()
        [changes] = snapping.newest().changes
        assert changes.num_bytes < 20 * 30 + 100
        expected = dict(snapping.store.all())
        assert restored(snapping, snapping.newest(), tmp_path / "restored")[0] == expected


@over_each_changing_backend
def test_keys_that_no_snapshot_continues_take_no_room(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]

        def commit_many() -> int:
            put(snapping.store, range(2_000), b"%d" % snapping.offset)
            snapping.commit()
            return snapping.settings.key_room.num_bytes

        assert commit_many() == 0
        snapping.snap()
        assert commit_many() > 0
        # Another owner has put the index of this commit.
        with monkeypatch.context() as refused:
            refused.setattr(StoreObjects, "put_index", lambda self, index: False)
            snapping.taker.after_commit(snapping.store, snapping.offset)  # type: ignore[arg-type]
            assert snapping.taker.wait(WITHIN_S)
        assert (commit_many(), engine.changed.complete) == (0, False)
        snapping.snap()
        assert not snapping.newest().changes
        assert commit_many() > 0
        # The store is about to be closed, or goes on.
        snapping.taker.end()
        assert (commit_many(), engine.changed.complete) == (0, False)


@over_each_changing_backend
def test_while_there_are_two_data_families_each_snapshot_is_whole(tmp_path: Path, backend: str) -> None:
    old, new = range(1_000), range(1_000, 2_000)
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        put(snapping.store, old, b"old")
        snapping.commit()
        snapping.snap()
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
def test_marks_that_were_removed_stay_so(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(1_000), b"x")
        for name in ("kept", "removed"):
            snapping.store.set_mark(name, b"value")
        snapping.commit()
        snapping.snap()
        snapping.store.set_mark("removed", None)
        snapping.commit()
        snapping.snap()
        assert snapping.newest().changes
        restored(snapping, snapping.newest(), tmp_path / "restored")
    with open_store(backend, tmp_path / "restored") as store:
        assert [store.mark(name) for name in ("kept", "removed")] == [b"value", None]


class EndedError(Exception):
    """A restore is to end."""


@over_each_changing_backend
def test_a_restore_tells_of_its_progress_and_can_be_ended_while_changes_are_applied(
    tmp_path: Path, backend: str
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(5_000), b"x")
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(1_000), b"y")
        snapping.commit()
        snapping.snap()
        index, expected = snapping.newest(), dict(snapping.store.all())
    told: list[int] = []

    def tell(num_bytes: int) -> None:
        told.append(num_bytes)
        if told.count(index.num_bytes) == 5:
            raise EndedError

    with pytest.raises(EndedError):
        make_store(snapping.objects, index, tmp_path / "restored", backend_named(backend), 2, tell)
    assert told == sorted(told)
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["lock"]
    assert restored(snapping, index, tmp_path / "restored") == (expected, index.offset)


@over_each_changing_backend
def test_closing_the_store_ends_the_reading_of_changes(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        engine: Any = snapping.store.staging.engine  # type: ignore[attr-defined]
        put(snapping.store, range(1_000), b"x")
        snapping.commit()
        snapping.snap()
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
        put(snapping.store, range(1_000), b"x")
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(10), b"y")
        snapping.commit()
        capture = engine.capture_changes(tmp_path / "captured", [engine.changed])
        put(snapping.store, range(3_000), b"z" * 1_000)
        snapping.commit()
        with pytest.raises(StoreUnavailableError, match="has grown"):
            capture.complete()
        assert len(dict(snapping.store.all())) == 3_000


def test_the_commands_count_files_of_changes_and_restore_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with snapping_store(tmp_path, "lmdb-indexed-batch") as snapping:
        put(snapping.store, range(1_000), b"x")
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(10), b"y")
        snapping.commit()
        snapping.snap()
        expected = dict(snapping.store.all())
    location = str(tmp_path / "snapshots")
    assert main(["snapshots", "list", location, "--json"]) == 0
    assert [json.loads(line)["files"] for line in capsys.readouterr().out.splitlines()] == [2, 1]
    assert main(["snapshots", "verify", location]) == 0
    assert main(["snapshots", "restore", location, "changelog-0", str(tmp_path / "looked at")]) == 0
    with open_store("lmdb-indexed-batch", tmp_path / "looked at") as store:
        assert dict(store.all()) == expected


@over_each_changing_backend
def test_a_snapshot_is_whole_if_another_taker_has_taken_one_meanwhile_or_the_kind_is_another(
    tmp_path: Path, backend: str
) -> None:
    with snapping_store(tmp_path, backend) as snapping:

        def next_is_whole(number: int) -> bool:
            put(snapping.store, range(number, number + 10), b"%d" % number)
            snapping.commit()
            snapping.snap()
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


@over_each_changing_backend
def test_a_store_with_many_changed_keys_leaves_room_to_another(tmp_path: Path, backend: str) -> None:
    """It is not whole before its next changes would be joined to those many."""
    for name in ("large", "small"):
        (tmp_path / name).mkdir()
    with snapping_store(tmp_path / "large", backend) as large, snapping_store(tmp_path / "small", backend) as small:
        room = large.settings.key_room
        small.settings.__dict__["key_room"] = room
        room.max_bytes = 1_000_000
        for each in (large, small):
            put(each.store, range(40_000), b"x" * 100)
            each.commit()
            each.snap()
        put(large.store, range(9_000), b"y")
        large.commit()
        large.snap()
        for number in range(3):
            put(small.store, range(1_000 * number, 1_000 * number + 1_500), b"z")
            small.commit()
            small.snap()
            put(large.store, range(10 * number, 10 * number + 10), b"w")
            large.commit()
            large.snap()
            assert [len(each.newest().changes) for each in (large, small)] == [2, 1]
        assert room.num_bytes <= room.max_bytes
        for each in (large, small):
            expected = dict(each.store.all()), each.offset
            assert restored(each, each.newest(), tmp_path / f"restored {each.offset}") == expected


@over_each_changing_backend
def test_changes_are_in_large_parts_and_need_room_twice(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(1_000), b"x" * 10_000)
        snapping.commit()
        snapping.snap()
        put(snapping.store, range(300), b"y" * 10_000)
        snapping.commit()
        snapping.snap()
        index, expected = snapping.newest(), dict(snapping.store.all())
    [file] = index.changes
    assert [len(file.parts), file.num_bytes > 3_000_000] == [1, True]
    needed = index.num_bytes + file.num_bytes
    free = needed - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(StoreUnavailableError, match="make room"):
        restored(snapping, index, tmp_path / "restored")
    free = needed
    assert restored(snapping, index, tmp_path / "restored") == (expected, index.offset)


def test_the_limit_on_memory_limits_changed_keys(tmp_path: Path, log: Changelog) -> None:
    """They have a sixteenth of what the process leaves, and at most 32 MiB."""
    for limit, expected in ((None, 32), (96, 2), (576, 32), (2_048, 32)):
        snapshots = settings(tmp_path)
        stores = {"s": StoreConfig("lmdb", memory_max_bytes=None if limit is None else limit << 20)}
        with closing(snapping(tmp_path, log, "lmdb", snapshots, stores=stores)):
            assert snapshots.key_room.max_bytes == expected << 20
