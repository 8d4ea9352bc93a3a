"""Who works on a task: one owner on this machine, as often as it likes."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from stores.forks import watch
from stores.locks import take


class _Taken:
    """What this process holds."""

    def __init__(self) -> None:
        self.locks: dict[Path, TaskLock] = {}
        self.guard = Lock()


class TaskLock:
    """A task's lock file, held by ``owner`` until it was released as often as it was taken.

    A process forked from this one does not hold it, and does not keep it from being freed.
    """

    def __init__(self, file: Path, owner: object, descriptor: int) -> None:
        self._file, self._owner, self._descriptor = file, owner, descriptor
        self._times = 1

    @classmethod
    def take(cls, file: Path, owner: object) -> TaskLock:
        """Raises: OSError; StoreLockedError where another owner has it, in this process or another."""
        # Not a link in its own place, which ``take`` refuses.
        file = file.parent.resolve() / file.name
        with _taken.guard:
            held = _taken.locks.get(file)
            if held is None or held._owner != owner:
                # Also where this process holds it, for another owner: the system then says so.
                held = _taken.locks[file] = cls(file, owner, take(file))
                watch(held, _disown)
            else:
                held._times += 1
            return held

    def release(self) -> None:
        """Undo one ``take``; the last frees the lock. Nothing to do where it is not held, as in a forked process."""
        with _taken.guard:
            self._times = max(0, self._times - 1)
            if not self._times and _taken.locks.get(self._file) is self:
                del _taken.locks[self._file]
                os.close(self._descriptor)


_taken = _Taken()


def _disown(lock: TaskLock) -> None:
    """In the child of a fork: let go of the parent's lock, or it would be held for as long as the child lives."""
    # Another thread of the parent may have held it.
    _taken.guard = Lock()
    if lock._times:
        lock._times = 0
        _taken.locks.pop(lock._file, None)
        os.close(lock._descriptor)
