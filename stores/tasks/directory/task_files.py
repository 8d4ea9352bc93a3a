"""The files of a task: those that its stores are configured to have, and the folder that it locks to open them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stores.changelog.interface import Changelog
from stores.config import StoreConfig
from stores.errors import ChangelogLostError, StoreIncompatibleError
from stores.files.creation import is_store
from stores.files.plain_files import check_no_link, translated_system_errors
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.registry import backend_named
from stores.tasks.directory.entry_files import CheckpointFile, OriginFile, SplitCheckpoint, SplitOrigins
from stores.tasks.directory.relocation import TopologyLock, admit, is_pending
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory
from stores.tasks.directory.store_places import (
    ENDS,
    DirectoryLayout,
    beside,
    check_engine_of,
    check_engines,
    places,
    read_layout,
    relocate_command,
)
from stores.tasks.directory.task_lock import TaskLock
from stores.tasks.identifier import StorePartition, TaskId
from stores.tasks.topology import Topology


@dataclass(frozen=True, slots=True)
class FollowingStore:
    """A store that follows a log: its name, folder, configuration and changelog partition."""

    name: str
    path: Path
    config: StoreConfig
    partition: TopicPartition
    """Of a global store, ``WHOLE_TOPIC`` is in place of a number."""
    changelog: Changelog


@dataclass(frozen=True)
class StorePlan(FollowingStore):
    """One store of a task, with the checkpoint file of that."""

    checkpoint: CheckpointFile
    """The checkpoint file in which its offset is found."""

    @property
    def is_log_empty(self) -> bool:
        """True if its changelog never had a record. One of a commit that is not visible yet counts."""
        return not self.changelog.written_end(self.partition)

    def check_changelog(self, offset: int | None) -> None:
        """Check that the changelog of a store with an ``offset`` is not empty. Raises: ChangelogLostError."""
        if offset is not None and self.is_log_empty:
            topic, number = self.partition
            raise ChangelogLostError(
                f"the changelog {topic}-{number} is empty, and the store {self.path} is at its offset {offset}: "
                f"restore the changelog, or remove {self.checkpoint.path.parent} to start over"
            )


class TaskFiles:
    """The plans of a task's stores in ``layout``, and the task's checkpoint file and origin file."""

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        state: StateDirectory,
        layout: DirectoryLayout,
        stores: Mapping[str, StoreConfig],
        changelog: Changelog,
        guarantee: ProcessingGuarantee,
    ) -> None:
        homes = {name: state.home(task_id, name, layout) for name in stores}
        self.plans = [
            StorePlan(
                name,
                state.store_folder(task_id, config.backend, name, layout),
                # The default isolation level of readers depends on the task's guarantee.
                replace(config, processing_guarantee=guarantee),
                TopicPartition(f"{application_id}-{name}-changelog", task_id.partition),
                changelog,
                CheckpointFile(homes[name] / CHECKPOINT_FILE),
            )
            for name, config in stores.items()
        ]
        folder = state.folder(task_id)
        self.checkpoint: CheckpointFile | SplitCheckpoint = CheckpointFile(folder / CHECKPOINT_FILE)
        self.origins: OriginFile | SplitOrigins = OriginFile(folder / ORIGIN_FILE)
        if layout is DirectoryLayout.STORE_PARTITION:
            files = {plan.partition: plan.checkpoint for plan in self.plans}
            self.checkpoint = SplitCheckpoint(self.checkpoint.path, files)
            self.origins = SplitOrigins({name: OriginFile(home / ORIGIN_FILE) for name, home in homes.items()})
        self.kept = {plan.name: plan.path for plan in self.plans if backend_named(plan.config.backend).persistent}
        """The folders of the persistent stores, by name."""


class TaskFolder:
    """The folder of a task, acquired before it opens its persistent stores; ``kept`` are their paths by name."""

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

    def hand_over(self) -> list[TaskLock | TopologyLock]:
        """Return the locks, for the caller to release."""
        locks, self._locks = self._locks, []
        return locks

    def release(self) -> None:
        """Release all locks. May be called more than once."""
        while self._locks:
            self._locks.pop().release()
