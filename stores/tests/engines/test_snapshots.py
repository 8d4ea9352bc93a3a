"""Scans of one moment share a read transaction, and none shows less than was committed when it was made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stores import open_store
from stores.engines.engine import Scan, Writes
from stores.engines.snapshots import SharedSnapshots
from stores.ordered import Bounds, ScanRange
from stores.strategies.store import Store


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "sqlite-indexed-batch"])
def test_a_scan_that_is_made_during_a_commit_does_not_hide_it_from_those_made_later(path: Path, backend: str) -> None:
    """It is still open then: who shared its read transaction would miss what was committed before."""
    with open_store(backend, path) as store:
        store.put(b"key", b"old")
        store.commit()
        assert isinstance(store, Store)
        engine = store.staging.engine
        during: list[Scan] = []

        def ranges() -> Iterator[Bounds]:
            during.append(engine.scan())
            yield b"other", b"other"

        engine.write([Writes(ranges(), {b"key": b"new"})], {})
        later = engine.scan()
        assert later.fetch() == [(b"key", b"new")]
        [scan] = during
        assert scan.fetch() == [(b"key", b"old")]
        scan.close()
        later.close()


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "sqlite-indexed-batch"])
def test_scans_that_are_made_together_during_a_commit_share_one_read_transaction(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        assert isinstance(store, Store)
        engine: Any = store.staging.engine
        counts: list[int] = []

        def ranges() -> Iterator[Bounds]:
            for scan in engine.scans([ScanRange(None, None), ScanRange(b"a", b"b")]):
                counts.append(engine._snapshots.count)
                scan.close()
            counts.append(engine._snapshots.count)
            yield b"other", b"other"

        engine.write([Writes(ranges(), {b"key": b"new"})], {})
        assert counts == [1, 1, 0]


def test_a_snapshot_that_was_begun_before_a_commit_is_not_shared_after_it() -> None:
    """It is being taken while the commit ends."""
    commits = [0]
    begun, go_on = Event(), Event()

    def begin() -> int:
        seen = commits[0]
        if not begun.is_set():
            begun.set()
            assert go_on.wait(600)
        return seen

    def commit() -> None:
        commits[0] += 1
        snapshots.end_writing()

    snapshots: SharedSnapshots[int] = SharedSnapshots(begin, lambda reading: None)
    snapshots.begin_writing()
    with ThreadPoolExecutor(2) as pool:
        during = pool.submit(snapshots.acquire)
        assert begun.wait(600)
        future = pool.submit(commit)
        wait([future], 0.1)
        go_on.set()
        future.result(600)
        assert during.result(600).reading == 0
    assert snapshots.acquire().reading == 1


def test_a_snapshot_ends_with_its_last_user_and_is_shared_only_between_two_commits() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def begin() -> int:
        begun.append(len(begun))
        return begun[-1]

    snapshots = SharedSnapshots(begin, ended.append)
    before = [snapshots.acquire(), snapshots.acquire()]
    assert before[0] is before[1]
    snapshots.begin_writing()
    during = [snapshots.acquire(), snapshots.acquire()]
    snapshots.end_writing()
    after = [snapshots.acquire(), snapshots.acquire()]
    assert after[0] is after[1]
    assert [taken.reading for taken in (*before, *during, *after)] == [0, 0, 1, 2, 3, 3]
    assert snapshots.count == 4
    for taken in (*before, *during):
        snapshots.release(taken)
    assert (ended, snapshots.count) == ([0, 1, 2], 1)
    for taken in after:
        snapshots.release(taken)
    assert snapshots.acquire().reading == 4
    assert (ended, snapshots.count) == ([0, 1, 2, 3], 1)
