"""A store as the function of a task sees it: change-logging, typed, and in its present format."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, NoReturn, cast

from stores.batch.memory import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.changelog.interface import IsExpired, IsNeeded
from stores.forwarding import LoggedStore
from stores.interface import KeyValueStore, TopicPartition
from stores.records.record_kind import TypedStore
from stores.records.values import RecordStaging, Report, StagedWrite, Undoable, put_columns
from stores.tasks.column_records import bytes_of
from stores.tasks.context import TaskContext, not_processing
from stores.tasks.directory.task_files import StorePlan
from stores.tasks.memory_budget import WrittenBytes
from stores.tasks.record_undo import StoreUndo
from stores.tasks.stores.store_format import StoreFormat, history_of
from stores.tasks.stores.store_log import COALESCED_BYTES_MAX, CoalescingLog, HeldLog, StoreLog
from stores.tasks.stores.store_metrics import TaskStoreCounters

_REFUSED = (TypeError, ValueError)
"""The errors of a refused write: a store raises them before anything is staged."""
_COLUMNS = (list, ItemsView)
"""The pairs that are in memory already, so that they can be logged in columns."""


class RecordWrites:
    """A context of writes that stage: only while a record is processed, which has failed if one of them fails.

    A write that the store refused is not staged. Any other failed write may be staged in part and is not logged, so
    that the record must not be committed, even if the user's function catches the error.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        if not self._context._active:
            raise not_processing(self._context.task_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, _REFUSED):
            self._context._failure = error


class ChangeloggingStore(LoggedStore):
    """A change-logging store over ``inner``. It logs each write with the current record's timestamp.

    The task commits, rolls back, restores and closes the store: these calls raise StoreError here. So does a write
    while no record is being processed.
    """

    refusals: ClassVar[Mapping[str, str]] = {
        "commit": "is committed by its task: call context.commit() to request a commit",
        "rollback": "is rolled back by its task: raise an exception in the function for that",
        "restore": "is restored by its task: open the task again",
        "advance_position": "has the position of its task's input: leave out the call",
        "close": "is closed by its task: close the task",
    }

    def __init__(self, inner: KeyValueStore, log: StoreLog, context: TaskContext) -> None:
        super().__init__(inner)
        self._context = context
        self._staging = RecordWrites(context)
        # Writes to a store that is not transactional must not cause an early commit (KIP-892).
        self._written = context._written if inner.transactional else WrittenBytes()
        self._log = log if context._undo is None else HeldLog(log, context._undo)
        self._entry_bytes = PAIR_MEMORY_BYTES + log.entry_bytes
        self._undo = None if context._undo is None else StoreUndo(inner, context._undo, self._written)
        self.follow(inner)

    def follow(self, inner: KeyValueStore) -> None:
        """Continue over ``inner``, which is the same store, opened again."""
        self.inner = self._target = inner
        if self._undo is not None:
            self._undo.inner = inner
            # It has all writes of a store.
            self._target = cast(KeyValueStore, self._undo)

    def put(self, key: bytes, value: bytes | None) -> None:
        context = self._context
        if not context._active:
            raise not_processing(context.task_id)
        # Log after staging: a write that the store refuses is not logged. A write that is staged but not logged must
        # never be committed, even if the user's function catches the error.
        try:
            self._target.put(key, value)
        except _REFUSED:
            raise
        except BaseException as error:
            context._failure = error
            raise
        try:
            self._log.send(key, value, context.record.timestamp_ms)
        except BaseException as error:
            context._failure = error
            raise
        self._written.num_bytes += self._entry_bytes + (len(key) if value is None else len(key) + len(value))

    def _log_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        context, log = self._context, self._log
        timestamp_ms = context.record.timestamp_ms
        try:
            if isinstance(pairs, _COLUMNS):
                # The last write of a key counts. A dictionary makes no object for a pair.
                writes = dict(pairs)
                keys, values = list(writes), list(writes.values())
                log.send_columns(keys, values, [timestamp_ms] * len(keys))
                self._written.num_bytes += self._entry_bytes * len(keys) + bytes_of(keys, values)
                return
            for key, value in pairs:
                log.send(key, value, timestamp_ms)
                self._written.num_bytes += self._entry_bytes + (len(key) if value is None else len(key) + len(value))
        except BaseException as error:
            context._failure = error
            raise

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        super().delete_range(start, end)
        self._written.num_bytes += RANGE_MEMORY_BYTES + len(start or b"") + len(end or b"")

    def set_mark(self, name: str, value: bytes | None) -> None:
        """Set a mark like ``StateStore.set_mark``. The changelog has no marks: after a restore it must be set again."""
        with self._staging:
            self._target.set_mark(name, value)

    def put_with_marks(self, pairs: Iterable[tuple[bytes, bytes | None]], marks: Mapping[str, bytes | None]) -> None:
        """Set marks with writes like ``KeyValueStore.put_with_marks``, and log the writes."""
        writes = list(pairs)
        with self._staging:
            self._target.put_with_marks(writes, marks)
        self._log_all(writes)

    def advance_position(self, partition: TopicPartition, offset: int) -> NoReturn:
        self._refuse("advance_position")


class ChangeloggingStaging(RecordStaging):
    """A staging over a ``ChangeloggingStore``. Timestamps are those of the record that the task processes."""

    def __init__(self, store: ChangeloggingStore, context: TaskContext) -> None:
        self.store = store
        self._logged = store
        self._context = context

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        context, store = self._context, self._logged
        with store._staging:
            store._target.put(key, kept)
        try:
            store._log.send(log_key, log_value, context.record.timestamp_ms if timestamp_ms is None else timestamp_ms)
        except BaseException as error:
            context._failure = error
            raise
        store._written.num_bytes += store._entry_bytes + (len(key) if kept is None else len(key) + len(kept))

    def put_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        put_columns(self._logged, keys, values)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        context, store = self._context, self._logged
        keys, kept, *_ = zip(*writes, strict=True) if writes else ((), ())
        pairs = list(zip(keys, kept, strict=True))
        with store._staging:
            if marks:
                store._target.put_with_marks(pairs, marks)
            else:
                store._target.put_all(pairs)
        record_ms = context.record.timestamp_ms
        try:
            logged = [write for write in writes if write.log_key is not None]
            if logged:
                _, _, log_keys, log_values, times_ms = zip(*logged, strict=True)
                own_ms = [record_ms if timestamp_ms is None else timestamp_ms for timestamp_ms in times_ms]
                store._log.send_columns(log_keys, log_values, own_ms)
            entries_bytes = PAIR_MEMORY_BYTES * (len(writes) - len(logged)) + store._entry_bytes * len(logged)
            store._written.num_bytes += entries_bytes + bytes_of(keys, kept)
        except BaseException as error:
            context._failure = error
            raise

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        store = self._logged
        if logged:
            store.delete_range(start, end)
            return
        with store._staging:
            store._target.delete_range(start, end)
        store._written.num_bytes += RANGE_MEMORY_BYTES + len(start or b"") + len(end or b"")

    def report(self, reports: Callable[[], Iterator[Report]]) -> None:
        self._context._reports[self.store.name] = reports

    def changes(self, part: Undoable) -> None:
        undo = self._context._undo
        if undo is not None and undo.active:
            undo.changed(part)
        else:
            part.forget()

    @property
    def may_stage(self) -> bool:
        return self._context._active

    @property
    def timestamp_ms(self) -> int:
        return self._context.record.timestamp_ms


class StoreProxy:
    """A proxy that looks up attributes in what ``present`` returns then: references stay valid after a swap."""

    def __init__(self, present: Callable[[], Any]) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)


class ShownStore:
    """The layers between an open store and the function: its changelog records, and its typed store."""

    log: StoreLog
    """The changelog records of the open transaction. It exists once the store is shown."""

    def __init__(self, plan: StorePlan, form: StoreFormat, counters: TaskStoreCounters) -> None:
        self._partition, self._config, self._format, self._counters = plan.partition, plan.config, form, counters
        self.is_expired: IsExpired | None = None
        """The test for an expired changelog record; None if that is unknown, or records never expire."""
        self.is_needed: IsNeeded | None = None
        """The test for a changelog record that another one of its key follows; None if a restore needs no such one."""
        self._context: TaskContext
        self._logged: ChangeloggingStore | None = None
        self._typed: TypedStore | None = None
        self._shown: Any = None
        """The store as the function sees it; ``_shown_at`` is ``format.swaps`` of that time."""
        self._shown_at = 0

    def show(self, store: KeyValueStore, context: TaskContext) -> Any:
        """Return ``store`` as the function of ``context`` sees it."""
        self._context = context
        self._show(store)
        return StoreProxy(lambda: self._shown) if self._format.may_swap else self._shown

    def _show(self, store: KeyValueStore) -> None:
        context, form = self._context, self._format
        history_ms = history_of(self._config)
        parts = None if form.records is None else form.records.log_parts
        if self._config.changelog_coalescing and history_ms is None:
            limit = self._config.staged_max_bytes
            held_bytes = COALESCED_BYTES_MAX if limit == -1 else min(COALESCED_BYTES_MAX, limit)
            self.log = CoalescingLog(self._partition, context, form.headers, parts, held_bytes)
        else:
            self.log = StoreLog(self._partition, context, form.headers, parts)
        self._counters.log = self.log
        self._logged = ChangeloggingStore(store, self.log, context)
        records, self._typed = form.records, None
        if history_ms is not None:
            self.is_needed = lambda key, time_ms: True
        view: Any = self._logged
        if records is not None:
            view = self._typed = records.staged(ChangeloggingStaging(self._logged, context))
            if self._config.upgrade is None:
                # With an upgrade the changelog may have records of another format, whose expiry is unknown.
                self.is_expired = records.expired_records(self._logged)
                self.is_needed = records.needed_records(self._logged)
            self._counters.typed = self._typed
        self._shown, self._shown_at = form.shown(view), form.swaps

    def follow(self, store: KeyValueStore) -> None:
        """Continue over ``store``, which was opened again, maybe in another format. Do nothing if none is shown yet."""
        if self._logged is None:
            return
        if self._format.swaps == self._shown_at:
            self._logged.follow(store)
        else:
            # The object that was shown before keeps the closed store.
            self._show(store)
            self.log.begin()

    def before_commit(self) -> None:
        """Let a typed store make a bounded step of expiry."""
        if self._typed is not None:
            self._typed._before_commit()
