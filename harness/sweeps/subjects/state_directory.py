"""A state directory: every sixth commit makes the folder of another task, and cleans away the one before it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.sweeps.subjects.checkpoint import CheckpointSubject
from harness.sweeps.subjects.subject import COMMITS
from harness.sweeps.workload import State
from stores.creation import counts, create, wipe
from stores.errors import StoreCorruptedError, TaskCorruptedError
from stores.files import make_folder, system_errors_told
from stores.identity import read_identity
from stores.interface import Durability, TopicPartition
from stores.locks import take
from stores.tasks import StateDirectory, TaskId
from stores.tasks.checkpoint import CheckpointFile

_STORE = "counts"
_PROCESS = TopicPartition("process", 0)
"""Its offset tells which id the directory had when the commit was made."""
_AT_ONCE_S = -1.0
_TASK_EVERY = 6


class StateDirectorySubject(CheckpointSubject):
    """A task has what looks like a store, and then a checkpoint file, which the commits up to the next task replace.

    Folders are there whole or not at all, but for the last one, which may still be in the making. The directory has an
    id, which never changes once it was told.
    """

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._state = StateDirectory(self.path)
        self._may_be_anothers = False

    def open(self) -> int | None:
        for task_id in self._state.tasks():
            # Whoever had it is dead.
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
        # Damaged at rest: no state hangs on the directory's id, and one that can't be read is drawn anew. A process of
        # another id is given tasks all the same.
        self._may_be_anothers = True

    def wipe(self) -> None:
        with system_errors_told(self.path):
            shutil.rmtree(self.path)

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        task_id = _task_of(offsets[COMMITS])
        lock = self._state.lock(task_id, self)
        try:
            if not counts(self._store(task_id)):
                self._make_store(self._store(task_id))
            self._checkpoint(task_id).write({**offsets, _PROCESS: self._process()})
            if len(self._state.tasks()) > 1:
                self._state.clean(_AT_ONCE_S)
        finally:
            lock.release()

    def _process(self) -> int:
        """What fits into an offset of the directory's id."""
        return self._state.process_id().int % 2**31

    @staticmethod
    def _make_store(store: Path) -> None:
        wipe(store)
        with system_errors_told(store):
            make_folder(store)
            lock = take(store / "lock")
            try:
                create(store, "made up", lambda folder: (folder / "data").mkdir())
            finally:
                os.close(lock)

    def _last(self) -> dict[TopicPartition, int]:
        """What the last task that is whole has in its checkpoint file."""
        tasks = self._state.tasks()
        for task_id in reversed(tasks):
            if self._is_whole(task_id):
                return self._checkpoint(task_id).read()
        if any(task_id > _task_of(0) and self._has_store(task_id) for task_id in tasks):
            # The one before it goes away once it has a checkpoint: no offset belongs to its store any more, upon which
            # a task restores that.
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
        if not counts(store):
            return False
        # An opening would look here first.
        read_identity(store)
        return True

    def _store(self, task_id: TaskId) -> Path:
        return self._state.store_folder(task_id, "lmdb", _STORE)

    def _checkpoint(self, task_id: TaskId) -> CheckpointFile:
        return CheckpointFile(self._state.folder(task_id) / ".checkpoint")


def _task_of(number: int) -> TaskId:
    return TaskId(0, number // _TASK_EVERY)
