"""The locks of a process in a state directory: each has one owner, which may take it repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Self

from stores.files.locks import FileLock, take
from stores.process import watch


class _Held:
    """The locks that this process holds, by path."""

    def __init__(self) -> None:
        self.locks: dict[Path, HeldLock] = {}
        self.guard = Lock()


class HeldLock:
    """A lock that ``owner`` holds until it has released it as often as it took it. ``close`` then gives it back.

    A process forked from this one does not hold the lock, and does not delay its release.
    """

    def __init__(self, path: Path, owner: object, close: Callable[[], None]) -> None:
        """Note the lock of ``path``, which was just taken. The caller has ``held_locks.guard``."""
        self._path, self._owner, self._close = path, owner, close
        self._times = 1
        held_locks.locks[path] = self
        watch(self, _disown)

    @classmethod
    def again(cls, path: Path, owner: object) -> Self | None:
        """Take the lock once more if ``owner`` holds it; otherwise return None. The caller has ``held_locks.guard``."""
        lock = held_locks.locks.get(path)
        if not isinstance(lock, cls) or lock._owner != owner:
            return None
        lock._times += 1
        return lock

    def release(self) -> None:
        """Undo one ``take``; the last call releases the lock. No effect if it is not held, as in a forked process."""
        with held_locks.guard:
            self._times = max(0, self._times - 1)
            if not self._times and held_locks.locks.get(self._path) is self:
                del held_locks.locks[self._path]
                self._close()


class TaskLock(HeldLock):
    """The lock on the lock file of a task's folder, or of a store's own folder. One owner on this machine has it."""

    @classmethod
    def take(cls, file: Path, owner: object) -> TaskLock:
        """Take the lock. Raises: OSError; StoreLockedError if another owner has it, in this process or another."""
        # Resolve the folder only: ``take`` refuses a lock file that is a link.
        file = file.parent.resolve() / file.name
        with held_locks.guard:
            # If this process holds the lock for another owner, the system refuses it here.
            return cls.again(file, owner) or cls(file, owner, FileLock(take(file)).close)

    def give(self, owner: object) -> None:
        """Let ``owner``, in place of the present one, take the lock once more. The present one still releases it."""
        with held_locks.guard:
            self._owner = owner


held_locks = _Held()


def _disown(lock: HeldLock) -> None:
    """Close the parent's lock in the child of a fork. Otherwise the child would hold it for as long as it lives."""
    # A thread of the parent that is not in the child may have held the guard.
    held_locks.guard = Lock()
    if lock._times:
        lock._times = 0
        held_locks.locks.pop(lock._path, None)
        lock._close()
