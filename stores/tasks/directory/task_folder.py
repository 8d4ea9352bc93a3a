"""The steps before a task opens its stores: bring all stores to their places, and take the task's lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stores.errors import StoreIncompatibleError
from stores.files.creation import is_store
from stores.files.plain_files import check_no_link, translated_system_errors
from stores.tasks.directory.directory_layout import DirectoryLayout, read_layout, relocate_command
from stores.tasks.directory.relocation import admit, is_pending
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.store_places import ENDS, beside, check_engine_of, check_engines, places
from stores.tasks.directory.task_lock import TaskLock
from stores.tasks.directory.topology_lock import TopologyLock
from stores.tasks.identifier import StorePartition, TaskId
from stores.tasks.topology import Topology


class TaskFolder:
    """The folder of one task, which the task acquires before it opens its stores.

    ``kept`` are the paths of its persistent stores in ``layout``, by name.

    With a ``topology`` misplaced stores of all tasks are found first, and moved if ``automatic``.
    """

    def __init__(
        self,
        application_id: str,
        state: StateDirectory,
        layout: DirectoryLayout,
        task_id: TaskId,
        kept: Mapping[str, Path],
        topology: Topology | None,
        *,
        automatic: bool,
    ) -> None:
        self._application_id, self._state, self._task_id = application_id, state, task_id
        self._layout = layout
        self._paths = kept
        by_task = layout is DirectoryLayout.TASK
        self._engines = {name: (path.parent if by_task else path).name for name, path in kept.items()}
        self._topology, self._automatic = topology, automatic
        self._locks: list[TaskLock | TopologyLock] = []

    def acquire(self, owner: object) -> None:
        """Take the task's lock for ``owner``, and those of stores' own folders, and bring its stores to their places.

        Raises: StoreLockedError; StoreMisplacedError unless ``automatic``; StoreIncompatibleError if two places have a
        store of one name, the layout does not fit, or a link leads to one of its stores; StoreUnavailableError;
        StoreCorruptedError for a damaged journal.
        """
        folder = self._state.folder(self._task_id)
        self._check_no_links(folder)
        try:
            while True:
                lock = admit(self._state, self._topology, self._application_id, automatic=self._automatic)
                if lock is not None:
                    self._locks.append(lock)
                self._locks.append(self._state.lock(self._task_id, owner))
                if not is_pending(self._state):
                    break
                # Another process has begun a relocation meanwhile, and may have been killed: release all and try again.
                self.release()
            with translated_system_errors(folder):
                if read_layout(self._state.path) is not self._layout:
                    raise StoreIncompatibleError(
                        f"the layout of {self._state.path} has changed since this task object was created: create "
                        "another one"
                    )
                if self._layout is DirectoryLayout.TASK:
                    check_engines(folder, self._engines)
                    self._refuse_other_layout(
                        [
                            self._state.path / name / str(self._task_id.partition) / self._engines[name]
                            for name in self._paths
                        ]
                    )
                else:
                    present = [place for place in places(folder) if place.store in self._paths]
                    self._refuse_other_layout([place.within(folder) for place in present])
                    for name, path in self._paths.items():
                        home = StorePartition(name, self._task_id.partition)
                        self._locks.append(self._state.lock_own(home, owner))
                        check_engine_of(name, path)
        except BaseException:
            self.release()
            raise

    def _check_no_links(self, folder: Path) -> None:
        """Check that nothing of the task is reached through a link: what it removes and renames is in the directory."""
        with translated_system_errors(folder):
            check_no_link(self._state.path, folder)
            for path in self._paths.values():
                for each in (path, *(beside(path, end) for end in ENDS)):
                    check_no_link(self._state.path, each)

    def _refuse_other_layout(self, paths: Iterable[Path]) -> None:
        options = f"--layout {self._layout}"
        if self._layout is DirectoryLayout.TASK:
            options += " --topology FILE"
        for path in paths:
            if path.is_dir() and is_store(path):
                raise StoreIncompatibleError(
                    f"{path} is not in the place of the layout {self._layout}, which {self._state.path} has: run "
                    + relocate_command(self._state.path, options)
                )

    def release(self) -> None:
        """Release all locks. May be called more than once."""
        while self._locks:
            self._locks.pop().release()
