"""A store that keeps its offsets, and that imports them repeatedly from a checkpoint file.

After the fifth commit and every ninth after it, the state is copied into a new folder. There it looks as a store
without offsets leaves it when it is closed. The new store is opened in place of the old one, and imports its offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from harness.experiments.iofaults.subjects.subject import COMMITS, NAME, StoreSubject
from harness.experiments.iofaults.workload import State
from stores.changelog.memory import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import CommitFailedError, StoreCorruptedError, StoreUnavailableError
from stores.files.plain_files import make_folder, sync_folder, translated_system_errors
from stores.interface import Durability
from stores.registry import Backend, backend_named, backends, open_store
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.stores.task_store import TaskStore

IMPORTS: Mapping[str, tuple[str, str]] = {
    "offset-import": ("lmdb-indexed-batch", "lmdb-direct"),
    "offset-import-rocksdb": ("rocksdb-indexed-batch", "rocksdb-direct"),
}
"""By the subject's name: the backend that imports the offset, and the backend that keeps no offsets."""
_ANY_DIRECT = "rocksdb-direct"
"""The source of the strategy ``direct``, for a backend without offsets on an engine that has none registered."""


class OffsetImportSubject(StoreSubject):
    """The folders are named by the number of the commit that they were made at; the highest number counts."""

    REOPENED_FROM = 5

    def __init__(self, root: Path, level: Durability, backend: str, left_by: str) -> None:
        super().__init__(root, level, backend)
        self._left_by = left_by
        direct = backend_named(_ANY_DIRECT).load_strategy
        known = cast(dict[str, Backend], backends())
        known.setdefault(left_by, Backend(left_by, self._backend.load_engine, direct))
        # Keep only the options that both backends accept.
        self._options = {name: value for name, value in self._options.items() if name in known[left_by].options}

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            make_folder(self.path)
            folders = [entry for entry in self.path.iterdir() if entry.name.isdecimal()]
            folder = max(folders, default=self.path / "000")
            make_folder(folder)
        checkpoint = CheckpointFile(folder / ".checkpoint")
        config = StoreConfig(self._backend.name, self.level, options=self._options)
        opened = TaskStore(NAME, folder / NAME, config, COMMITS, MemoryChangelog(), checkpoint, exactly_once=True)
        self._take(opened, checkpoint.read().get(COMMITS))
        if opened.counters.wipe_total:
            # A task would restore it from a changelog now, but here is none.
            self.close()
            raise StoreCorruptedError(f"the store in {folder} could not be trusted, and was wiped")
        return opened.offset or 0

    def reopen(self, number: int) -> None:
        state = self.read()[0]
        self.close()
        self._leave(state, number)
        self.open()

    def wipe(self) -> None:
        with translated_system_errors(self.path):
            shutil.rmtree(self.path)

    def _leave(self, state: State, number: int) -> None:
        """Create a folder as a store without offsets leaves it, and rename it to its place in one step."""
        folder = self.path / f"{number:03}"
        new = folder.with_suffix(".new")
        try:
            with translated_system_errors(new):
                shutil.rmtree(new, ignore_errors=True)
                make_folder(new)
                with open_store(self._left_by, new / NAME, durability=self.level, options=self._options) as store:
                    store.restore(list(state.items()), {})
                for name in (".checkpoint", f"{NAME}.position"):
                    CheckpointFile(new / name).write({COMMITS: number})
                new.rename(folder)
                sync_folder(self.path)
        except CommitFailedError as error:
            raise StoreUnavailableError(f"{new} could not be made: {error}") from error
