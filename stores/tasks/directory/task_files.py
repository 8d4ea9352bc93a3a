"""The stores of a task as they are configured: their folders, changelog partitions and files. Nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stores.changelog.interface import Changelog
from stores.config import StoreConfig
from stores.errors import ChangelogLostError
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.registry import backend_named
from stores.tasks.directory.checkpoint_file import CheckpointFile, SplitCheckpoint
from stores.tasks.directory.directory_layout import DirectoryLayout
from stores.tasks.directory.origin_file import OriginFile, SplitOrigins
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory
from stores.tasks.identifier import TaskId


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One store of a task: its name, folder, configuration and changelog partition."""

    name: str
    path: Path
    config: StoreConfig
    partition: TopicPartition
    changelog: Changelog
    checkpoint: CheckpointFile
    """The checkpoint file in which its offset is found."""

    @property
    def is_log_empty(self) -> bool:
        """True if its changelog has no committed record, and never had one."""
        return not self.changelog.end_offset(self.partition)

    def check_changelog(self, offset: int | None) -> None:
        """Check that its changelog is not empty if the store has an ``offset``. Raises: ChangelogLostError.

        A restore from an empty changelog would wipe the store.
        """
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
