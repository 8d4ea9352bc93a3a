"""Snapshots: in memory, and those that scans share.

Between two commits all scans see the same data, so one read transaction serves all. Read transactions are scarce: each
takes a reader slot of the engine, or a connection and its descriptors. Open scans take one for each different commit
that they show, however many scans there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, RLock
from typing import Generic, TypeVar

from stores.engines.engine import Engine, EngineSnapshot, Scan
from stores.ordered import WHOLE, ScanRange, SortedMap

_FETCH = 256


class MapSnapshot(EngineSnapshot):
    """The data in ``maps``, one for each data family, which nobody changes. ``lock`` is held while keys are sorted."""

    def __init__(
        self, maps: Sequence[SortedMap[bytes]], meta: Mapping[bytes, bytes], lock: AbstractContextManager[object]
    ) -> None:
        self._maps, self._meta, self._lock = maps, meta, lock

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._maps[family].writes.get(key)

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        with self._lock:
            return MapScan(self._maps[bounds.family], bounds, reverse=reverse)

    def close(self) -> None:
        """Do nothing: the maps are freed with their last user."""


class MapScan(Scan):
    """A scan of ``data``, whose writer is not at work meanwhile and does not change it later."""

    def __init__(self, data: SortedMap[bytes], bounds: ScanRange, *, reverse: bool) -> None:
        start, end, end_open, _ = bounds
        self._values, self._reverse = data.writes, reverse
        self._keys = data.merge(start, end, end_open=end_open, reverse=reverse)
        self._some: list[bytes] = []
        """Keys in the order of the scan; those from ``_at`` on are not fetched yet."""
        self._at = 0

    def fetch(self) -> list[tuple[bytes, bytes]]:
        while self._at >= len(self._some):
            some = next(self._keys, None)
            if some is None:
                return []
            self._some, self._at = some[::-1] if self._reverse else some, 0
        keys = self._some[self._at : self._at + _FETCH]
        self._at += len(keys)
        # Without bytecode for each pair.
        return list(zip(keys, map(self._values.__getitem__, keys), strict=True))

    def close(self) -> None:
        self._keys, self._some = iter(()), []


def copied(engine: Engine) -> MapSnapshot:
    """Return a copy of all data of ``engine``, for an engine that has no snapshots.

    Raises: the errors of the engine's reads.
    """
    families = [WHOLE._replace(family=family) for family in range(engine.num_families)]
    while True:
        meta = engine.meta()
        scans = engine.scans(families)
        if engine.meta() == meta:
            return read_whole(scans, meta)
        for scan in scans:
            scan.close()


def read_whole(scans: Sequence[Scan], meta: Mapping[bytes, bytes]) -> MapSnapshot:
    """Read ``scans``, each of one data family, to their ends. They are closed afterwards."""
    maps = []
    for scan in scans:
        pairs: dict[bytes, bytes] = {}
        try:
            while chunk := scan.fetch():
                pairs.update(chunk)
        finally:
            scan.close()
        maps.append(SortedMap(pairs))
    return MapSnapshot(maps, meta, Lock())


Reading = TypeVar("Reading")


class Snapshot(Generic[Reading]):
    """A read transaction that is open until its last user gives it back. A thread holds ``lock`` while it uses it."""

    __slots__ = ("ended", "lock", "reading", "users")

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.users = 0
        self.ended = False
        self.lock = RLock()


class SharedSnapshots(Generic[Reading]):
    """The snapshots of one engine. For any thread; no other lock is taken while its own lock is held.

    ``begin`` begins a read transaction on committed data, and ``end`` ends it.
    """

    def __init__(self, begin: Callable[[], Reading], end: Callable[[Reading], None]) -> None:
        self._begin, self._end = begin, end
        self._current: Snapshot[Reading] | None = None
        self._writing = False
        # Re-entrant: a finalizer may give a snapshot back at any point.
        self._lock = RLock()
        self.count = 0
        """The number of open read transactions."""

    def acquire(self) -> Snapshot[Reading]:
        """Return a snapshot of the last commit, to be given back once. Raises: as ``begin``."""
        with self._lock:
            current = self._current
            if current is not None:
                current.users += 1
                if not current.ended:
                    return current
            snapshot = Snapshot(self._begin())
            snapshot.users = 1
            self.count += 1
            # While a commit is written, it may end at any moment: this snapshot must not be shared after it.
            if not self._writing:
                self._current = snapshot
            return snapshot

    def share(self, snapshot: Snapshot[Reading]) -> Snapshot[Reading]:
        """Return ``snapshot``, which is in use, for one more user. Each user gives it back once."""
        with self._lock:
            snapshot.users += 1
        return snapshot

    @contextmanager
    def acquired(self) -> Iterator[Snapshot[Reading]]:
        """Take a snapshot for the duration of a block. Raises: as ``acquire``."""
        snapshot = self.acquire()
        try:
            yield snapshot
        finally:
            self.release(snapshot)

    def release(self, snapshot: Snapshot[Reading]) -> None:
        """End the read transaction with its last user."""
        with self._lock:
            snapshot.users -= 1
            if snapshot.users or snapshot.ended:
                return
            snapshot.ended = True
            if self._current is snapshot:
                self._current = None
            self.count -= 1
            self._end(snapshot.reading)

    def begin_writing(self) -> None:
        """Begin a commit: a snapshot that is taken before ``end_writing`` is shared with no other scan."""
        with self._lock:
            self._current, self._writing = None, True

    def end_writing(self) -> None:
        """End a commit, whether or not it succeeded."""
        with self._lock:
            # With the lock: a snapshot that is being taken may have begun before the commit, and must not be shared.
            self._writing = False
