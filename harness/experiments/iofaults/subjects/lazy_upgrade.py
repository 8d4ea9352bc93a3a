"""A plain store that is opened as a timestamped store after some commits, and upgraded by its reads and writes.

Each commit upgrades some records by lookups, beside those that it writes. The store is reopened repeatedly. It is
split into an old and a new part for some openings, and in one part again after its last old record has gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiments.iofaults.subjects.subject import COMMITS, StoreSubject
from harness.experiments.iofaults.workload import Change, State
from stores.changelog.interface import Record
from stores.interface import Durability, IsolationLevel
from stores.records import BYTES, TimestampedKeyValue
from stores.records.timestamped import TimestampedKeyValueStore

_BACKENDS: Mapping[Durability, str] = {
    Durability.CHANGELOG: "rocksdb-indexed-batch",
    Durability.PROCESS: "sqlite-indexed-batch",
    Durability.DISK: "lmdb-indexed-batch",
}
"""One backend for each engine that keeps two formats apart. DISK, where most trials run, has the fastest."""
_KIND = TimestampedKeyValue(BYTES, BYTES)
_PLAIN_COMMITS = 4
_MOVED_PER_COMMIT = 6


class LazyUpgradeSubject(StoreSubject):
    """The store is plain up to its fourth commit. It is reopened after the fourth and every ninth after it."""

    REOPENED_FROM = 4

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, _BACKENDS[level])
        self._timed: TimestampedKeyValueStore[bytes, bytes] | None = None

    def open(self) -> int | None:
        offset = super().open()
        reached = self._open.committed_offset(COMMITS) or 0
        self._timed = _KIND.over(self._open) if reached >= _PLAIN_COMMITS else None
        return offset

    def stage(self, made: Sequence[Change], after: State) -> None:
        self.reopen_where_due()
        timed = self._timed
        if timed is None:
            super().stage(made, after)
            return
        for change in made:
            if change.end is not None:
                timed.delete_range(change.key, change.end)
            elif change.value is None:
                timed.delete(change.key)
            else:
                timed.put(change.key, change.value, 1)
        with timed.all() as pairs:
            old = [key for key, found in pairs if found.timestamp_ms < 0]
        for key in old[:_MOVED_PER_COMMIT]:
            timed.get(key)

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        if self._timed is None:
            return super().read()
        committed = self._timed.read_only(IsolationLevel.READ_COMMITTED)
        with committed.all() as pairs:
            state = {key: found.value for key, found in pairs}
        for key, value in state.items():
            found = committed.get(key)
            if found is None or found.value != value:
                state[key] = b"a scan and a lookup differ"
        position = self._open.position(IsolationLevel.READ_COMMITTED).get(COMMITS)
        return state, self._open.committed_offset(COMMITS), position

    def close(self) -> None:
        self._timed = None
        super().close()

    def restore(self, state: State, number: int) -> None:
        if self._timed is None:
            super().restore(state, number)
            return
        self._neighbours.check()
        converter = _KIND.converter(self._open)
        pairs = [pair for key, value in state.items() for pair in converter.convert(Record(number, key, value, 1))]
        self._open.restore(pairs, {COMMITS: number})
