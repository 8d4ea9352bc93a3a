"""Which topology a state directory is used with: all processes that have tasks open with one have the same.

The file ``.topology`` holds the topology's fingerprint, and each such process locks it, shared (flock). A process with
another topology needs the lock for itself alone, to put its own fingerprint there. What a dead process has left behind
keeps nobody out. Source: KIP-816, "Non-goals".
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Lock

from stores.errors import StoreLockedError
from stores.files import open_plain
from stores.forks import watch
from stores.locks import take
from stores.tasks.state_directory import LOCK_FILE, StateDirectory
from stores.tasks.topology import Topology

TOPOLOGY_FILE = ".topology"
_BYTES_MAX = 128


class _Held:
    """What this process holds."""

    def __init__(self) -> None:
        self.locks: dict[Path, TopologyLock] = {}
        self.guard = Lock()


class TopologyLock:
    """The lock of one state directory, held by this process until it was released as often as it was taken.

    A process forked from this one does not hold it, and does not keep it from being freed.
    """

    def __init__(self, path: Path, fingerprint: str, descriptor: int) -> None:
        self._path, self._fingerprint, self._descriptor = path, fingerprint, descriptor
        self._times = 1

    @classmethod
    def held(cls, state: StateDirectory, topology: Topology) -> TopologyLock | None:
        """Take the lock once more if this process has it for the same topology; else None."""
        path = state.path.resolve()
        with _held.guard:
            lock = _held.locks.get(path)
            if lock is None or lock._fingerprint != topology.fingerprint:
                return None
            lock._times += 1
            return lock

    @classmethod
    def take(cls, state: StateDirectory, topology: Topology) -> TopologyLock:
        """Take the lock, for who holds that of relocations. The state directory exists.

        Raises: StoreLockedError where tasks are open with another topology, here or in another process; OSError.
        """
        again = cls.held(state, topology)
        if again is not None:
            return again
        path = state.path.resolve()
        descriptor = open_plain(path / TOPOLOGY_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            told = topology.fingerprint.encode()
            if os.pread(descriptor, _BYTES_MAX, 0) != told:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise StoreLockedError(
                        f"{state.path} is used with another topology{_holder(state)}: close its tasks there first"
                    ) from error
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, told, 0)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            with _held.guard:
                lock = _held.locks[path] = cls(path, topology.fingerprint, descriptor)
                watch(lock, _disown)
                return lock
        except BaseException:
            os.close(descriptor)
            raise

    def release(self) -> None:
        """Undo one ``take``; the last frees the lock. Nothing to do where it is not held, as in a forked process."""
        with _held.guard:
            self._times = max(0, self._times - 1)
            if not self._times and _held.locks.get(self._path) is self:
                del _held.locks[self._path]
                os.close(self._descriptor)


_held = _Held()


def _disown(lock: TopologyLock) -> None:
    """In the child of a fork: let go of the parent's lock, or it would be held for as long as the child lives."""
    # Another thread of the parent may have held it.
    _held.guard = Lock()
    if lock._times:
        lock._times = 0
        _held.locks.pop(lock._path, None)
        os.close(lock._descriptor)


def _holder(state: StateDirectory) -> str:
    """Which task is open, and in which process: the lock itself is shared, and says of nobody who has it."""
    for task_id in state.tasks():
        file = state.folder(task_id) / LOCK_FILE
        try:
            if file.is_file():
                os.close(take(file, note=False))
        except StoreLockedError as error:
            return f" ({str(error).split(':')[0]})"
    return ""
