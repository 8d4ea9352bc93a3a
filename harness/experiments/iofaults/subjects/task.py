"""Stream tasks: an embedded changelog, stores of two engines, a checkpoint file, and their folder.

The changelog has the case's durability level, or PROCESS at CHANGELOG, which it does not support. The stores of the
second engine have the case's level, those of the first CHANGELOG. Each engine has one store of bytes. The first engine
also has windows, the second sessions, and some of their records expire with each commit. After any fault, opening the
task must lead to the state of the changelog. The first store gets more records per commit than the second, so that
their changelogs' offsets differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.experiments.iofaults.subjects.subject import COMMITS, Subject, under_pressure
from harness.experiments.iofaults.workload import (
    NUMBER_KEY,
    PASSING_KINDS,
    Change,
    State,
    passing_changes,
    passing_place,
    with_passing,
)
from harness.typed_maps import PLAIN, as_map, record_kind
from stores.changelog.interface import Record
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import StoreError
from stores.files.plain_files import make_folder, translated_system_errors
from stores.interface import Durability
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId

PAIRS: Mapping[str, tuple[str, str]] = {
    "stream-task": ("rocksdb-direct", "sqlite-native"),
    "task-rocksdb-lmdb": ("rocksdb-indexed-batch", "lmdb-native"),
    "task-dual-sqlite": ("rocksdb-dual-store", "sqlite-indexed-batch"),
    "task-lmdb-sqlite": ("lmdb-indexed-batch", "sqlite-native"),
}
"""The backends of the stores, by the task's name: each engine and strategy beside another engine."""
_APPLICATION = "writer"
_PASSING_KEY = b"passing"


class TaskSubject(Subject):
    """Each commit is one input record. For it the task makes the same changes in all of its stores."""

    def __init__(self, root: Path, level: Durability, backends: tuple[str, str]) -> None:
        super().__init__(root, level)
        self._log_level = max(level, Durability.PROCESS, key=list(Durability).index)
        kept = dict(zip(backends, (Durability.CHANGELOG, level), strict=True))
        plain = {name: StoreConfig(name, kept[name], options=under_pressure(name)) for name in backends}
        self._kinds = {
            **dict.fromkeys(backends, PLAIN),
            **{f"{kind}s": kind for kind in PASSING_KINDS},
        }
        self._stores = {
            **plain,
            **{
                f"{kind}s": replace(plain[name], records=record_kind(kind))
                for kind, name in zip(PASSING_KINDS, backends, strict=True)
            },
        }
        self._log: SqliteChangelog | None = None
        self._task: StreamTask | None = None
        self._made: Sequence[Change] = ()
        self._passing: State = {}
        """The additional pairs for stores with a retention."""
        self._verifies = False

    def open(self) -> int | None:
        with translated_system_errors(self.path):
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
        """Return further arguments for the task."""
        return {}

    def _timestamp_ms(self, number: int) -> int:
        """Return the timestamp of the record at offset ``number``."""
        return -1

    def stage(self, made: Sequence[Change], after: State) -> None:
        assert self._task is not None
        self._made, self._passing = made, passing_changes(int(after[NUMBER_KEY]))
        number = self._number()
        self._task.process(COMMITS, Record(number, b"commit", b"number", self._timestamp_ms(number)))

    def _process(self, record: Record, context: TaskContext) -> None:
        for number, (name, store) in enumerate(self._maps(context.store).items()):
            if not number:
                store.put(_PASSING_KEY, record.value)
                store.put(_PASSING_KEY, None)
            if self._kinds[name] in PASSING_KINDS:
                store.put_all(self._passing.items())
            for change in self._made:
                if change.end is not None:
                    store.delete_range(change.key, change.end)
                else:
                    store.put(change.key, change.value)

    def _maps(self, store: Callable[[str], Any]) -> dict[str, Any]:
        """Return each store as a map, by its name; ``store`` returns the store of a name."""
        return {name: as_map(kind, store(name), passing_place) for name, kind in self._kinds.items()}

    def commit(self, number: int) -> None:
        assert self._task is not None
        self._task.commit()

    def add(self, pairs: State, number: int) -> None:
        self._add(pairs, {}, number)

    def _add(self, pairs: State, passing: State, number: int) -> None:
        assert self._task is not None
        self._made, self._passing = [Change(key, value) for key, value in pairs.items()], passing
        self._task.process(COMMITS, Record(number - 1, b"commit", b"number"))
        self.commit(number)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        assert self._task is not None
        states: list[dict[bytes, bytes]] = []
        passed: list[dict[bytes, bytes]] = []
        for name, store in self._maps(self._task.store).items():
            with store.all() as pairs:
                (passed if self._kinds[name] in PASSING_KINDS else states).append(dict(pairs))
        state = dict(states[0])
        expected = with_passing(state)
        for key in {key for other in passed for key in {**other, **expected} if other.get(key) != expected.get(key)}:
            state[key] = b"a typed store differs"
        for key in {key for other in states for key in other if other.get(key) != state.get(key)}:
            # If the stores differ, make a state that equals no model.
            state[key] = b"two stores differ"
        return state, self._number(), self._number()

    def verify(self) -> None:
        assert self._log is not None
        self._log.verify()
        # A task restores its corrupt stores itself.
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
        # A task wipes its stores itself, so this error means that the changelog is corrupt.
        shutil.rmtree(self.path, ignore_errors=True)

    def restore(self, state: State, number: int) -> None:
        self._add(state, {key: value for key, value in with_passing(state).items() if key not in state}, number)

    def must_reopen(self, error: StoreError) -> bool:
        # The staged writes were rolled back.
        return True

    def _number(self) -> int:
        assert self._log is not None
        return self._log.committed_offsets(_APPLICATION).get(COMMITS, 0)
