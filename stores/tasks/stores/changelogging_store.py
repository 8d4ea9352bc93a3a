"""The change-logging store that a user's function gets: each write is staged in the store and sent to its changelog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

from stores.batch.buffer import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.contract.arguments import check_pairs
from stores.errors import StoreError
from stores.forwarding import ForwardingStore
from stores.interface import KeyValueStore, Position, TopicPartition
from stores.records.staging import RecordStaging, StagedWrite
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


class ChangeloggingStore(ForwardingStore):
    """A change-logging store over ``inner``. It logs each write with the current record's timestamp.

    The task commits, rolls back, restores and closes the store: these calls raise StoreError here. So does a write
    while no record is being processed.
    """

    def __init__(self, inner: KeyValueStore, log: WriteLog, context: TaskContext) -> None:
        super().__init__(inner)
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

    def put_all_kept(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None]) -> None:
        """Stage ``writes`` and ``marks`` in one step, or nothing if one is refused. Log those with a ``log_key``."""
        context, log = self._context, self._log
        self._check_active()
        pairs = [(write.key, write.kept) for write in writes]
        with self._staged_or_failed():
            if marks:
                self.inner.put_with_marks(pairs, marks)
            else:
                self.inner.put_all(pairs)
        record_ms = context.record.timestamp_ms
        try:
            for key, kept, log_key, log_value, timestamp_ms in writes:
                entry_bytes = PAIR_MEMORY_BYTES
                if log_key is not None:
                    log.send(log_key, log_value, record_ms if timestamp_ms is None else timestamp_ms)
                    entry_bytes = self._entry_bytes
                self._written.num_bytes += entry_bytes + (len(key) if kept is None else len(key) + len(kept))
        except BaseException as error:
            context.failure = error
            raise

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

    def set_mark(self, name: str, value: bytes | None) -> None:
        """Set a mark like ``StateStore.set_mark``. The changelog has no marks: after a restore it must be set again."""
        self._check_active()
        with self._staged_or_failed():
            self.inner.set_mark(name, value)

    def put_with_marks(self, pairs: Iterable[tuple[bytes, bytes | None]], marks: Mapping[str, bytes | None]) -> None:
        """Set marks with writes like ``KeyValueStore.put_with_marks``, and log the writes."""
        self.put_all_kept([StagedWrite(key, value, key, value) for key, value in pairs], marks)

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


class ChangeloggingStaging(RecordStaging):
    """A staging over a ``ChangeloggingStore``. Timestamps are those of the record that the task processes."""

    def __init__(self, store: ChangeloggingStore, context: TaskContext) -> None:
        self.store = store
        self._logged = store
        self._context = context

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self._logged.put_kept(key, kept, log_key, log_value, timestamp_ms)

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        self._logged.put_unlogged(key, kept)

    def delete_range_unlogged(self, start: bytes | None, end: bytes | None) -> None:
        self._logged.delete_range_unlogged(start, end)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        self._logged.put_all_kept(writes, marks or {})

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._logged.delete_range(start, end)

    @property
    def may_stage(self) -> bool:
        return self._context.active

    @property
    def timestamp_ms(self) -> int:
        return self._context.record.timestamp_ms
