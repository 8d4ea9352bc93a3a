"""The changelogs: the embedded one, and the changelog of files, with the checkpoint of the query that writes to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from secrets import token_hex

from harness.experiments.iofaults.subjects.subject import COMMITS, Neighbours, Subject
from harness.experiments.iofaults.workload import IoChange, State
from stores.changelog.files import Header, PartitionLog, Retention, StoreChanges, VersionLog
from stores.changelog.interface import Producer
from stores.changelog.sqlite import SqliteChangelog
from stores.errors import ChangelogError, ChangelogLostError, StoreError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.interface import Durability, TopicPartition
from stores.tasks.directory.entry_files import CheckpointFile

_BESIDE = ("-wal", "-shm", "-journal")


class LoggedSubject(Subject):
    """A log of the changes that lead from one state to the next. It has neighbours when it is wiped and restored."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self.neighbours = Neighbours(self.path)

    def restore(self, state: State, number: int) -> None:
        self.neighbours.check()
        super().restore(state, number)

    def changed(self, after: State) -> dict[bytes, bytes | None]:
        """Return the changes from the present state to the state ``after``, by key; None removes it."""
        before = self.read()[0]
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return {key: after.get(key) for key in keys}


def replayed(changes: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    """Return the state to which ``changes`` lead; None removes a key."""
    state: dict[bytes, bytes] = {}
    for key, value in changes:
        assert key is not None
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


class ChangelogSubject(LoggedSubject):
    """The changelog: each commit is a transaction of the records that lead from one state to the next."""

    _LOG = TopicPartition("log", 0)
    _GROUP = "writer"
    _log: SqliteChangelog
    _producer: Producer

    def open(self) -> int | None:
        # Each commit compacts the log, if a record can be removed.
        self._log = SqliteChangelog(self.path, self.level, dirty_ratio=0, compact_from_records=1)
        self.closing.callback(self._log.close)
        self._log.create_topic(self._LOG.topic)
        self._producer = self._log.producer("writer")
        return self._number()

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        changed = self.changed(after)
        self._producer.begin()
        for key, value in changed.items():
            self._producer.send(self._LOG, key, value)

    def commit(self, number: int) -> None:
        self._producer.send_offsets(self._GROUP, {COMMITS: number})
        self._producer.commit()
        self._log.compact_step(self._LOG)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state = replayed((record.key, record.value) for record in self._log.read(self._LOG))
        return state, self._number(), self._number()

    def verify(self) -> None:
        self._log.verify()

    def wipe(self) -> None:
        self.neighbours.place()
        for file in (self.path, *(self.path.with_name(self.path.name + end) for end in _BESIDE)):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)

    def must_reopen(self, error: StoreError) -> bool:
        # After an error the outcome is read by opening a new producer.
        return isinstance(error, ChangelogError) or super().must_reopen(error)

    def _number(self) -> int:
        return self._log.committed_offsets(self._GROUP).get(COMMITS, 0)


_STORE = "counts"
_LARGE_STORE = "large"
_LARGE = {b"%03d" % number: Random(number).randbytes(64) for number in range(600)}
"""The records of a store that only the first version changes. So most snapshots are the changes since a whole one."""
_RETENTION = Retention(snapshot_versions=3, keep_versions=2)
_ROWS_EVERY = 3
"""Every third commit gives out rows."""


class VersionLogSubject(LoggedSubject):
    """A partition of the log: commit N is version N. A state is what a restore from the log gives.

    The log cannot know that its newest version is missing. A query knows from its checkpoint how many batches it has
    done, and refuses such a log. Here a checkpoint file has the number of the last commit.
    """

    _log: PartitionLog

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._checkpoint = CheckpointFile(root / "checkpoint")
        self._staged: Mapping[bytes, bytes | None] = {}

    def open(self) -> int | None:
        self._log = VersionLog.open_or_create(self.path, {"partitions": 1}, retention=_RETENTION).partition(0)
        newest = self._newest()
        if newest:
            # A query reads this header before it builds on a version.
            self._log.header(newest)
        last_commit = self._checkpoint.read().get(COMMITS, 0)
        if newest < last_commit:
            raise ChangelogLostError(f"commit {last_commit} is done, and the newest version in {self.path} is {newest}")
        return newest

    def stage(self, made: Sequence[IoChange], after: State) -> None:
        self._staged = self.changed(after)

    def commit(self, number: int) -> None:
        import pyarrow as pa

        newest = self._newest()
        before = self._log.read(newest)[0].id if newest else None
        header = Header("version", token_hex(8), 0, number, newest or None, before)
        if number % _ROWS_EVERY == 0:
            rows = self._log.write_rows(replace(header, kind="rows"), pa.schema([("number", pa.int64())]))
            rows.write(pa.record_batch([pa.array([number], pa.int64())], names=["number"]))
            header = replace(header, rows=rows.finish(), num_rows=1)
        large = {} if newest else {_LARGE_STORE: StoreChanges(dict(_LARGE))}
        self._log.append(header, {_STORE: StoreChanges(dict(self._staged)), **large})
        # The version is in the log, so a query is done with it. Snapshots and removals have time.
        with suppress(StoreUnavailableError):
            self._maintain(header)
        self._checkpoint.write({COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        newest = self._newest()
        pieces = list(self._log.restore(None, newest)) if newest else []
        state, large = (
            replayed((key, value) for piece in pieces for store, _, key, value in piece.records if store == name)
            for name in (_STORE, _LARGE_STORE)
        )
        if newest and large != _LARGE:
            state[b"the large store"] = b"differs"
        return state, newest, newest

    def verify(self) -> None:
        newest = self._newest()
        if newest:
            for _ in self._log.read_rows(self._log.header(newest)):
                pass

    def wipe(self) -> None:
        self.neighbours.place()
        with translated_system_errors(self.path):
            if self.path.exists():
                shutil.rmtree(self.path)
            self._checkpoint.path.unlink(missing_ok=True)

    def _newest(self) -> int:
        """Return the newest version, 0 if there is none."""
        return self._log.listing().newest or 0

    def _maintain(self, header: Header) -> None:
        if self._log.snapshot_due(self._log.listing()):
            self._log.write_snapshot(replace(header, kind="snapshot", rows=None, num_rows=0), self._records())
        self._log.remove_old(self._log.listing())

    def _records(self) -> Iterator[tuple[str, bool, bytes, bytes | None]]:
        for key, value in sorted(self.read()[0].items()):
            yield _STORE, False, key, value
        for key, value in _LARGE.items():
            yield _LARGE_STORE, False, key, value
