"""The lock of a task's folder, or of a store's own folder: one owner on this machine, which may take it repeatedly."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from stores.files.locks import FileLock, take
from stores.process.forks import watch


class _Taken:
    """The locks that this process holds."""

    def __init__(self) -> None:
        self.locks: dict[Path, TaskLock] = {}
        self.guard = Lock()


class TaskLock:
    """The lock on the lock file of a folder. ``owner`` holds it until it has released it as often as it took it.

    A process forked from this one does not hold the lock, and does not delay its release.
    """

    def __init__(self, file: Path, owner: object, lock: FileLock) -> None:
        self._file, self._owner, self._lock = file, owner, lock
        self._times = 1

    @classmethod
    def take(cls, file: Path, owner: object) -> TaskLock:
        """Take the lock. Raises: OSError; StoreLockedError if another owner has it, in this process or another."""
        # Resolve the folder only: ``take`` refuses a lock file that is a link.
        file = file.parent.resolve() / file.name
        with _taken.guard:
            held = _taken.locks.get(file)
            if held is None or held._owner != owner:
                # If this process holds the lock for another owner, the system refuses it here.
                held = _taken.locks[file] = cls(file, owner, FileLock(take(file)))
                watch(held, _disown)
            else:
                held._times += 1
            return held

    def release(self) -> None:
        """Undo one ``take``; the last call releases the lock. No effect if it is not held, as in a forked process."""
        with _taken.guard:
            self._times = max(0, self._times - 1)
            if not self._times and _taken.locks.get(self._file) is self:
                del _taken.locks[self._file]
                self._lock.close()


_taken = _Taken()


def _disown(lock: TaskLock) -> None:
    """Close the parent's lock in the child of a fork. Otherwise the child would hold it for as long as it lives."""
    # A thread of the parent that is not in the child may have held the guard.
    _taken.guard = Lock()
    if lock._times:
        lock._times = 0
        _taken.locks.pop(lock._file, None)
        lock._lock.close()
