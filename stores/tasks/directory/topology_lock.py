"""The topology lock of a state directory: all processes with open tasks there must have the same topology.

The file ``.topology`` holds the topology's fingerprint, and each of these processes has a shared lock on it (flock). A
process with another topology needs the exclusive lock to write its own fingerprint. The system releases the locks of a
process that ends. Source: KIP-816, "Non-goals".
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Lock

from stores.errors import StoreLockedError
from stores.files.locks import take
from stores.files.plain_files import open_plain
from stores.process.forks import watch
from stores.tasks.directory.state_directory import LOCK_FILE, StateDirectory
from stores.tasks.topology import Topology

TOPOLOGY_FILE = ".topology"
_BYTES_MAX = 128


class _Held:
    """The locks that this process holds."""

    def __init__(self) -> None:
        self.locks: dict[Path, TopologyLock] = {}
        self.guard = Lock()


class TopologyLock:
    """The lock of one state directory. This process holds it until it has released it as often as it took it.

    A process forked from this one does not hold the lock, and does not delay its release.
    """

    def __init__(self, path: Path, fingerprint: str, descriptor: int) -> None:
        self._path, self._fingerprint, self._descriptor = path, fingerprint, descriptor
        self._times = 1

    @classmethod
    def held(cls, state: StateDirectory, topology: Topology) -> TopologyLock | None:
        """Take the lock once more if this process has it for the same topology; otherwise return None."""
        path = state.path.resolve()
        with _held.guard:
            lock = _held.locks.get(path)
            if lock is None or lock._fingerprint != topology.fingerprint:
                return None
            lock._times += 1
            return lock

    @classmethod
    def take(cls, state: StateDirectory, topology: Topology) -> TopologyLock:
        """Take the lock. The caller holds the lock of relocations, and the state directory exists.

        Raises: StoreLockedError if tasks are open with another topology, here or in another process; OSError.
        """
        again = cls.held(state, topology)
        if again is not None:
            return again
        path = state.path.resolve()
        descriptor = open_plain(path / TOPOLOGY_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            fingerprint = topology.fingerprint.encode()
            if os.pread(descriptor, _BYTES_MAX, 0) != fingerprint:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise StoreLockedError(
                        f"{state.path} is used with another topology{_holder(state)}: close its tasks there first"
                    ) from error
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, fingerprint, 0)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            with _held.guard:
                lock = _held.locks[path] = cls(path, topology.fingerprint, descriptor)
                watch(lock, _disown)
                return lock
        except BaseException:
            os.close(descriptor)
            raise

    def release(self) -> None:
        """Undo one ``take``; the last call releases the lock. No effect if it is not held, as in a forked process."""
        with _held.guard:
            self._times = max(0, self._times - 1)
            if not self._times and _held.locks.get(self._path) is self:
                del _held.locks[self._path]
                os.close(self._descriptor)


_held = _Held()


def _disown(lock: TopologyLock) -> None:
    """Close the parent's lock in the child of a fork. Otherwise the child would hold it for as long as it lives."""
    # A thread of the parent that is not in the child may have held the guard.
    _held.guard = Lock()
    if lock._times:
        lock._times = 0
        _held.locks.pop(lock._path, None)
        os.close(lock._descriptor)


def _holder(state: StateDirectory) -> str:
    """Return a note on an open task and its process, for a message: a shared lock does not name its holders."""
    for task_id in state.tasks():
        file = state.folder(task_id) / LOCK_FILE
        try:
            if file.is_file():
                os.close(take(file, note=False))
        except StoreLockedError as error:
            return f" ({str(error).split(':')[0]})"
    return ""
