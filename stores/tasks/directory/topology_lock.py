"""The topology lock of a state directory: all processes with open tasks there must have the same topology.

The file ``.topology`` holds the topology's fingerprint, and each of these processes has a shared lock on it (flock). A
process with another topology needs the exclusive lock to write its own fingerprint. The system releases the locks of a
process that ends. Source: KIP-816, "Non-goals".
"""

from __future__ import annotations

import fcntl
import os
from functools import partial

from stores.errors import StoreLockedError
from stores.files.locks import take
from stores.files.plain_files import open_plain
from stores.tasks.directory.state_directory import LOCK_FILE, StateDirectory
from stores.tasks.directory.task_lock import HeldLock, held_locks
from stores.tasks.topology import Topology

TOPOLOGY_FILE = ".topology"
_BYTES_MAX = 128


class TopologyLock(HeldLock):
    """The lock of one state directory; its owner is the topology."""

    @classmethod
    def held(cls, state: StateDirectory, topology: Topology) -> TopologyLock | None:
        """Take the lock once more if this process has it for the same topology; otherwise return None."""
        with held_locks.guard:
            return cls.again(state.path.resolve(), topology.fingerprint)

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
            with held_locks.guard:
                return cls(path, topology.fingerprint, partial(os.close, descriptor))
        except BaseException:
            os.close(descriptor)
            raise


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
