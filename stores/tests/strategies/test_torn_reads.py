"""Readers on other threads, let in at the worst moment: in the middle of a step of the writer's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueIterator, TopicPartition, open_store
from stores.engines.snapshots import SharedSnapshots
from stores.ordered import KeyRanges, SortedMap
from stores.registry import backends
from stores.strategies.store import Store

READER_GETS_S = 0.1
"""The seconds to wait for a reader in the middle of a step; one that is blocked answers afterwards."""


@pytest.mark.parametrize("backend", ["memory-indexed-batch", "rocksdb-dual-store"])
@pytest.mark.parametrize("step", [(KeyRanges, "add"), (SortedMap, "discard_range")], ids=lambda step: step[1])
def test_a_reader_sees_a_range_delete_whole_or_not_at_all(
    path: Path, backend: str, step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never what was committed below the staged write that the range delete removes."""
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        store.put(b"key", b"committed")
        store.commit()
        store.put(b"key", b"staged")
        reader = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        futures = let_in(monkeypatch, step, lambda: pool.submit(reader.get, b"key"))
        store.delete_range(b"a", b"z")
        assert futures
        assert {future.result(timeout=600) for future in futures} <= {b"staged", None}


def test_a_reader_sees_a_commit_of_the_memory_engine_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("memory-indexed-batch", path) as store, ThreadPoolExecutor(1) as pool:
        store.put(b"key", b"old")
        store.commit()
        store.delete_range(b"a", b"z")
        store.put(b"key", b"new")
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        futures = let_in(monkeypatch, (SortedMap, "discard_range"), lambda: pool.submit(reader.get, b"key"))
        store.commit()
        assert futures
        assert {future.result(timeout=600) for future in futures} <= {b"old", b"new"}


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native"])
def test_a_reader_of_committed_data_sees_no_mark_of_a_transaction_that_is_being_committed(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        store.put(b"key", b"old")
        store.set_mark("mark", b"old")
        store.commit()
        store.put(b"key", b"new")
        store.set_mark("mark", b"new")
        reader = store.read_only(IsolationLevel.READ_COMMITTED)
        begin_writing, seen = SharedSnapshots.begin_writing, []

        def read_first(snapshots: SharedSnapshots[Any]) -> None:
            # All is written, and nothing is committed.
            seen.append(pool.submit(lambda: (reader.mark("mark"), reader.get(b"key"))).result(timeout=600))
            begin_writing(snapshots)

        monkeypatch.setattr(SharedSnapshots, "begin_writing", read_first)
        store.commit()
        assert seen == [(b"old", b"old")]
        assert (reader.mark("mark"), reader.get(b"key")) == (b"new", b"new")


@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("-indexed-batch")])
def test_a_reader_of_uncommitted_data_waits_for_no_commit_of_an_indexed_batch_and_sees_all_of_it(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the engine has the commit and after it, while it is still staged as well."""
    shown: list[list[object]] = []
    after = [(b"b", b"staged"), (b"d", b"staged"), (b"z", b"staged")]
    with open_store(backend, path) as store, ThreadPoolExecutor(1) as pool:
        store.put_all([(b"a", b"kept"), (b"b", b"kept"), (b"c", b"kept"), (b"d", b"kept")])
        store.commit()
        reader = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        store.put(b"d", b"staged")
        held = reader.all()
        store.delete_range(b"a", b"c")
        store.put_all([(b"b", b"staged"), (b"z", b"staged")])

        def look() -> None:
            scan = pool.submit(lambda: list(reader.all()))
            many = pool.submit(reader.get_many, [b"a", b"b", b"d"])
            one = pool.submit(reader.get, b"c")
            shown.append([future.result(600) for future in (scan, many, one)])

        write = type(store.staging.engine).write  # type: ignore[attr-defined]

        def stepped(*arguments: Any, **named: Any) -> None:
            look()
            write(*arguments, **named)
            look()

        monkeypatch.setattr(type(store.staging.engine), "write", stepped)  # type: ignore[attr-defined]
        store.commit({TopicPartition("changelog", 0): 1})
        look()
        assert shown == [[after, [None, b"staged", b"staged"], None]] * 3
        assert list(held) == [(b"a", b"kept"), (b"b", b"kept"), (b"c", b"kept"), (b"d", b"staged")]


@pytest.mark.parametrize("key", [b"key", b"new"])
def test_a_scan_that_is_made_in_the_middle_of_a_put_stays_what_it_was(path: Path, key: bytes) -> None:
    """At any line of it: what the put then assigns to must not be what a reader has frozen meanwhile."""
    scans: list[tuple[list[tuple[bytes, bytes]], KeyValueIterator]] = []
    with open_store("memory-indexed-batch", path) as store, ThreadPoolExecutor(1) as pool:
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)

        def look() -> None:
            scans.append((list(view.all()), view.all()))

        def put_and_look_at(line: int) -> None:
            lines = 0

            def trace(frame: FrameType, event: str, _: object) -> Any:
                nonlocal lines
                if frame.f_code is not Store.put.__code__:
                    return None
                if event == "line":
                    if lines == line:
                        pool.submit(look).result(600)
                    lines += 1
                return trace

            store.rollback()
            store.put(b"key", b"old")
            sys.settrace(trace)
            try:
                store.put(key, b"changed")
            finally:
                sys.settrace(None)
            assert store.get(key) == b"changed"

        for line in range(12):
            put_and_look_at(line)
        assert len(scans) > 5
        assert [list(scan) for _, scan in scans] == [at_once for at_once, _ in scans]


def let_in(
    monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], read: Callable[[], Future[bytes | None]]
) -> list[Future[bytes | None]]:
    """Let a reader try before and after each call of a method; returns what comes of that."""
    futures: list[Future[bytes | None]] = []
    original: Callable[..., Any] = getattr(*step)

    def stepped(*arguments: Any, **named: Any) -> Any:
        futures.append(read())
        wait(futures, READER_GETS_S)
        result = original(*arguments, **named)
        futures.append(read())
        wait(futures, READER_GETS_S)
        return result

    monkeypatch.setattr(*step, stepped)
    return futures
