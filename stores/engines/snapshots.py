"""Snapshots that scans share: between two commits all scans see the same data, so one read transaction serves all.

Read transactions are scarce: each takes a reader slot of the engine, or a connection and its descriptors. Open scans
take one for each different commit that they show, however many scans there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Generic, TypeVar

Reading = TypeVar("Reading")


class Snapshot(Generic[Reading]):
    """A read transaction that is open until its last user gives it back. A thread holds ``lock`` while it uses it."""

    __slots__ = ("ended", "lock", "reading", "users")

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.users = 0
        self.ended = False
        self.lock = RLock()


class Snapshots(Generic[Reading]):
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
            taken = Snapshot(self._begin())
            taken.users = 1
            self.count += 1
            # While a commit is written, it may end at any moment: this snapshot must not be shared after it.
            if not self._writing:
                self._current = taken
            return taken

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
