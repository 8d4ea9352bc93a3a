"""A state directory whose stores move: every sixth commit gives their sub-topology another number.

The two stores move from their task into two tasks, and then into one again, with their offsets of the checkpoint file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zlib import crc32

from harness.experiments.iofaults.subjects.checkpoint import CheckpointSubject
from harness.experiments.iofaults.subjects.subject import COMMITS
from harness.experiments.iofaults.workload import State
from stores.errors import TaskCorruptedError
from stores.files.creation import create, is_complete, wipe
from stores.files.identity import read_identity
from stores.files.locks import take
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability, TopicPartition
from stores.tasks import StateDirectory, Subtopology, TaskId, Topology, relocate
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.relocation import relocating
from stores.tasks.directory.store_places import places

_STORES = ("left", "right")
_ENGINE = "lmdb"
_MOVE_EVERY = 6


class RelocationSubject(CheckpointSubject):
    """Each key is an offset of one of two stores. They have the files of a store, but no data.

    An offset counts where its store is. With an offset but no store, a task would continue from data that it lacks.
    """

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._state = StateDirectory(self.path)

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            if self.path.exists():
                # A task does this when it opens, with any topology.
                with relocating(self._state):
                    pass
        return self.read()[1] or 0

    def commit(self, number: int) -> None:
        self._commit({**self._offsets(self._staged), COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self._commit({**self._found(), **self._offsets(pairs), COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        offsets = self._found()
        number = offsets.pop(COMMITS, None)
        return {topic.encode(): b"%d" % offset for (topic, _), offset in offsets.items()}, number, number

    def wipe(self) -> None:
        with translated_system_errors(self.path):
            shutil.rmtree(self.path)

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        number = offsets[COMMITS] // _MOVE_EVERY
        here = TaskId(number, 0)
        with translated_system_errors(self.path):
            make_folder(self.path)
        left, right = _STORES
        relocate(self.path, Topology({number: Subtopology((left,)), number + 1: Subtopology((right,))}))
        relocate(self.path, Topology({number: Subtopology(_STORES)}))
        lock = self._state.lock(here, self)
        try:
            for name in _STORES:
                store = self._state.store_folder(here, _ENGINE, name)
                if not is_complete(store):
                    make_store(store)
            told = {TopicPartition(_logged(topic), 0): offset for (topic, _), offset in offsets.items()}
            CheckpointFile(self._state.folder(here) / ".checkpoint").write(told)
        finally:
            lock.release()

    def _found(self) -> dict[TopicPartition, int]:
        """Return the offsets of both stores, in any task."""
        offsets = {}
        moved = False
        for task_id in self._state.tasks():
            folder = self._state.folder(task_id)
            with translated_system_errors(folder):
                stores = {place.store for place in places(folder) if is_complete(place.within(folder))}
            for name in stores:
                # Opening a store reads its identity first.
                read_identity(self._state.store_folder(task_id, _ENGINE, name))
            moved = moved or (bool(stores) and task_id.subtopology > 0)
            for (topic, _), offset in CheckpointFile(folder / ".checkpoint").read().items():
                key, store, _ = topic.rsplit("-", 2)
                if store not in stores:
                    raise TaskCorruptedError(f"{folder} has an offset of the store {store!r}, which is not there")
                offsets[TopicPartition(key, 0)] = offset
        if moved and not offsets:
            # A task restores a store that has no offset.
            raise TaskCorruptedError(f"no store in {self.path} has an offset that belongs to it")
        return offsets


def _logged(key: str) -> str:
    """Return the changelog topic of the store to which the key belongs."""
    return f"{key}-{_STORES[crc32(key.encode()) % 2]}-changelog"


def make_store(store: Path) -> None:
    """Create a folder that has the files of a store of the engine, but no data."""
    wipe(store)
    with translated_system_errors(store):
        make_folder(store)
        lock = take(store / "lock")
        try:
            create(store, "made up", lambda folder: (folder / "data").mkdir())
        finally:
            os.close(lock)
