"""Scans over the segments of a window or session store: each is a snapshot of the living records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

from stores.contract.reading import close_answer
from stores.interface import Closeable, KeyValueIterator, KeyValueStore, KeyValueView
from stores.ordered.ranges import Bounds
from stores.records.data_marks import SegmentMarks
from stores.records.escaped_keys import SEGMENT_BYTES, packed, unpacked
from stores.records.expiry import STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.retention import Retention

_SEEKS_FROM = 32
"""If a scan covers more segments than this, it first looks up which of them exist. Fewer are all scanned."""


SegmentScan = tuple[int, KeyValueIterator]
"""The number of a segment, and the part of a scan in it."""


class SegmentPair(NamedTuple):
    """A pair, with its key in the form of the changelog."""

    logged: bytes
    value: bytes
    segment: int


@dataclass(slots=True)
class LiveScans(Closeable):
    """Scans of one snapshot, of segments in their order, descending if ``reverse``."""

    scans: Sequence[SegmentScan]
    low_ms: int
    high_ms: int
    """The lowest and the highest requested time that lives. The scans may also have pairs outside of these."""
    time_part: slice
    """The place of the time in a key."""
    reverse: bool

    def close(self) -> None:
        for _, pairs in self.scans:
            pairs.close()

    def in_key_order(self) -> Iterator[SegmentPair]:
        """Return the pairs, by key, then by time."""
        parts = [self._timely(scan) for scan in self.scans]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0), reverse=self.reverse)

    def in_time_order(self) -> Iterator[SegmentPair]:
        """Yield the pairs, by time, then by key. The pairs of one segment are in memory at a time."""
        part = self.time_part
        for scan in self.scans:
            for pair in sorted(
                self._timely(scan), key=lambda pair: pair.logged[part] + pair.logged, reverse=self.reverse
            ):
                # The scan is at its end. This raises if it was closed meanwhile.
                next(scan[1], None)
                yield pair

    def _timely(self, scan: SegmentScan) -> Iterator[SegmentPair]:
        low, high, part, segment = packed(self.low_ms), packed(self.high_ms), self.time_part, scan[0]
        for key, value in scan[1]:
            if low <= key[part] <= high:
                yield SegmentPair(key[SEGMENT_BYTES:], value, segment)


class SegmentScans:
    """A factory for the scans of one store or view, whose keys have their time at ``time_part``."""

    def __init__(
        self, source: KeyValueStore | KeyValueView, marks: SegmentMarks, retention: Retention, time_part: slice
    ) -> None:
        self._source, self._mark, self._with_mark = source, marks.mark, marks.with_mark
        self._retention, self._time_part = retention, time_part
        self._written_elsewhere = not isinstance(source, KeyValueStore)
        """True if another thread may change the store during a scan."""
        self._behind = b"\xff" * -(time_part.stop or 0)
        """An upper bound of the part of a key after its time."""

    def open(
        self, earliest_ms: int, latest_ms: int | None, first: bytes | None, last: bytes | None, *, reverse: bool
    ) -> LiveScans:
        """Scan each segment that has, or may have, living records from ``earliest_ms`` to ``latest_ms``, None for any.

        The keys are those from ``first`` to ``last``, which are escaped; None leaves an end open.
        """

        def made(mark: bytes | None) -> LiveScans:
            stream_time = stream_time_of(mark)
            low = max(earliest_ms, self._retention.first_live_ms(stream_time))
            high = stream_time if latest_ms is None or latest_ms > stream_time else latest_ms
            return self._made(low, high, first, last, reverse=reverse)

        # Nothing changes while the writer makes a scan: the mark need not be compared afterwards.
        return self._with_mark(STREAM_TIME, made) if self._written_elsewhere else made(self._mark(STREAM_TIME))

    def _made(self, low: int, high: int, first: bytes | None, last: bytes | None, *, reverse: bool) -> LiveScans:
        source = self._source
        if low > high:
            # An empty scan, which is closed with the store.
            nothing = 0, source.range(b"\x01", b"\x00")
            return LiveScans([nothing], 0, 0, self._time_part, reverse)
        while True:
            segments = self._between(low, high)
            start = b"" if first is None else first + packed(low)
            end = None if last is None else last + packed(high) + self._behind
            bounds: list[Bounds] = []
            for segment in segments:
                number = packed(segment)
                # The next segment's number alone is not a key, so that an inclusive bound is correct.
                bounds.append((number + start, packed(segment + 1) if end is None else number + end))
            if reverse:
                bounds.reverse()
            if len(bounds) == 1:
                # This is faster than a list of one scan.
                scans = [source.reverse_range(*bounds[0]) if reverse else source.range(*bounds[0])]
            else:
                scans = source.range_many(bounds, reverse=reverse)
            # The scans themselves are of one snapshot. But a record may have begun a new segment before them.
            if not self._written_elsewhere or self._between(low, high) == segments:
                ordered = reversed(segments) if reverse else segments
                return LiveScans([*zip(ordered, scans, strict=True)], low, high, self._time_part, reverse)
            close_answer(scans)

    def lives(self, time_ms: int) -> bool:
        """Return whether records of that time live now."""
        return time_ms >= self._retention.first_live_ms(stream_time_ms(self._mark))

    def _between(self, low_ms: int, high_ms: int) -> Sequence[int]:
        """Return the segments of these times; if they are many, only those that have records."""
        first, last = self._retention.segment(low_ms), self._retention.segment(high_ms)
        if last - first < _SEEKS_FROM:
            return range(first, last + 1)
        return list(existing_segments(self._source, first, last))


def existing_segments(source: KeyValueStore | KeyValueView, first: int = 0, last: int | None = None) -> Iterator[int]:
    """Yield the segments from ``first`` to ``last`` that have records, with one lookup for each."""
    end = None if last is None else packed(last + 1)
    while True:
        with source.range(packed(first), end) as pairs:
            pair = next(iter(pairs), None)
        if pair is None:
            return
        segment = unpacked(pair[0][:SEGMENT_BYTES])
        yield segment
        first = segment + 1
