"""Mutants of what readers see of the open transaction and of a commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Condition
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from harness.mutants.mutant import (
    Act,
    Patches,
    ReaderDetection,
    View,
    every_engine,
    ingesting_one_by_one,
    mutant,
    with_views,
)
from stores.engines.ingesting import IngestingEngine
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueStore, KeyValueView, Position, PositionBound
from stores.strategies.store import Store

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
COMMIT_WAIT_S = 2.0
"""The longest time that a lookup waits for a commit: the writer makes none any more when a round ends."""


def _seen_through(name: str, meaning: str, strategy: str) -> Callable[[type[View]], type[View]]:
    """Declare the mutant that gives readers the decorated views, in stores of ``strategy``."""

    def declare(view: type[View]) -> type[View]:
        mutant(meaning, ReaderDetection(strategy), name=name)(lambda patches, _: with_views(patches, view))
        return view

    return declare


@_seen_through("dirty-read", "a lookup of committed data shows staged writes", "indexed-batch")
class _DirtyGet(View):
    @property
    def _dirty(self) -> KeyValueView:
        return self._store.read_only(UNCOMMITTED) if self._is_committed else self._view

    def get(self, key: bytes) -> bytes | None:
        return self._dirty.get(key)


@_seen_through("open-transaction", "a lookup of committed data reads the open transaction", "native")
class _DirtyLookups(_DirtyGet):
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._dirty.get_many(keys)


class _Unpinned(View):
    """A snapshot that reads the store again in each call."""

    def close(self) -> None:
        """There is nothing to release."""


@_seen_through("snapshot-per-call", "a snapshot reads the store again in each call", "indexed-batch")
class _SnapshotPerCall(View):
    def snapshot(self) -> _Unpinned:
        return _Unpinned(self._store, self._view, self._level)


@_seen_through("old-lookups", "a lookup of committed data is answered from a cache", "indexed-batch")
class _Cached(View):
    kept: ClassVar[WeakKeyDictionary[KeyValueStore, dict[bytes, bytes | None]]] = WeakKeyDictionary()

    def get(self, key: bytes) -> bytes | None:
        if not self._is_committed:
            return self._view.get(key)
        kept = self.kept.setdefault(self._store, {})
        if len(kept) > 20:
            kept.clear()
        return kept.setdefault(key, self._view.get(key))


@mutant("get_many looks up each key separately", ReaderDetection("indexed-batch"))
def _keys_one_by_one(patches: Patches, subject: str) -> None:
    """Hold each lookup of several keys after the first one, until two commits of the store have ended."""
    commit_end = Condition()
    commits: WeakKeyDictionary[KeyValueStore, int] = WeakKeyDictionary()

    class OneByOne(View):
        def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
            first = [self._view.get(key) for key in keys[:1]]
            with commit_end:
                # The next commit to end may be one that the first key shows already.
                enough = commits.get(self._store, 0) + 2
                commit_end.wait_for(lambda: commits.get(self._store, 0) >= enough, COMMIT_WAIT_S)
            return [*first, *(self._view.get(key) for key in keys[1:])]

    def counted(commit: Act, store: Store, *offsets: Any) -> None:
        commit(store, *offsets)
        with commit_end:
            commits[store] = commits.get(store, 0) + 1
            commit_end.notify_all()

    with_views(patches, OneByOne)
    patches.wrap(Store, "commit", counted)


@mutant("a commit's position is visible before its data", ReaderDetection("indexed-batch"))
def _position_first(patches: Patches, subject: str) -> None:
    committing: WeakSet[KeyValueStore] = WeakSet()

    class Early(View):
        def position(self) -> Position:
            return (self._store.read_only(UNCOMMITTED) if self._store in committing else self._view).position()

    def early(read_only: Act, store: Store, level: IsolationLevel, bound: PositionBound | None = None) -> Any:
        if level is UNCOMMITTED:
            return read_only(store, level, bound)
        return Early(store, read_only(store, level, None if store in committing else bound), level)

    def slow(commit: Act, store: Store, *offsets: Any) -> None:
        committing.add(store)
        time.sleep(0)
        try:
            commit(store, *offsets)
        finally:
            committing.discard(store)

    patches.wrap(Store, "read_only", early)
    patches.wrap(Store, "commit", slow)


class _CutOff(KeyValueIterator):
    """The pairs of ``scan`` until a transaction of the store ends, which ``ended`` counts."""

    def __init__(self, scan: KeyValueIterator, ended: Mapping[KeyValueStore, int], store: KeyValueStore) -> None:
        self._scan, self._ended, self._store = scan, ended, store
        self._from = ended.get(store, 0)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._ended.get(self._store, 0) != self._from:
            raise StopIteration
        return next(self._scan)

    def close(self) -> None:
        self._scan.close()


@mutant("an open scan ends with the transaction that it reads", ReaderDetection("native"))
def _scan_cut_off(patches: Patches, subject: str) -> None:
    transactions: WeakKeyDictionary[KeyValueStore, int] = WeakKeyDictionary()

    class Short(View):
        def __getattr__(self, name: str) -> Any:
            method = getattr(self._view, name)
            if self._is_committed or name not in ("range", "reverse_range", "prefix_scan", "all"):
                return method
            return lambda *given: _CutOff(method(*given), transactions, self._store)

    def counted(end: Act, store: Store, *offsets: Any) -> None:
        end(store, *offsets)
        transactions[store] = transactions.get(store, 0) + 1

    with_views(patches, Short)
    patches.wrap(Store, "commit", counted)
    patches.wrap(Store, "rollback", counted)


@mutant(
    "the engine ingests the files of a commit one by one, the first with the offsets", ReaderDetection("sst-ingest")
)
def _file_by_file(patches: Patches, subject: str) -> None:
    for engine in every_engine():
        if issubclass(engine, IngestingEngine):
            ingesting_one_by_one(patches, engine)
