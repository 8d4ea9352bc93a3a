"""A stream task: an embedded changelog, two stores below it, a checkpoint file, and the folder of it all.

The changelog keeps what the level says, the stores nothing by themselves: whatever becomes of them, opening the task
must end with what the changelog has.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.sweeps.subjects.subject import COMMITS, Subject
from harness.sweeps.workload import Change, State
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreError
from stores.files import make_folder, system_errors_told
from stores.interface import Durability
from stores.registry import backends
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId

_APPLICATION = "victim"


class TaskSubject(Subject):
    """Each commit is one input record, upon which the task makes the same changes in all of its stores."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._stores = {name: StoreConfig(name, Durability.CHANGELOG) for name in _kept_in()}
        self._log: SqliteChangelog | None = None
        self._task: StreamTask | None = None
        self._made: Sequence[Change] = ()
        self._verifies = False

    def open(self) -> int | None:
        with system_errors_told(self.path):
            make_folder(self.path)
        self._log = SqliteChangelog(self.path / "log", self.level)
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
        )
        self._task.open()
        return self._number()

    def stage(self, made: Sequence[Change], after: State) -> None:
        assert self._task is not None
        self._made = made
        self._task.process(COMMITS, Record(self._number(), b"commit", None))

    def _process(self, record: Record, context: TaskContext) -> None:
        for name in self._stores:
            store = context.store(name)
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
        self._task.process(COMMITS, Record(number - 1, b"commit", None))
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


def _kept_in() -> list[str]:
    """The first persistent backend that keeps uncommitted writes nowhere apart, and the last that does."""
    kinds = {name: backend.transactional for name, backend in backends().items() if backend.persistent}
    return [next(name for name in kinds if not kinds[name]), next(name for name in reversed(kinds) if kinds[name])]
