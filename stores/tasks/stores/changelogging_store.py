"""The change-logging store that a user's function gets: each write is staged in the store and sent to its changelog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

from stores.batch.buffer import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.contract.arguments import check_pairs
from stores.errors import StoreError
from stores.interface import (
    Durability,
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    Position,
    PositionBound,
    Recovery,
    TopicPartition,
)
from stores.metrics import StoreMetrics
from stores.tasks.context import TaskContext, not_processing
from stores.tasks.memory_budget import WrittenBytes

_REFUSED = (TypeError, ValueError)
"""The errors of a refused write: a store raises them before anything is staged."""


class WriteLog(Protocol):
    """The part of a store's changelog that its writes use."""

    @property
    def entry_bytes(self) -> int:
        """The most that a write adds to the memory of the log."""

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises: as ``Producer.send``."""


class ChangeloggingStore(KeyValueStore):
    """A change-logging store over ``inner``. It logs each write with the current record's timestamp.

    The task commits, rolls back, restores and closes the store: these calls raise StoreError here. So does a write
    while no record is being processed.
    """

    def __init__(self, inner: KeyValueStore, log: WriteLog, context: TaskContext) -> None:
        self.inner = inner
        """The store below. The task replaces it when it opens the store again."""
        self._log = log
        self._context = context
        # Writes to a store that is not transactional must not cause an early commit (KIP-892).
        self._written = context.written if inner.transactional else WrittenBytes()
        self._entry_bytes = PAIR_MEMORY_BYTES + log.entry_bytes

    def put(self, key: bytes, value: bytes | None) -> None:
        context = self._context
        if not context.active:
            raise not_processing(context.task_id)
        # Log after staging: a write that the store refuses is not logged. A write that is staged but not logged must
        # never be committed, even if the user's function catches the error.
        try:
            self.inner.put(key, value)
        except _REFUSED:
            raise
        except BaseException as error:
            context.failure = error
            raise
        try:
            self._log.send(key, value, context.record.timestamp_ms)
        except BaseException as error:
            context.failure = error
            raise
        self._written.num_bytes += self._entry_bytes + (len(key) if value is None else len(key) + len(value))

    def put_kept(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        """Stage ``kept`` under ``key``, and log ``log_value`` under ``log_key`` with ``timestamp_ms``.

        If ``timestamp_ms`` is None, the record has the current record's timestamp. None as ``kept`` deletes; None as
        ``log_value`` logs a tombstone.
        """
        context = self._context
        self._check_active()
        with self._staged_or_failed():
            self.inner.put(key, kept)
        try:
            self._log.send(log_key, log_value, context.record.timestamp_ms if timestamp_ms is None else timestamp_ms)
        except BaseException as error:
            context.failure = error
            raise
        self._written.num_bytes += self._entry_bytes + (len(key) if kept is None else len(key) + len(kept))

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        """Stage ``kept`` under ``key`` and log nothing: a restore derives the same write from the changelog."""
        self._check_active()
        with self._staged_or_failed():
            self.inner.put(key, kept)
        self._written.num_bytes += PAIR_MEMORY_BYTES + (len(key) if kept is None else len(key) + len(kept))

    def delete_range_unlogged(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of a range and log nothing: a restore leaves these keys out as well."""
        self._check_active()
        with self._staged_or_failed():
            self.inner.delete_range(start, end)
        self._written.num_bytes += RANGE_MEMORY_BYTES + len(start or b"") + len(end or b"")

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_pairs(pairs)
        staged = list(pairs)
        self._check_active()
        with self._staged_or_failed():
            self.inner.put_all(staged)
        self._log_all(staged)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        self._check_active()
        with self._staged_or_failed():
            existing = self.inner.put_if_absent(key, value)
        if existing is None:
            self._log_all([(key, value)])
        return existing

    def delete(self, key: bytes) -> bytes | None:
        self._check_active()
        with self._staged_or_failed():
            existing = self.inner.delete(key)
        self._log_all([(key, None)])
        return existing

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._check_active()
        with self.inner.range(start, end) as doomed:  # a snapshot: it still has the pairs after their removal
            with self._staged_or_failed():
                self.inner.delete_range(start, end)
            self._written.num_bytes += RANGE_MEMORY_BYTES + len(start or b"") + len(end or b"")
            self._log_all((key, None) for key, _ in doomed)

    @contextmanager
    def _staged_or_failed(self) -> Iterator[None]:
        """Mark the record as failed if the block fails, unless the store refused the write.

        A failed write may be staged in part and is not logged, so that the record must not be committed.
        """
        try:
            yield
        except _REFUSED:
            raise
        except BaseException as error:
            self._context.failure = error
            raise

    def _log_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        context, log = self._context, self._log
        timestamp_ms = context.record.timestamp_ms
        try:
            for key, value in pairs:
                log.send(key, value, timestamp_ms)
                self._written.num_bytes += self._entry_bytes + (len(key) if value is None else len(key) + len(value))
        except BaseException as error:
            context.failure = error
            raise

    def _check_active(self) -> None:
        if not self._context.active:
            raise not_processing(self._context.task_id)

    def get(self, key: bytes) -> bytes | None:
        return self.inner.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.inner.get_many(keys)

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.inner.range(start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self.inner.reverse_range(start, end)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self.inner.range_many(bounds, reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.inner.prefix_scan(prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self.inner.reverse_prefix_scan(prefix)

    def approximate_num_entries(self) -> int:
        return self.inner.approximate_num_entries()

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> KeyValueView:
        return self.inner.read_only(isolation_level, bound)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def backend(self) -> str:
        return self.inner.backend

    @property
    def durability(self) -> Durability:
        return self.inner.durability

    @property
    def persistent(self) -> bool:
        return self.inner.persistent

    @property
    def transactional(self) -> bool:
        return self.inner.transactional

    @property
    def manages_offsets(self) -> bool:
        return self.inner.manages_offsets

    @property
    def takes_timestamps(self) -> bool:
        return self.inner.takes_timestamps

    @property
    def keeps_marks(self) -> bool:
        return self.inner.keeps_marks

    def mark(self, name: str) -> bytes | None:
        return self.inner.mark(name)

    def set_mark(self, name: str, value: bytes | None) -> None:
        """Set a mark like ``StateStore.set_mark``. The changelog has no marks: after a restore it must be set again."""
        self._check_active()
        with self._staged_or_failed():
            self.inner.set_mark(name, value)

    @property
    def deletes_ranges_whole(self) -> bool:
        return self.inner.deletes_ranges_whole

    @property
    def is_split(self) -> bool:
        return self.inner.is_split

    @property
    def is_open(self) -> bool:
        return self.inner.is_open

    @property
    def max_key_bytes(self) -> int:
        return self.inner.max_key_bytes

    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self.inner.committed_offset(partition)

    def approximate_num_uncommitted_bytes(self) -> int:
        return self.inner.approximate_num_uncommitted_bytes()

    def uncommitted_memory_bytes(self) -> int:
        return self.inner.uncommitted_memory_bytes()

    def position(self, isolation_level: IsolationLevel) -> Position:
        return self.inner.position(isolation_level)

    @property
    def metrics(self) -> StoreMetrics:
        return self.inner.metrics

    def engine_metrics(self) -> Mapping[str, int]:
        return self.inner.engine_metrics()

    def verify(self) -> None:
        self.inner.verify()

    def recover(self, changelog_offsets: Mapping[TopicPartition, int] | None = None) -> Recovery:
        return self.inner.recover(changelog_offsets)

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> NoReturn:
        """Refuse the commit: a store that commits by itself would lead its changelog.

        Source: KIP-892, ``StateStore#commit``.
        """
        raise StoreError(f"store {self.name!r} is committed by its task: call context.commit() to request a commit")

    def rollback(self) -> NoReturn:
        raise StoreError(f"store {self.name!r} is rolled back by its task: raise an exception in the function for that")

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> NoReturn:
        raise StoreError(f"store {self.name!r} is restored by its task: open the task again")

    def advance_position(self, partition: TopicPartition, offset: int) -> NoReturn:
        raise StoreError(f"the position of store {self.name!r} follows its task's input: leave out the call")

    def close(self) -> NoReturn:
        raise StoreError(f"store {self.name!r} is closed by its task: close the task")
