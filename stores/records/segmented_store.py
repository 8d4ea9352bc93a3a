"""The common part of window and session stores: scans, stream time, late records and dropped segments."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Generic, TypeVar

from stores.interface import KeyValueStore, KeyValueView
from stores.records.codec import Codec
from stores.records.data_marks import mark_setter, marks_of, pair_key
from stores.records.expiry import STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.record_kind import TypedStore, TypedView
from stores.records.retention import RecordRetention
from stores.records.segment_keys import escaped, packed
from stores.records.segment_scans import LiveScans, SegmentScans
from stores.records.segment_values import (
    DROPPED,
    OLD_SEGMENTS,
    SEQUENCE,
    SegmentValues,
    mark_of,
    number,
    runs_of,
    runs_without,
)
from stores.records.segmented_kind import SegmentedKind
from stores.records.staging import RecordStaging, StagedWrite

K = TypeVar("K")
V = TypeVar("V")
_LOG = logging.getLogger(__name__)
_TOLD_EVERY = 10_000
"""One of this number of late records causes a warning, always the first one."""
_STEP_RECORDS = 1_000
"""The number of expired records that a commit drops, or twice its number of writes if that is more. So a commit takes
little longer, and expired records do not pile up."""


class SegmentWrites:
    """The writer of one store."""

    def __init__(self, staging: RecordStaging, retention: RecordRetention, values: SegmentValues) -> None:
        self._staging, self._store = staging, staging.store
        self._marks, self._set_mark = marks_of(staging.store), mark_setter(staging)
        self._retention, self._values = retention, values
        self._retention_ms, self._segment_ms = retention.retention_ms, retention.segment_ms
        self._mark, self._stream_time = self._marks.mark, -1
        self._stream_mark: bytes | None = None
        """The mark from which ``_stream_time`` was read. A change or a rollback makes a different object."""
        self._segment, self._prefix = -1, b""
        """The segment of the last write, and the prefix of its keys."""
        self._writes = 0
        """The number of writes since the last commit."""
        self.late_total = 0
        """The number of records that were older than the retention when they were put."""

    def put(self, logged: bytes, time_ms: int, data: bytes | None, timestamp_ms: int | None) -> bool:
        """Stage ``data`` under the key ``logged``, None to delete it; return False if it is too old and was dropped."""
        mark = self._mark(STREAM_TIME)
        if mark is not self._stream_mark:
            self._stream_mark, self._stream_time = mark, stream_time_of(mark)
        stream_time = self._stream_time
        if time_ms <= stream_time - self._retention_ms:
            self._tell_late(time_ms, stream_time)
            return False
        segment = time_ms // self._segment_ms
        if segment != self._segment:
            self._segment, self._prefix = segment, packed(segment)
        staging, kept = self._staging, data
        if data is not None and self._values.takes_timestamps:
            kept = self._values.kept(data, staging.timestamp_ms if timestamp_ms is None else timestamp_ms, segment)
        try:
            if time_ms > stream_time:
                self._put_with_time(StagedWrite(self._prefix + logged, kept, logged, data, timestamp_ms), time_ms)
            else:
                staging.put(self._prefix + logged, kept, logged, data, timestamp_ms)
        except BaseException as error:
            self._check_length(logged, error)
            raise
        self._writes += 1
        return True

    def _put_with_time(self, write: StagedWrite, stream_time_ms: int) -> None:
        """Stage a write that moves the stream time. Records above the stream time are hidden, so both are one step."""
        mark = packed(stream_time_ms)
        if self._store.keeps_marks:
            self._staging.put_all([write], {STREAM_TIME: mark})
        else:
            self._staging.put_all([StagedWrite(pair_key(STREAM_TIME), mark), write])

    def _check_length(self, logged: bytes, error: BaseException) -> None:
        """Explain that a key is too long with its times and segment. Raises: ValueError."""
        num_bytes, most = len(self._prefix) + len(logged), self._store.max_key_bytes
        if isinstance(error, ValueError) and num_bytes > most:
            raise ValueError(
                f"store {self._store.name!r}: with its times and segment the key has {num_bytes} bytes, and "
                f"{self._store.backend} accepts up to {most}: use a shorter key"
            ) from error

    def next_number(self) -> int:
        """Return the number for a duplicate, above all numbers so far."""
        return number(self._marks, SEQUENCE)

    def took_number(self, sequence: int) -> None:
        """Stage that the number is used."""
        self._set_mark(SEQUENCE, packed(sequence + 1))

    def drop_expired(self) -> None:
        """Stage the removal of the segments without living records.

        All are removed if the cost of a range delete is constant, otherwise a bounded number of records. The rest is
        not visible to readers.
        """
        most, self._writes = max(_STEP_RECORDS, 2 * self._writes), 0
        store = self._store
        first = self._retention.first_live_segment(stream_time_ms(self._marks.mark))
        if first == number(self._marks, DROPPED):
            return
        start, end = packed(number(self._marks, DROPPED)), packed(first)
        if not store.deletes_ranges_whole:
            with store.range(start, end) as pairs:
                expired = [key for key, _ in islice(pairs, most)]
            if len(expired) == most:
                self._staging.delete_range_unlogged(expired[0], expired[-1])
                return
        self._staging.delete_range_unlogged(start, end)
        self._set_mark(DROPPED, packed(first))
        old = self._marks.mark(OLD_SEGMENTS)
        if old is not None:
            self._set_mark(OLD_SEGMENTS, mark_of(runs_without(runs_of(old), first)))

    def _tell_late(self, time_ms: int, stream_time: int) -> None:
        self.late_total += 1
        if self.late_total % _TOLD_EVERY == 1:
            _LOG.warning(
                "store %r dropped a record of time %d, which is %d ms or more behind the stream time %d; "
                "%d were dropped since it was opened",
                self._store.name,
                time_ms,
                self._retention.retention_ms,
                stream_time,
                self.late_total,
            )


class SegmentReads(Generic[K, V]):
    """The parts that read a window or session store, for its writer and for views."""

    def __init__(self, kind: SegmentedKind, source: KeyValueStore | KeyValueView, codec: Codec[K, V]) -> None:
        self._source, self._codec = source, codec
        self._description: Any = kind
        self._retention = kind.retention
        self._keys: Any = kind.keys
        self._values = kind.values(codec, source)
        self._scans = SegmentScans(source, kind.retention, self._keys.time_part)

    def _opened(
        self, key_from: K | None, key_to: K | None, earliest_ms: int, latest_ms: int | None, *, reverse: bool
    ) -> LiveScans:
        """Open scans of the keys from ``key_from`` to ``key_to``, at these times; None leaves an end open."""
        first, last = self._codec.encode_bound(key_from), self._codec.encode_bound(key_to)
        return self._scans.open(
            earliest_ms,
            latest_ms,
            None if first is None else escaped(first),
            None if last is None else escaped(last),
            reverse=reverse,
        )


class SegmentedView(SegmentReads[K, V], TypedView):
    """A read-only view of a window or session store, for any thread."""

    def __init__(self, kind: SegmentedKind, view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        SegmentReads.__init__(self, kind, view, kind.codec("of a view"))


class SegmentedStore(SegmentReads[K, V], TypedStore):
    """A window or session store for its writing thread, which reads its own uncommitted writes."""

    def __init__(self, kind: SegmentedKind, staging: RecordStaging) -> None:
        TypedStore.__init__(self, kind, staging)
        SegmentReads.__init__(self, kind, staging.store, kind.codec(staging.store.name))
        self._writes = SegmentWrites(staging, kind.retention, self._values)

    @property
    def late_total(self) -> int:
        return self._writes.late_total

    def before_commit(self) -> None:
        self._writes.drop_expired()
