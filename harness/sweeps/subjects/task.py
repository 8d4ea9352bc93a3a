"""Stream tasks: an embedded changelog, two stores of different engines below it, a checkpoint file, and their folder.

The changelog keeps what the level says, or PROCESS where that is CHANGELOG, which it can't be at; so does the second
store. The first store keeps nothing by itself. Whatever becomes of the two, opening the task must end with what the
changelog has. The first store is sent one record more per commit than the second, so that their changelogs' offsets
differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.sweeps.subjects.store import under_pressure
from harness.sweeps.subjects.subject import COMMITS, Subject
from harness.sweeps.workload import Change, State
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreError
from stores.files import make_folder, system_errors_told
from stores.interface import Durability
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId

PAIRS: Mapping[str, tuple[str, str]] = {
    "stream-task": ("rocksdb-direct", "sqlite-native"),
    "task-rocksdb-lmdb": ("rocksdb-indexed-batch", "lmdb-native"),
    "task-dual-sqlite": ("rocksdb-dual-store", "sqlite-indexed-batch"),
    "task-lmdb-sqlite": ("lmdb-indexed-batch", "sqlite-native"),
}
"""The backends of the two stores, by the task's name: each engine and strategy beside another engine."""
_APPLICATION = "victim"
_PASSING_KEY = b"passing"


class TaskSubject(Subject):
    """Each commit is one input record, upon which the task makes the same changes in both of its stores."""

    def __init__(self, root: Path, level: Durability, backends: tuple[str, str]) -> None:
        super().__init__(root, level)
        self._log_level = max(level, Durability.PROCESS, key=list(Durability).index)
        self._stores = {
            name: StoreConfig(name, kept, options=under_pressure(name))
            for name, kept in zip(backends, (Durability.CHANGELOG, level), strict=True)
        }
        self._log: SqliteChangelog | None = None
        self._task: StreamTask | None = None
        self._made: Sequence[Change] = ()
        self._verifies = False

    def open(self) -> int | None:
        with system_errors_told(self.path):
            make_folder(self.path)
        self._log = SqliteChangelog(self.path / "log", self._log_level)
        self._log.create_topic(COMMITS.topic)
        self._task = StreamTask(
            _APPLICATION,
            TaskId(0, COMMITS.partition),
            state_dir=self.path / "state",
            changelog=self._log,
            stores=self._stores,
            process=self._process,
            inputs=[COMMITS],
            commit_interval_ms=NO_INTERVAL,
            verify_stores=self._verifies,
            **self._settings(),
        )
        self._task.open()
        return self._number()

    def _settings(self) -> Mapping[str, Any]:
        """Further arguments for the task."""
        return {}

    def _timestamp_ms(self, number: int) -> int:
        """Of the record at offset ``number``."""
        return -1

    def stage(self, made: Sequence[Change], after: State) -> None:
        assert self._task is not None
        self._made = made
        number = self._number()
        self._task.process(COMMITS, Record(number, b"commit", b"number", self._timestamp_ms(number)))

    def _process(self, record: Record, context: TaskContext) -> None:
        for number, name in enumerate(self._stores):
            store = context.store(name)
            if not number:
                store.put(_PASSING_KEY, record.value)
                store.put(_PASSING_KEY, None)
            for change in self._made:
                if change.end is not None:
                    store.delete_range(change.key, change.end)
                else:
                    store.put(change.key, change.value)

    def commit(self, number: int) -> None:
        assert self._task is not None
        self._task.commit()

    def add(self, pairs: State, number: int) -> None:
        assert self._task is not None
        self._made = [Change(key, value) for key, value in pairs.items()]
        self._task.process(COMMITS, Record(number - 1, b"commit", b"number"))
        self.commit(number)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        assert self._task is not None
        states = []
        for name in self._stores:
            with self._task.store(name).all() as pairs:
                states.append(dict(pairs))
        state = states[0]
        for key in {key for other in states for key in other if other.get(key) != state.get(key)}:
            # Where the stores differ no model is to fit.
            state[key] = b"two stores differ"
        return state, self._number(), self._number()

    def verify(self) -> None:
        assert self._log is not None
        self._log.verify()
        # What is damaged of its stores it restores by itself.
        self._verifies = True
        self.close()
        self.open()

    def close(self) -> None:
        task, self._task = self._task, None
        log, self._log = self._log, None
        try:
            if task is not None:
                task.close()
        finally:
            if log is not None:
                log.close()

    def wipe(self) -> None:
        # Its stores a task wipes itself: what is told here is that the changelog is damaged.
        shutil.rmtree(self.path, ignore_errors=True)

    def restore(self, state: State, number: int) -> None:
        self.add(state, number)

    def must_reopen(self, error: StoreError) -> bool:
        # What was staged is undone.
        return True

    def _number(self) -> int:
        assert self._log is not None
        return self._log.committed_offsets(_APPLICATION).get(COMMITS, 0)
