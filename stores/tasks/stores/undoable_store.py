"""A change-logging store that can undo the writes of the current record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from stores.batch.buffer import PAIR_MEMORY_BYTES
from stores.contract.arguments import check_pairs
from stores.interface import KeyValueStore
from stores.records.staging import StagedWrite
from stores.tasks.context import TaskContext
from stores.tasks.record_undo import RecordUndo
from stores.tasks.stores.changelogging_store import ChangeloggingStore, WriteLog


class UndoableStore(ChangeloggingStore):
    """A ``ChangeloggingStore`` that reads the old value of each key before the record's first write of it.

    Outside of a record's function, in a punctuator or an expiry, it is the plain change-logging store.
    """

    def __init__(self, inner: KeyValueStore, log: WriteLog, context: TaskContext, undo: RecordUndo) -> None:
        super().__init__(inner, HeldLog(log, undo), context)
        self._undo = undo
        self._old: dict[bytes, bytes | None] = {}
        self._old_marks: dict[str, bytes | None] = {}

    def put_back(self) -> None:
        """Write the old values again. The changelog has none of the record's writes, so nothing is logged."""
        old = self._old
        if self._old_marks:
            self.inner.put_with_marks(old.items(), self._old_marks)
        else:
            self.inner.put_all(old.items())
        self._written.num_bytes += sum(PAIR_MEMORY_BYTES + len(key) + len(value or b"") for key, value in old.items())

    def forget(self) -> None:
        """Drop the old values."""
        self._old, self._old_marks = {}, {}

    def _save(self, key: bytes) -> None:
        # The store refuses other keys.
        if self._undo.active and type(key) is bytes and key not in self._old and 0 < len(key) <= self.max_key_bytes:
            self._note_change()
            self._old[key] = self.inner.get(key)

    def _save_range(self, start: bytes | None, end: bytes | None) -> None:
        if self._undo.active:
            self._note_change()
            with self.inner.range(start, end) as pairs:
                for key, value in pairs:
                    self._old.setdefault(key, value)

    def _note_change(self) -> None:
        if not self._old and not self._old_marks:
            self._undo.changed(self)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._save(key)
        super().put(key, value)

    def put_kept(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self._save(key)
        super().put_kept(key, kept, log_key, log_value, timestamp_ms)

    def put_all_kept(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None]) -> None:
        for write in writes:
            self._save(write.key)
        for name in marks:
            self._save_mark(name)
        super().put_all_kept(writes, marks)

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        self._save(key)
        super().put_unlogged(key, kept)

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_pairs(pairs)
        staged = list(pairs)
        for pair in staged:
            # The store refuses what is no pair.
            if type(pair) is tuple and len(pair) == 2:
                self._save(pair[0])
        super().put_all(staged)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        self._save(key)
        return super().put_if_absent(key, value)

    def delete(self, key: bytes) -> bytes | None:
        self._save(key)
        return super().delete(key)

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._save_range(start, end)
        super().delete_range(start, end)

    def delete_range_unlogged(self, start: bytes | None, end: bytes | None) -> None:
        self._save_range(start, end)
        super().delete_range_unlogged(start, end)

    def set_mark(self, name: str, value: bytes | None) -> None:
        self._save_mark(name)
        super().set_mark(name, value)

    def _save_mark(self, name: str) -> None:
        if self._undo.active and type(name) is str and name not in self._old_marks:
            self._note_change()
            self._old_marks[name] = self.inner.mark(name)


class HeldLog:
    """A log that holds the changelog records of a record until its function has returned."""

    def __init__(self, log: WriteLog, undo: RecordUndo) -> None:
        self._log, self._undo = log, undo

    @property
    def entry_bytes(self) -> int:
        """The most that a write adds to the memory of the log."""
        return self._log.entry_bytes

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises: as ``Producer.send``, unless it is held."""
        if self._undo.active:
            self._undo.hold(partial(self._log.send, key, value, timestamp_ms))
        else:
            self._log.send(key, value, timestamp_ms)
