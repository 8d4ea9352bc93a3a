"""The embedded changelog."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiments.iofaults.subjects.neighbours import Neighbours
from harness.experiments.iofaults.subjects.subject import COMMITS, Subject
from harness.experiments.iofaults.workload import Change, State
from stores.changelog.interface import Producer
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogError, StoreError
from stores.interface import Durability, TopicPartition

_BESIDE = ("-wal", "-shm", "-journal")


class ChangelogSubject(Subject):
    """The changelog: each commit is a transaction of the records that lead from one state to the next."""

    _LOG = TopicPartition("log", 0)
    _GROUP = "writer"

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._log: SqliteChangelog | None = None
        self._producer: Producer | None = None
        self._neighbours = Neighbours(self.path)

    def open(self) -> int | None:
        # Each commit compacts the log, if a record can be removed.
        self._log = SqliteChangelog(self.path, self.level, dirty_ratio=0, compact_from_records=1)
        self._log.create_topic(self._LOG.topic)
        self._producer = self._log.producer("writer")
        return self._number()

    def stage(self, made: Sequence[Change], after: State) -> None:
        before = self.read()[0]
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        self._send({key: after.get(key) for key in keys})

    def _send(self, records: Mapping[bytes, bytes | None]) -> None:
        assert self._producer is not None
        self._producer.begin()
        for key, value in records.items():
            self._producer.send(self._LOG, key, value)

    def add(self, pairs: State, number: int) -> None:
        self._send(pairs)
        self.commit(number)

    def commit(self, number: int) -> None:
        assert self._producer is not None
        self._producer.send_offsets(self._GROUP, {COMMITS: number})
        self._producer.commit()
        assert self._log is not None
        self._log.compact_step(self._LOG)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        assert self._log is not None
        state: dict[bytes, bytes] = {}
        for record in self._log.read(self._LOG):
            assert record.key is not None
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state, self._number(), self._number()

    def verify(self) -> None:
        assert self._log is not None
        self._log.verify()

    def close(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    def wipe(self) -> None:
        self._neighbours.place()
        for file in (self.path, *(self.path.with_name(self.path.name + end) for end in _BESIDE)):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)

    def restore(self, state: State, number: int) -> None:
        self._neighbours.check()
        self.stage((), state)
        self.commit(number)

    def must_reopen(self, error: StoreError) -> bool:
        # After an error the outcome is read by opening a new producer.
        return isinstance(error, ChangelogError) or super().must_reopen(error)

    def _number(self) -> int:
        assert self._log is not None
        return self._log.committed_offsets(self._GROUP).get(COMMITS, 0)
