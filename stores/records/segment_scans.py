"""Scans over the segments of a window or session store, each of one moment and of what lives at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

from stores.interface import KeyValueIterator, KeyValueStore, KeyValueView
from stores.ranges import Bounds
from stores.records.data_marks import SegmentMarks
from stores.records.escaped_keys import SEGMENT_BYTES, packed, unpacked
from stores.records.expiry import stream_time_ms
from stores.records.retention import Retention

_SEEKS_FROM = 32
"""Where a scan may reach into more segments than this it looks up which of them there are; fewer are just scanned."""


class SegmentScan(NamedTuple):
    """What one segment has of a scan."""

    segment: int
    pairs: KeyValueIterator


class SegmentPair(NamedTuple):
    """One pair, with its key as it is logged."""

    logged: bytes
    value: bytes
    segment: int


class LiveScans(NamedTuple):
    """Scans of one moment, of segments in their order, descending if ``reverse``."""

    scans: Sequence[SegmentScan]
    low_ms: int
    high_ms: int
    """Lowest and highest time that is asked for and lives. The scans may have others beside."""
    time_part: slice
    """Where a key has its time."""
    reverse: bool

    @property
    def pairs(self) -> list[KeyValueIterator]:
        """All that is to be closed."""
        return [pairs for _, pairs in self.scans]

    def in_key_order(self) -> Iterator[SegmentPair]:
        """The pairs, by key, then by time."""
        parts = [self._timely(scan) for scan in self.scans]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0), reverse=self.reverse)

    def in_time_order(self) -> Iterator[SegmentPair]:
        """The pairs, by time, then by key. Holds those of one segment in memory."""
        part = self.time_part
        for scan in self.scans:
            for pair in sorted(
                self._timely(scan), key=lambda pair: pair.logged[part] + pair.logged, reverse=self.reverse
            ):
                # Raises where the scan, which is at its end, has been closed meanwhile.
                next(scan.pairs, None)
                yield pair

    def _timely(self, scan: SegmentScan) -> Iterator[SegmentPair]:
        low, high, part, segment = packed(self.low_ms), packed(self.high_ms), self.time_part, scan.segment
        for key, value in scan.pairs:
            if low <= key[part] <= high:
                yield SegmentPair(key[SEGMENT_BYTES:], value, segment)


class SegmentScans:
    """Makes the scans of one store or view, whose keys have their time at ``time_part``."""

    def __init__(
        self, source: KeyValueStore | KeyValueView, marks: SegmentMarks, retention: Retention, time_part: slice
    ) -> None:
        self._source, self._mark = source, marks.mark
        self._retention, self._time_part = retention, time_part
        self._written_elsewhere = not isinstance(source, KeyValueStore)
        """Whether another thread may change what is read."""
        self._behind = b"\xff" * -(time_part.stop or 0)
        """At or behind whatever a key has behind its time."""

    def open(
        self, earliest_ms: int, latest_ms: int | None, first: bytes | None, last: bytes | None, *, reverse: bool
    ) -> LiveScans:
        """Scan each segment that has, or may have, living records from ``earliest_ms`` to ``latest_ms``, None for any.

        The keys are those from ``first`` to ``last``, which are escaped; None leaves an end open.
        """
        source, retention = self._source, self._retention
        while True:
            stream_time = stream_time_ms(self._mark)
            low = max(earliest_ms, retention.first_live_ms(stream_time))
            high = stream_time if latest_ms is None or latest_ms > stream_time else latest_ms
            if low > high:
                # A scan of nothing, which ends with the store.
                nothing = SegmentScan(0, source.range(b"\x01", b"\x00"))
                return LiveScans([nothing], 0, 0, self._time_part, reverse)
            segments = self._between(low, high)
            start = b"" if first is None else first + packed(low)
            # The next segment's number alone is no key.
            bounds: list[Bounds]
            if last is None:
                bounds = [(packed(segment) + start, packed(segment + 1)) for segment in segments]
            else:
                end = last + packed(high) + self._behind
                bounds = [(packed(segment) + start, packed(segment) + end) for segment in segments]
            if reverse:
                bounds.reverse()
            scans = source.range_many(bounds, reverse=reverse)
            # Of one moment they are by themselves. What was read before is of the same moment if it is still so now.
            if not self._written_elsewhere or (
                stream_time_ms(self._mark) == stream_time and self._between(low, high) == segments
            ):
                ordered = reversed(segments) if reverse else segments
                return LiveScans(list(map(SegmentScan, ordered, scans)), low, high, self._time_part, reverse)
            for scan in scans:
                scan.close()

    def lives(self, time_ms: int) -> bool:
        """Whether records of that time live now."""
        return time_ms >= self._retention.first_live_ms(stream_time_ms(self._mark))

    def _between(self, low_ms: int, high_ms: int) -> Sequence[int]:
        """The segments of these times, or of them those that have anything."""
        first, last = self._retention.segment(low_ms), self._retention.segment(high_ms)
        if last - first < _SEEKS_FROM:
            return range(first, last + 1)
        return list(existing_segments(self._source, first, last))


def existing_segments(source: KeyValueStore | KeyValueView, first: int = 0, last: int | None = None) -> Iterator[int]:
    """The segments from ``first`` to ``last`` that have anything: one lookup for each."""
    end = None if last is None else packed(last + 1)
    while True:
        with source.range(packed(first), end) as pairs:
            pair = next(iter(pairs), None)
        if pair is None:
            return
        segment = unpacked(pair[0][:SEGMENT_BYTES])
        yield segment
        first = segment + 1
