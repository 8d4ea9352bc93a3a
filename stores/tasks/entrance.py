"""What a task has to pass before it opens its stores: all stores in their places, and its lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stores.files import system_errors_told
from stores.tasks.identifier import TaskId
from stores.tasks.layout import bring_in, check_engines
from stores.tasks.relocation import admit, is_pending
from stores.tasks.state_directory import StateDirectory
from stores.tasks.task_lock import TaskLock
from stores.tasks.topology import Topology
from stores.tasks.topology_lock import TopologyLock


class Entrance:
    """How a task of an application is entered, and left; ``kept`` are the paths of its persistent stores, by name.

    With a ``topology`` the stores of all tasks are looked for first, and moved if ``automatic``.
    """

    def __init__(
        self,
        application_id: str,
        state: StateDirectory,
        task_id: TaskId,
        kept: Mapping[str, Path],
        topology: Topology | None,
        *,
        automatic: bool,
    ) -> None:
        self._application_id, self._state, self._task_id = application_id, state, task_id
        self._engines = {name: path.parent.name for name, path in kept.items()}
        self._topology, self._automatic = topology, automatic
        self._locks: list[TaskLock | TopologyLock] = []

    def enter(self, owner: object) -> None:
        """Take the task's lock for ``owner``, and bring its stores to their places.

        Raises: StoreLockedError; StoreMisplacedError unless ``automatic``; StoreIncompatibleError where two places
        have a store of one name; StoreUnavailableError; StoreCorruptedError for a damaged journal.
        """
        folder = self._state.folder(self._task_id)
        try:
            while True:
                lock = admit(self._state, self._topology, self._application_id, automatic=self._automatic)
                if lock is not None:
                    self._locks.append(lock)
                self._locks.append(self._state.lock(self._task_id, owner))
                if not is_pending(self._state):
                    break
                # Another process has begun to relocate meanwhile; it may have died of it.
                self.leave()
            with system_errors_told(folder):
                bring_in(folder, self._engines)
                check_engines(folder, self._engines)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give back all locks. May be called more than once."""
        while self._locks:
            self._locks.pop().release()

    @property
    def is_entered(self) -> bool:
        """Whether the task has its lock."""
        return bool(self._locks)
