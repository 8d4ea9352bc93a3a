"""The writer of a window or session store: stream time, late records, numbers of duplicates and dropped segments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from stores.contract.arguments import Headers
from stores.records.closing import Closing
from stores.records.expiry import STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.segment_values import (
    DROPPED,
    OLD_SEGMENTS,
    SEQUENCE,
    SegmentValues,
    logs_for_streams,
    mark_of,
    mark_setter,
    marks_of,
    number,
    pairs_of,
    runs_of,
    runs_without,
)
from stores.records.segments import SEGMENT_BYTES, RecordRetention, SegmentKeys, packed
from stores.records.values import TIME_BYTES, RecordStaging, StagedWrite, Undoable

_LOG = logging.getLogger(__name__)
_TOLD_EVERY = 10_000
"""One of this number of late records causes a warning, always the first one."""
_STEP_RECORDS = 1_000
"""The number of expired records that a commit drops, or twice its number of writes if that is more. So a commit takes
little longer, and expired records do not pile up."""


class SegmentRecord(NamedTuple):
    """A record to write: its key in the changelog and its time, its value and that one's timestamp and headers.

    Without a value it is deleted; without a timestamp it has that of the current record. The number of a duplicate, at
    the end of its key, is replaced.
    """

    logged: bytes
    time_ms: int
    data: bytes | None
    timestamp_ms: int | None = None
    headers: Headers = ()


class LateRecords(Undoable):
    """The count of the late records of one store. Those of a record that is undone do not count."""

    def __init__(self, staging: RecordStaging) -> None:
        self.total = self.kept_total = 0
        """The late records, and those of them that are not undone any more."""
        self._staging = staging
        self._warning: tuple[int, int, int, int] | None = None

    def add(self, time_ms: int, stream_time: int, kept_ms: int) -> None:
        """Count a record of that time, which is at least ``kept_ms`` behind the stream time."""
        self.total += 1
        if self.total % _TOLD_EVERY == 1:
            self._warning = time_ms, kept_ms, stream_time, self.total
        if self.total == self.kept_total + 1:
            self._staging.changes(self)

    def put_back(self) -> None:
        self.total, self._warning = self.kept_total, None

    def forget(self) -> None:
        self.kept_total = self.total
        if self._warning is not None:
            _LOG.warning(
                "store %r dropped a record of time %d, which is %d ms or more behind the stream time %d; "
                "%d were dropped since it was opened",
                self._staging.store.name,
                *self._warning,
            )
            self._warning = None


class SegmentWrites:
    """The writer of one store."""

    def __init__(
        self,
        staging: RecordStaging,
        keys: SegmentKeys,
        retention: RecordRetention,
        values: SegmentValues,
        closing: Closing | None,
    ) -> None:
        self._closing, self._keys = closing, keys
        self._staging, self._store = staging, staging.store
        self._marks, self._set_mark = marks_of(staging.store), mark_setter(staging)
        self._retention, self._values = retention, values
        self._retention_ms, self._segment_ms = retention.retention_ms, retention.segment_ms
        self._mark, self._stream_time = self._marks.mark, -1
        self._stream_mark: bytes | None = None
        """The mark from which ``_stream_time`` was read. A change or a rollback makes a different object."""
        self._segment, self._prefix = -1, b""
        """The segment of the last write, and the prefix of its keys."""
        self._for_streams: bool | None = None
        """True if keys are logged in the form of Kafka Streams; None before the first write, which finds it out."""
        self._writes = 0
        """The number of writes since the last commit."""
        self.late = LateRecords(staging)
        """The records that were older than the retention when they were put."""

    def put(
        self, logged: bytes, time_ms: int, data: bytes | None, timestamp_ms: int | None, headers: Headers = ()
    ) -> None:
        """Stage ``data`` under the key ``logged``, None to delete it. One that is too old is dropped and counted."""
        stream_time, closing = self._present_stream_time(), self._closing
        if closing is not None or time_ms > stream_time or self._keys.sequenced:
            self.put_all([SegmentRecord(logged, time_ms, data, timestamp_ms, headers)])
            return
        if time_ms <= stream_time - self._retention_ms:
            self.late.add(time_ms, stream_time, self._retention_ms)
            return
        segment = time_ms // self._segment_ms
        if segment != self._segment:
            self._segment, self._prefix = segment, packed(segment)
        staging, value, log_value = self._staging, data, data
        if data is not None and not self._values.are_plain:
            at = staging.timestamp_ms if timestamp_ms is None else timestamp_ms
            value = self._values.kept(data, at, segment, headers)
            log_value = self._values.logged(data, at, headers)
        log_key = logged if self._for_streams is False else self._log_key(logged)
        try:
            staging.put(self._prefix + logged, value, log_key, log_value, timestamp_ms)
        except BaseException as error:
            self._check_length(len(logged), error)
            raise
        self._writes += 1

    def put_all(self, records: Iterable[SegmentRecord]) -> None:
        """Stage records as if they were put one by one, or nothing if one of them is refused.

        Records that are too old are dropped and counted. A duplicate that would be deleted is left alone.
        """
        before = highest = self._present_stream_time()
        closing, values, record_ms = self._closing, self._values.now(), self._staging.timestamp_ms
        sequenced, first_number = self._keys.sequenced, number(self._marks, SEQUENCE) if self._keys.sequenced else 0
        writes: list[StagedWrite] = []
        late: list[tuple[int, int, int]] = []
        entries: dict[bytes, bool] = {}
        count, segment_ms, are_plain = 0, self._segment_ms, values.are_plain
        segment, prefix = -1, b""
        for given, time_ms, data, timestamp_ms, headers in records:
            if sequenced and data is None:
                continue
            if closing is not None or time_ms <= highest - self._retention_ms:
                kept_ms = self._late_by(time_ms, highest, is_removal=data is None)
                if kept_ms is not None:
                    late.append((time_ms, highest, kept_ms))
                    continue
            logged = given[:-TIME_BYTES] + packed(first_number + count) if sequenced else given
            count += 1
            if time_ms // segment_ms != segment:
                segment = time_ms // segment_ms
                prefix = packed(segment)
            value, log_value = data, data
            if data is not None and not are_plain:
                at = record_ms if timestamp_ms is None else timestamp_ms
                value, log_value = values.kept(data, at, segment, headers), values.logged(data, at, headers)
            log_key = logged if self._for_streams is False else self._log_key(logged)
            writes.append(StagedWrite(prefix + logged, value, log_key, log_value, timestamp_ms))
            if closing is not None:
                writes += closing.writes(logged, time_ms, entries, is_removal=data is None)
            if time_ms > highest:
                highest = time_ms
        marks: dict[str, bytes | None] = {}
        if highest > before:
            marks[STREAM_TIME] = packed(highest)
        if sequenced and count:
            marks[SEQUENCE] = packed(first_number + count)
        self._stage_all(writes, marks)
        self._writes += count
        for told in late:
            self.late.add(*told)
        if closing is not None and highest > before:
            # It is what the store returns from now on, unless it is rolled back or restored.
            self._stream_mark, self._stream_time = self._mark(STREAM_TIME), highest
            closing.moved(highest)

    def _log_key(self, logged: bytes) -> bytes:
        if self._for_streams is None:
            # The restore is over, and all records of a changelog have one form.
            self._for_streams = logs_for_streams(self._marks)
        return self._keys.for_streams(logged) if self._for_streams else logged

    def _present_stream_time(self) -> int:
        mark = self._mark(STREAM_TIME)
        if mark is not self._stream_mark:
            self._stream_mark, self._stream_time = mark, stream_time_of(mark)
            if self._closing is not None:
                self._closing.forget()
        return self._stream_time

    def _late_by(self, time_ms: int, stream_time: int, *, is_removal: bool) -> int | None:
        """Return the distance to the stream time at which a record of that time is too old; None if it is not."""
        closing = self._closing
        if time_ms <= stream_time - self._retention_ms:
            return self._retention_ms
        if closing is not None and not is_removal and closing.has_closed(time_ms, stream_time):
            return closing.open_ms
        return None

    def _stage_all(self, writes: list[StagedWrite], marks: Mapping[str, bytes | None]) -> None:
        """Stage writes and marks. Records above the stream time are hidden, so all are one step."""
        try:
            if self._store.keeps_marks:
                self._staging.put_all(writes, marks)
            else:
                self._staging.put_all([*(StagedWrite(*pair) for pair in pairs_of(marks)), *writes])
        except BaseException as error:
            self._check_length(max((len(write.key) for write in writes), default=0) - SEGMENT_BYTES, error)
            raise

    def _check_length(self, logged_bytes: int, error: BaseException) -> None:
        """Explain that a key is too long with its times and segment. Raises: ValueError."""
        num_bytes, most = SEGMENT_BYTES + logged_bytes, self._store.max_key_bytes
        if isinstance(error, ValueError) and num_bytes > most:
            raise ValueError(
                f"store {self._store.name!r}: with its times and segment the key has {num_bytes} bytes, and "
                f"{self._store.backend} accepts up to {most}: use a shorter key"
            ) from error

    def is_closed(self, time_ms: int, open_ms: int) -> bool:
        """Return True for a time that is ``open_ms`` or more, or the retention, behind the stream time; count it."""
        stream_time = stream_time_ms(self._mark)
        kept_ms = min(open_ms, self._retention_ms)
        closed = time_ms <= stream_time - kept_ms or self.has_reported(time_ms, stream_time)
        if closed:
            self.late.add(time_ms, stream_time, kept_ms)
        return closed

    def has_reported(self, time_ms: int, stream_time: int | None = None) -> bool:
        """Return True if a window or session of that time was reported as closed, or is about to be."""
        if self._closing is None:
            return False
        return self._closing.has_closed(time_ms, stream_time_ms(self._mark) if stream_time is None else stream_time)

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
                self._staging.delete_range(expired[0], expired[-1], logged=False)
                return
        self._staging.delete_range(start, end, logged=False)
        self._set_mark(DROPPED, packed(first))
        old = self._marks.mark(OLD_SEGMENTS)
        if old is not None:
            self._set_mark(OLD_SEGMENTS, mark_of(runs_without(runs_of(old), first)))
