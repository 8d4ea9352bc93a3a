"""The paths and files of one task in its state directory."""

from __future__ import annotations

from collections.abc import Mapping

from stores.config import StoreConfig
from stores.interface import TopicPartition
from stores.registry import backend_named
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import DirectoryLayout
from stores.tasks.directory.origin_file import OriginFile
from stores.tasks.directory.split_files import SplitCheckpoint, SplitOrigins
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory
from stores.tasks.identifier import TaskId


class TaskFiles:
    """The folders, changelog partitions, checkpoint files and origin files of a task's stores in ``layout``.

    Nothing is read or written here.
    """

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        state: StateDirectory,
        layout: DirectoryLayout,
        stores: Mapping[str, StoreConfig],
    ) -> None:
        self.paths = {
            name: state.store_folder(task_id, config.backend, name, layout) for name, config in stores.items()
        }
        """The folder of each store, by name."""
        self.partitions = {
            name: TopicPartition(f"{application_id}-{name}-changelog", task_id.partition) for name in stores
        }
        homes = {name: state.home(task_id, name, layout) for name in stores}
        self.store_checkpoints = {name: CheckpointFile(home / CHECKPOINT_FILE) for name, home in homes.items()}
        """The checkpoint file in which each store's offset is found, by the store's name."""
        folder = state.folder(task_id)
        self.checkpoint: CheckpointFile | SplitCheckpoint = CheckpointFile(folder / CHECKPOINT_FILE)
        self.origins: OriginFile | SplitOrigins = OriginFile(folder / ORIGIN_FILE)
        if layout is DirectoryLayout.STORE_PARTITION:
            files = {self.partitions[name]: file for name, file in self.store_checkpoints.items()}
            self.checkpoint = SplitCheckpoint(self.checkpoint.path, files)
            self.origins = SplitOrigins({name: OriginFile(home / ORIGIN_FILE) for name, home in homes.items()})
        self.kept = {
            name: self.paths[name] for name, config in stores.items() if backend_named(config.backend).persistent
        }
        """The folders of the persistent stores, by name."""
