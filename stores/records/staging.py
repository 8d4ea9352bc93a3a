"""The staging of a typed store: each write has a part for the store and a part for the changelog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stores.interface import KeyValueStore
from stores.records.values import SURROGATE_MS


class StagedWrite(NamedTuple):
    """A write. ``kept`` None deletes; ``log_value`` None is a tombstone; ``timestamp_ms`` None is the record's time.

    Without a ``log_key`` it is not logged: a record only moves within the store.
    """

    key: bytes
    kept: bytes | None
    log_key: bytes | None = None
    log_value: bytes | None = None
    timestamp_ms: int | None = None


class RecordStaging(ABC):
    """The interface through which one typed store writes to ``store``, and to its changelog if there is one.

    Raises, all methods: as ``KeyValueStore.put``, before anything is staged.
    """

    logs: bool = True
    """True if there is a changelog. Without one a typed store may write to ``store`` itself."""

    store: KeyValueStore
    """The store below, for lookups, scans and marks."""

    @property
    @abstractmethod
    def timestamp_ms(self) -> int:
        """The time of the current record, -1 outside of a task."""

    @property
    def may_stage(self) -> bool:
        """True if writes may be staged now. If not, a lookup does not move its record to the present format."""
        return True

    @abstractmethod
    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        """Stage ``kept`` under ``key``, and log ``log_value`` under ``log_key``. None deletes, and is a tombstone.

        ``timestamp_ms`` None is the time of the current record.
        """

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        """Stage a write without logging it, for a record that only moves within the store."""
        self.put_all([StagedWrite(key, kept)])

    @abstractmethod
    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        """Stage all writes and marks, or nothing if one of them is refused. The last write of a key wins.

        Readers of staged data see the writes in one step, and so do queries of ``with_mark`` the marks with them.
        """

    @abstractmethod
    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included, in one step.

        Each of them is logged, unless a restore leaves them out by itself, as expired ones: then ``logged`` is False.
        """


class StagingOver(RecordStaging):
    """A base of stagings that change what is staged by ``inner``."""

    def __init__(self, inner: RecordStaging) -> None:
        self.store, self.logs = inner.store, inner.logs
        self._inner = inner

    @property
    def timestamp_ms(self) -> int:
        return self._inner.timestamp_ms

    @property
    def may_stage(self) -> bool:
        return self._inner.may_stage


class StoreStaging(RecordStaging):
    """A staging without a task and without a changelog."""

    logs = False

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store

    @property
    def timestamp_ms(self) -> int:
        return SURROGATE_MS

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self.store.put(key, kept)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        pairs = [(write.key, write.kept) for write in writes]
        if marks:
            self.store.put_with_marks(pairs, marks)
        else:
            self.store.put_all(pairs)

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        self.store.delete_range(start, end)
