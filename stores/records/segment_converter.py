"""Conversion of changelog records of a window or session store to pairs in its segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore
from stores.records.converters import LoggedRecord, RecordConverter
from stores.records.data_marks import marks_of, pairs_of
from stores.records.escaped_keys import packed
from stores.records.expiry import STREAM_TIME, stream_time_ms
from stores.records.retention import Retention
from stores.records.segment_marks import SEQUENCE, number
from stores.records.segment_values import SegmentValues


class LoggedKeys(Protocol):
    """The interface of keys to a converter: see ``WindowKeys`` and ``SessionKeys``."""

    def is_logged(self, key: bytes, /) -> bool:
        """Return True if ``key`` is one that the store logs."""

    def time(self, logged: bytes, /) -> int:
        """Return the time that determines the segment."""

    def sequence(self, logged: bytes, /) -> int:
        """Return the number of a duplicate."""


class SegmentConverter(RecordConverter):
    """A converter that puts each record into its segment, and leaves out records older than the retention.

    It decides by the stream time up to that record, as when it was written. It begins with the marks of ``store``.

    Raises: StoreIncompatibleError for a record that is not of a store of this kind.
    """

    def __init__(
        self, store: KeyValueStore, retention: Retention, keys: LoggedKeys, values: SegmentValues, *, sequenced: bool
    ) -> None:
        self._name, self._keeps_marks = store.name, store.keeps_marks
        marks = marks_of(store)
        self._retention, self._keys, self._values, self._sequenced = retention, keys, values, sequenced
        self._stream_time, self._next = stream_time_ms(marks.mark), number(marks, SEQUENCE)

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, data, keys = record.key, record.value, self._keys
        if key is None:
            return ()
        if not keys.is_logged(key):
            raise StoreIncompatibleError(
                f"the changelog of store {self._name!r} has a record under key {key!r}, which is not of a "
                "store of this kind: use the kind that logged it, or another changelog"
            )
        time_ms = keys.time(key)
        if time_ms <= self._stream_time - self._retention.retention_ms:
            return ()
        self._stream_time = max(self._stream_time, time_ms)
        self._next = max(self._next, keys.sequence(key) + 1)
        segment = self._retention.segment(time_ms)
        kept = None if data is None else self._values.kept(data, record.timestamp_ms, segment)
        pair = packed(segment) + key, kept
        return (pair,) if self._keeps_marks else (pair, *pairs_of(self.marks()))

    def marks(self) -> Mapping[str, bytes | None]:
        marks: dict[str, bytes | None] = {}
        if self._stream_time >= 0:
            marks[STREAM_TIME] = packed(self._stream_time)
        if self._sequenced:
            marks[SEQUENCE] = packed(self._next)
        return marks
