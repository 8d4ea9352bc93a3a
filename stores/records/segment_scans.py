"""Scans over the segments of a window or session store: each is a snapshot of the living records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from stores.contract.reading import Answer, close_answer
from stores.interface import Closeable, KeyValueIterator, KeyValueSnapshot, KeyValueStore, KeyValueView
from stores.ordered import Bounds
from stores.records.expiry import LOOKUPS_MAX, STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.segment_values import marks_of
from stores.records.segments import SEGMENT_BYTES, RecordRetention, packed, unpacked
from stores.records.values import TIME_BYTES

_SEEKS_FROM = 32
"""If a scan covers more segments than this, it first looks up which of them exist. Fewer are all scanned."""


_NOTHING: Bounds = (b"\x01", b"\x00")
"""A range without a key."""
_BEHIND: Final = b"\xff" * TIME_BYTES
"""Above every number of a duplicate."""

Pair = tuple[bytes, bytes]
SegmentScan = tuple[int, KeyValueIterator]
"""The number of a segment, and the part of a scan in it."""


class SegmentPair(NamedTuple):
    """A pair, with its key in the form of the changelog."""

    logged: bytes
    value: bytes
    segment: int


class SegmentRange(NamedTuple):
    """The keys from ``first`` to ``last``, which are escaped, at these times; None leaves an end open."""

    earliest_ms: int
    latest_ms: int | None
    first: bytes | None
    last: bytes | None


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
    whole: bool = False
    """True if the first scan has all segments. The second one is then empty."""
    one_key: bool = False
    """True if all pairs are of one key, so that the order of segments is that of keys."""
    held: Closeable | None = None
    """The snapshot of the scans, if it is to be closed with them."""

    def close(self) -> None:
        for _, pairs in self.scans:
            pairs.close()
        if self.held is not None:
            self.held.close()

    def in_key_order(self) -> Iterator[SegmentPair]:
        """Yield the pairs, by key, then by time."""
        parts = (self._timely(segment, pairs) for segment, pairs in self.scans)
        ordered = chain.from_iterable(parts) if self.one_key else merge(*parts, key=itemgetter(0), reverse=self.reverse)
        yield from ordered
        self._end()

    def in_time_order(self) -> Iterator[SegmentPair]:
        """Yield the pairs, by time, then by key. The pairs of one segment are in memory at a time."""
        part = self.time_part
        for segment, pairs, empty_scan in self._by_segment():
            for pair in sorted(
                self._timely(segment, pairs), key=lambda pair: pair.logged[part] + pair.logged, reverse=self.reverse
            ):
                # This scan is at its end. This raises if it was closed meanwhile.
                next(empty_scan, None)
                yield pair
        self._end()

    def in_segment_order(self) -> Iterator[SegmentScan]:
        """Yield the scan of each segment."""
        yield from self.scans
        self._end()

    def _by_segment(self) -> Iterator[tuple[int, Iterator[Pair], KeyValueIterator]]:
        if not self.whole:
            yield from ((segment, pairs, pairs) for segment, pairs in self.scans)
            return
        (_, scan), (_, empty) = self.scans
        for number, pairs in groupby(scan, key=lambda pair: pair[0][:SEGMENT_BYTES]):
            yield unpacked(number), pairs, empty

    def _timely(self, segment: int, pairs: Iterator[Pair]) -> Iterator[SegmentPair]:
        low, high, part = packed(self.low_ms), packed(self.high_ms), self.time_part
        for key, value in pairs:
            if low <= key[part] <= high:
                yield SegmentPair(key[SEGMENT_BYTES:], value, segment)

    def _end(self) -> None:
        """Release the snapshot: all scans are at their ends."""
        if self.held is not None:
            self.held.close()


class SegmentScans:
    """A factory for the scans of one store or view, whose keys have their time at ``time_part``."""

    def __init__(self, source: KeyValueStore | KeyValueView, retention: RecordRetention, time_part: slice) -> None:
        self._source, self._mark = source, marks_of(source).mark
        self._view_marks = None if isinstance(source, KeyValueStore) else marks_of(source)
        """The marks of a view. Another thread may change its store during a scan."""
        self._retention, self._time_part = retention, time_part
        self._behind = b"\xff" * -(time_part.stop or 0)
        """An upper bound of the part of a key after its time."""

    def open(
        self, earliest_ms: int, latest_ms: int | None, first: bytes | None, last: bytes | None, *, reverse: bool
    ) -> LiveScans:
        """Scan each segment that has, or may have, living records from ``earliest_ms`` to ``latest_ms``, None for any.

        The keys are those from ``first`` to ``last``, which are escaped; None leaves an end open.
        """
        return self.open_many([SegmentRange(earliest_ms, latest_ms, first, last)], reverse=reverse)[0]

    def open_many(self, ranges: Sequence[SegmentRange], *, reverse: bool = False) -> list[LiveScans]:
        """Return what ``open`` returns for each of ``ranges``, all of one snapshot. The last one to be used holds it.

        Of several ranges, an empty one has no scan.
        """

        def made(mark: bytes | None, source: KeyValueStore | KeyValueView) -> list[LiveScans]:
            return self._made(source, ranges, [self._living(mark, *each[:2]) for each in ranges], reverse=reverse)

        spans = (
            [] if self._view_marks is None else [self._living(self._mark(STREAM_TIME), *each[:2]) for each in ranges]
        )
        # To find many segments takes a while: not again and again beside a busy writer.
        return self._at_one_moment(made, is_long=any(self._are_many(*span) for span in spans))

    def get_many(self, records: Sequence[tuple[bytes, int]], *, is_last_of: bool = False) -> list[bytes | None]:
        """Return the values of living records by their keys in the changelog and times, all of one moment.

        With ``is_last_of`` the keys are those of the first duplicates, and the values those of the last ones.
        """

        def look(mark: bytes | None, source: KeyValueStore | KeyValueView) -> list[bytes | None]:
            first_ms = self._retention.first_live_ms(stream_time_of(mark))
            # No record has an empty key.
            keys = [self.kept_key(*record) if record[1] >= first_ms else b"" for record in records]
            values = _last_values(source, keys) if is_last_of else source.get_many(keys)
            snapshot = _snapshot_of(source, self._source)
            if snapshot is not None:
                snapshot.close()
            return values

        return self._at_one_moment(look, is_long=len(records) > LOOKUPS_MAX)

    def kept_key(self, logged: bytes, time_ms: int) -> bytes:
        """Return the key in the store of a record with that key in the changelog."""
        return packed(self._retention.segment(time_ms)) + logged

    def _at_one_moment(
        self, read: Callable[[bytes | None, KeyValueStore | KeyValueView], Answer], *, is_long: bool
    ) -> Answer:
        """Return the result of ``read``, called with the mark of the stream time, and with the data of that moment."""
        marks, source = self._view_marks, self._source
        if marks is None:
            # Nothing changes while the writer reads.
            return read(self._mark(STREAM_TIME), source)
        if is_long:
            return marks.at_one_moment(STREAM_TIME, read)
        return marks.with_mark(STREAM_TIME, lambda mark: read(mark, source))

    def open_all(self, earliest_ms: int, latest_ms: int | None, *, reverse: bool) -> LiveScans:
        """Scan the living records of all keys from ``earliest_ms`` to ``latest_ms``, None for any, by time."""
        source = self._source

        def made(mark: bytes | None) -> LiveScans:
            low, high = self._living(mark, earliest_ms, latest_ms)
            if low > high:
                return self._empty(source, reverse=reverse)
            # Segments lie in their order: one range has all of them. The next one's number alone is not a key.
            bounds = packed(self._retention.segment(low)), packed(self._retention.segment(high) + 1)
            whole, empty = source.range_many([bounds, _NOTHING], reverse=reverse)
            return LiveScans([(0, whole), (0, empty)], low, high, self._time_part, reverse, whole=True)

        marks = self._view_marks
        return made(self._mark(STREAM_TIME)) if marks is None else marks.with_mark(STREAM_TIME, made)

    def _living(self, mark: bytes | None, earliest_ms: int, latest_ms: int | None) -> tuple[int, int]:
        """Return the lowest and the highest time of the query that may have a record."""
        stream_time = stream_time_of(mark)
        low = max(earliest_ms, self._retention.first_live_ms(stream_time))
        return low, stream_time if latest_ms is None or latest_ms > stream_time else latest_ms

    def _empty(self, source: KeyValueStore | KeyValueView, *, reverse: bool) -> LiveScans:
        """Return an empty scan, which is closed with the store."""
        snapshot = _snapshot_of(source, self._source)
        return LiveScans([(0, source.range(*_NOTHING))], 0, 0, self._time_part, reverse, held=snapshot)

    def _made(
        self,
        source: KeyValueStore | KeyValueView,
        ranges: Sequence[SegmentRange],
        spans: Sequence[tuple[int, int]],
        *,
        reverse: bool,
    ) -> list[LiveScans]:
        """Return the scans of ``ranges`` in ``source``, of the times that live and are in ``spans``."""
        if len(spans) == 1 and spans[0][0] > spans[0][1]:
            return [self._empty(source, reverse=reverse)]
        changes = source is self._source and self._view_marks is not None
        while True:
            segments = [self._between(source, *span) for span in spans]
            bounds: list[Bounds] = []
            for each, span, numbers in zip(ranges, spans, segments, strict=True):
                bounds += self._bounds(each, span, reversed(numbers) if reverse else numbers)
            if len(bounds) == 1:
                # This is faster than a list of one scan.
                scans = [source.reverse_range(*bounds[0]) if reverse else source.range(*bounds[0])]
            else:
                scans = source.range_many(bounds, reverse=reverse)
            # The scans themselves are of one snapshot. But a late record may have begun a new segment before them.
            if not changes or [self._between(source, *span) for span in spans] == segments:
                break
            close_answer(scans)
        left, live = iter(scans), []
        for each, (low, high), numbers in zip(ranges, spans, segments, strict=True):
            ordered = reversed(numbers) if reverse else numbers
            own = [(number, next(left)) for number in ordered]
            one_key = each.first is not None and each.first == each.last
            live.append(LiveScans(own, low, high, self._time_part, reverse, one_key=one_key))
        if live:
            live[-1].held = _snapshot_of(source, self._source)
        return live

    def _bounds(self, keys: SegmentRange, span: tuple[int, int], segments: Iterable[int]) -> Iterator[Bounds]:
        """Yield the bounds of a range in each of ``segments``."""
        if span[0] > span[1]:
            return
        start = b"" if keys.first is None else keys.first + packed(span[0])
        end = None if keys.last is None else keys.last + packed(span[1]) + self._behind
        for segment in segments:
            number = packed(segment)
            # The next segment's number alone is not a key, so that an inclusive bound is correct.
            yield number + start, packed(segment + 1) if end is None else number + end

    def lives(self, time_ms: int) -> bool:
        """Return whether records of that time live now."""
        return time_ms >= self._retention.first_live_ms(stream_time_ms(self._mark))

    def _are_many(self, low_ms: int, high_ms: int) -> bool:
        return self._retention.segment(high_ms) - self._retention.segment(low_ms) >= _SEEKS_FROM

    def _between(self, source: KeyValueStore | KeyValueView, low_ms: int, high_ms: int) -> Sequence[int]:
        """Return the segments of these times; if they are many, only those that have records."""
        if low_ms > high_ms:
            return ()
        first, last = self._retention.segment(low_ms), self._retention.segment(high_ms)
        if not self._are_many(low_ms, high_ms):
            return range(first, last + 1)
        return list(existing_segments(source, first, last))


def _last_values(source: KeyValueStore | KeyValueView, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the value of the last duplicate for each key of a first one; None for an empty key."""
    scans = source.range_many([(key, key[:-TIME_BYTES] + _BEHIND) if key else _NOTHING for key in keys], reverse=True)
    try:
        return [next((value for _, value in pairs), None) for pairs in scans]
    finally:
        close_answer(scans)


def _snapshot_of(source: object, own: object) -> Closeable | None:
    """Return ``source`` if it is a snapshot that was taken for one query of ``own``."""
    return source if source is not own and isinstance(source, KeyValueSnapshot) else None


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
