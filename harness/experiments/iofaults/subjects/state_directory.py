"""A state directory: every sixth commit creates the folder of another task, and removes the folder before it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.experiments.iofaults.subjects.checkpoint import CheckpointSubject
from harness.experiments.iofaults.subjects.subject import COMMITS
from harness.experiments.iofaults.workload import State
from stores.errors import StoreCorruptedError, TaskCorruptedError
from stores.files.creation import create, is_complete, wipe
from stores.files.identity import read_identity
from stores.files.locks import take
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability, TopicPartition
from stores.tasks import StateDirectory, TaskId
from stores.tasks.directory.checkpoint_file import CheckpointFile

_STORE = "counts"
_PROCESS = TopicPartition("process", 0)
"""The partition whose offset is derived from the directory's ID at the time of the commit."""
_AT_ONCE_S = -1.0
_TASK_EVERY = 6


class StateDirectorySubject(CheckpointSubject):
    """A task has a store's folder without data, then a checkpoint file, which commits replace until the next task.

    Folders are complete or do not exist, except the last one, which may be half created. The directory's ID never
    changes after it was returned.
    """

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._state = StateDirectory(self.path)
        self._may_be_anothers = False

    def open(self) -> int | None:
        for task_id in self._state.tasks():
            # The owner of the lock is dead.
            self._state.lock(task_id, self).release()
        return self.read()[1] or 0

    def commit(self, number: int) -> None:
        self._commit({**self._offsets(self._staged), COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self._commit({**self._last(), **self._offsets(pairs), COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        offsets = self._last()
        number = offsets.pop(COMMITS, None)
        process = offsets.pop(_PROCESS, None)
        state = {topic.encode(): b"%d" % offset for (topic, _), offset in offsets.items()}
        for task_id in self._state.tasks():
            if number is not None and task_id < _task_of(number) and self._is_half(task_id):
                state[b"half of task %d" % task_id.partition] = b"is left"
        if process is not None and process != self._process() and not self._may_be_anothers:
            state[b"another process"] = b"has it"
        return state, number, number

    def verify(self) -> None:
        # After corruption at rest an unreadable ID is replaced by a new one. No state depends on the ID, and a process
        # with another ID is still assigned tasks.
        self._may_be_anothers = True

    def wipe(self) -> None:
        with translated_system_errors(self.path):
            shutil.rmtree(self.path)

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        task_id = _task_of(offsets[COMMITS])
        lock = self._state.lock(task_id, self)
        try:
            if not is_complete(self._store(task_id)):
                self._make_store(self._store(task_id))
            self._checkpoint(task_id).write({**offsets, _PROCESS: self._process()})
            if len(self._state.tasks()) > 1:
                self._state.clean(_AT_ONCE_S)
        finally:
            lock.release()

    def _process(self) -> int:
        """Return the part of the directory's ID that fits into an offset."""
        return self._state.process_id().int % 2**31

    @staticmethod
    def _make_store(store: Path) -> None:
        wipe(store)
        with translated_system_errors(store):
            make_folder(store)
            lock = take(store / "lock")
            try:
                create(store, "made up", lambda folder: (folder / "data").mkdir())
            finally:
                os.close(lock)

    def _last(self) -> dict[TopicPartition, int]:
        """Return the offsets in the checkpoint file of the last task that is complete."""
        tasks = self._state.tasks()
        for task_id in reversed(tasks):
            if self._is_whole(task_id):
                return self._checkpoint(task_id).read()
        if any(task_id > _task_of(0) and self._has_store(task_id) for task_id in tasks):
            # A task's folder is removed after the next one has a checkpoint. So no offset belongs to the store of the
            # next task any more, and a task would restore that store.
            raise TaskCorruptedError(f"no store in {self.path} has an offset that belongs to it")
        return {}

    def _is_half(self, task_id: TaskId) -> bool:
        try:
            return not self._is_whole(task_id)
        except StoreCorruptedError:
            return True

    def _is_whole(self, task_id: TaskId) -> bool:
        return self._has_store(task_id) and bool(self._checkpoint(task_id).read())

    def _has_store(self, task_id: TaskId) -> bool:
        store = self._store(task_id)
        if not is_complete(store):
            return False
        # Opening a store reads its identity first.
        read_identity(store)
        return True

    def _store(self, task_id: TaskId) -> Path:
        return self._state.store_folder(task_id, "lmdb", _STORE)

    def _checkpoint(self, task_id: TaskId) -> CheckpointFile:
        return CheckpointFile(self._state.folder(task_id) / ".checkpoint")


def _task_of(number: int) -> TaskId:
    return TaskId(0, number // _TASK_EVERY)
