"""What the writer of a window or session store does beside encoding: stream time, late records, dropped segments."""

from __future__ import annotations

import logging
from itertools import islice

from stores.records.data_marks import mark_setter, marks_of
from stores.records.escaped_keys import packed
from stores.records.expiry import STREAM_TIME, stream_time_ms
from stores.records.retention import Retention
from stores.records.segment_marks import (
    DROPPED,
    OLD_SEGMENTS,
    SEQUENCE,
    mark_of,
    number,
    runs_of,
    runs_without,
)
from stores.records.segment_values import SegmentValues
from stores.records.staging import Staging

_LOG = logging.getLogger(__name__)
_TOLD_EVERY = 10_000
"""One in so many late records is told of, the first one always."""
_STEP_RECORDS = 1_000
"""A commit drops so many expired records, or twice as many as it has writes if that is more: so it takes little
longer than without, and they do not pile up."""


class SegmentWrites:
    """Stages the writes of one store."""

    def __init__(self, staging: Staging, retention: Retention, values: SegmentValues) -> None:
        self._staging, self._store = staging, staging.store
        self._marks, self._set_mark = marks_of(staging.store), mark_setter(staging)
        self._retention, self._values = retention, values
        self._writes = 0
        """Since the last commit."""
        self.late_total = 0
        """Records that were older than the retention when they were put."""

    def put(self, logged: bytes, time_ms: int, data: bytes | None, timestamp_ms: int | None) -> bool:
        """Stage ``data`` under the key ``logged``, None to delete it; False where it is too old and was dropped."""
        staging, retention = self._staging, self._retention
        stream_time = stream_time_ms(self._marks.mark)
        if time_ms <= stream_time - retention.retention_ms:
            self._tell_late(time_ms, stream_time)
            return False
        segment = retention.segment(time_ms)
        kept = None
        if data is not None:
            kept = self._values.kept(data, staging.timestamp_ms if timestamp_ms is None else timestamp_ms, segment)
        staging.put(packed(segment) + logged, kept, logged, data, timestamp_ms)
        if time_ms > stream_time:
            self._set_mark(STREAM_TIME, packed(time_ms))
        self._writes += 1
        return True

    def next_number(self) -> int:
        """The number for a duplicate: above that of each that was ever kept."""
        return number(self._marks, SEQUENCE)

    def took_number(self, sequence: int) -> None:
        """Stage that a duplicate has the number."""
        self._set_mark(SEQUENCE, packed(sequence + 1))

    def drop_expired(self) -> None:
        """Stage the removal of the segments in which nothing lives: all of it where the store deletes ranges whole,
        else a bounded part. Nobody sees what is left of them."""
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
