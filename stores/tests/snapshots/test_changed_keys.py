"""The keys that writes have changed take a bounded part of memory, and none without a snapshot to continue."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores.changed_keys import ChangedKeys, KeyRoom
from stores.changelog import Changelog
from stores.snapshots.objects import StoreObjects
from stores.tasks import StoreConfig
from stores.tests.snapshots.snapping_store import (
    key_of,
    keys,
    over_each_changing_backend,
    put,
    restored,
    snapping_store,
)
from stores.tests.snapshots.snapshotting import (
    WITHIN_S,
    settings,
    snapping,
)


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
        snapping.put_and_snap(range(5_000), b"x")
        for number in range(0, 1_000, 10):
            snapping.store.delete_range(key_of(number), key_of(number + 1))
        snapping.commit()
        snapping.snap()
        snapping.put_and_snap(range(1), b"y")
        assert len(snapping.newest().changes) == 2
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
def test_a_store_with_many_changed_keys_leaves_room_to_another(tmp_path: Path, backend: str) -> None:
    """It is not whole before its next changes would be joined to those many."""
    for name in ("large", "small"):
        (tmp_path / name).mkdir()
    with snapping_store(tmp_path / "large", backend) as large, snapping_store(tmp_path / "small", backend) as small:
        room = large.settings.key_room
        small.settings.__dict__["key_room"] = room
        room.max_bytes = 1_000_000
        for each in (large, small):
            each.put_and_snap(range(10_000), b"x" * 440)
        large.put_and_snap(range(9_000), b"y")
        for number in range(3):
            small.put_and_snap(range(1_000 * number, 1_000 * number + 1_500), b"z")
            large.put_and_snap(range(10 * number, 10 * number + 10), b"w")
            assert [len(each.newest().changes) for each in (large, small)] == [2, 1]
        assert room.num_bytes <= room.max_bytes
        for each in (large, small):
            expected = dict(each.store.all()), each.offset
            assert restored(each, each.newest(), tmp_path / f"restored {each.offset}") == expected


def test_the_limit_on_memory_limits_changed_keys(tmp_path: Path, log: Changelog) -> None:
    """They have a sixteenth of what the process leaves, and at most 32 MiB."""
    for limit, expected in ((None, 32), (96, 2), (576, 32), (2_048, 32)):
        snapshots = settings(tmp_path)
        stores = {"s": StoreConfig("lmdb", memory_max_bytes=None if limit is None else limit << 20)}
        with closing(snapping(tmp_path, log, "lmdb", snapshots, stores=stores)):
            assert snapshots.key_room.max_bytes == expected << 20
