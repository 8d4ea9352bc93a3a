"""The reads of a versioned store's history, each of one moment, and the removal of what has expired.

The history reaches back from the stream time by its retention. A store that was opened with a longer one keeps in a
mark from when on its history is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple

from stores.contract.reading import Answer
from stores.interface import Closeable, KeyValueIterator, KeyValueStore, KeyValueView
from stores.ordered import Bounds
from stores.records.expiry import CURSOR, STREAM_TIME, stream_time_of
from stores.records.segment_values import SegmentMarks, ViewMarks, marks_of, number
from stores.records.segments import escaped, packed
from stores.records.values import TIME_BYTES
from stores.records.versions import BEHIND, HISTORY, INDEX, LATEST, expired_by, time_at_end, time_in

COMPLETE_FROM: Final = "history_from"
"""The mark with the first time from which the history is complete; none if that follows from the retention."""
_STEP: Final = 1_000
"""The expired versions that one commit removes, or twice its number of writes if that is more."""
_NOTHING: Final[Bounds] = (b"\x01", b"\x00")
"""A range without a key."""
Pair = tuple[bytes, bytes]


class PlacedVersion(NamedTuple):
    """A version under its key in the store, and the time at which it ends, None for the latest one."""

    key: bytes
    data: bytes
    time_ms: int
    end_ms: int | None


def first_complete_ms(marks: SegmentMarks, stream_time: int, retention_ms: int) -> int:
    """Return the first time from which the history is complete, at that stream time."""
    return max(0, stream_time - retention_ms, number(marks, COMPLETE_FROM))


@dataclass(slots=True)
class VersionScans(Closeable):
    """The versions of one key that are valid at some time from ``low_ms`` to ``high_ms``, in scans of one snapshot."""

    latest: KeyValueIterator
    history: KeyValueIterator
    low_ms: int
    high_ms: int
    reverse: bool

    def close(self) -> None:
        self.latest.close()
        self.history.close()

    def versions(self) -> Iterator[PlacedVersion]:
        """Yield the versions, deletions too, in the order of their times, or descending if ``reverse``."""
        try:
            latest = next(self.latest, None)
            # The history of a key whose latest version is gone has expired.
            if latest is not None:
                yield from self._descending(latest) if self.reverse else self._ascending(latest)
        finally:
            self.close()

    def _descending(self, latest: Pair) -> Iterator[PlacedVersion]:
        end_ms: int | None = None
        for key, data in chain([latest], self.history):
            time_ms = _time(key, data)
            if time_ms <= self.high_ms and self._reaches(end_ms):
                yield PlacedVersion(key, data, time_ms, end_ms)
            if time_ms <= self.low_ms:
                return
            end_ms = time_ms

    def _ascending(self, latest: Pair) -> Iterator[PlacedVersion]:
        before: PlacedVersion | None = None
        for key, data in chain(self.history, [latest]):
            time_ms = _time(key, data)
            if before is not None and self._reaches(time_ms):
                yield before._replace(end_ms=time_ms)
            if time_ms > self.high_ms:
                return
            before = PlacedVersion(key, data, time_ms, None)
        # This scan has no other version. This raises if it was closed meanwhile.
        next(self.latest, None)
        if before is not None:
            yield before

    def _reaches(self, end_ms: int | None) -> bool:
        return end_ms is None or end_ms > self.low_ms


def _time(key: bytes, data: bytes) -> int:
    return time_at_end(key) if key.startswith(HISTORY) else time_in(key, data)


class VersionHistory:
    """The history of one store or view."""

    def __init__(self, source: KeyValueStore | KeyValueView, retention_ms: int) -> None:
        self._source, self._marks, self._retention_ms = source, marks_of(source), retention_ms

    def at(self, key: bytes, as_of_ms: int) -> Pair | None:
        """Return the version of ``key`` that is valid at a time, a deletion too, and its key in the store.

        Return None if there is none, or the time is before the history.
        """
        place, part, source = LATEST + key, HISTORY + escaped(key), self._source

        def read(first_ms: int) -> Pair | None:
            # Again: a rollback may have taken back the put after which the version was an older one.
            latest = source.get(place)
            if latest is None or time_in(place, latest) <= as_of_ms:
                return None if latest is None else (place, latest)
            if as_of_ms < first_ms:
                return None
            with source.reverse_range(part + packed(0), part + packed(as_of_ms)) as pairs:
                return next(iter(pairs), None)

        latest = source.get(place)
        # The history of a key whose latest version is gone has expired.
        if latest is None or time_in(place, latest) <= as_of_ms:
            return None if latest is None else (place, latest)
        return self._at_one_moment(read)

    def open(self, key: bytes, from_ms: int, to_ms: int, *, reverse: bool) -> VersionScans:
        """Return the scans of the versions of ``key`` that are valid at some time from ``from_ms`` to ``to_ms``."""
        place, source, part = LATEST + key, self._source, HISTORY + escaped(key)

        def read(first_ms: int) -> VersionScans:
            low_ms, bounds = max(from_ms, first_ms), _NOTHING
            if low_ms <= to_ms:
                # From the version that is valid at the lower time up to the one that ends the last. A commit before the
                # scans may bring others in between, and leaves these where they are.
                first = _first(source.reverse_range(part + packed(0), part + packed(low_ms)))
                last = _first(source.range(part + packed(to_ms + 1), part + BEHIND))
                bounds = first or part + packed(0), last or part + BEHIND
            whole = [(place, place) if from_ms <= to_ms else _NOTHING, bounds]
            latest, history = source.range_many(whole, reverse=reverse)
            return VersionScans(latest, history, low_ms, to_ms, reverse)

        return self._at_one_moment(read)

    def _at_one_moment(self, read: Callable[[int], Answer]) -> Answer:
        """Return the result of ``read``, called with the first time of the history. No rollback comes in between."""
        marks, retention_ms = self._marks, self._retention_ms

        def look(mark: bytes | None) -> Answer:
            return read(first_complete_ms(marks, stream_time_of(mark), retention_ms))

        return marks.with_mark(STREAM_TIME, look) if isinstance(marks, ViewMarks) else look(marks.mark(STREAM_TIME))


def _first(scan: KeyValueIterator) -> bytes | None:
    with scan as pairs:
        return next((key for key, _ in pairs), None)


def expired_of(store: KeyValueStore, retention_ms: int, num_writes: int) -> tuple[list[bytes], bytes] | None:
    """Return the keys to remove of a bounded number of expired versions, and the mark ``CURSOR``; None for nothing.

    The bound is above ``num_writes``. The removal is not logged: a restore does it by itself.
    """
    marks = marks_of(store)
    end_ms = stream_time_of(marks.mark(STREAM_TIME)) - retention_ms
    if end_ms < 0:
        return None
    # From its beginning on a log-structured engine would go over all that was removed, again and again.
    start = marks.mark(CURSOR) or INDEX
    with store.range(start, INDEX + packed(end_ms + 1)) as pairs:
        entries = [entry for entry, _ in islice(pairs, max(_STEP, 2 * num_writes))]
    if not entries:
        return None
    # No later put adds an entry before this time: it would be too late.
    return [key for entry in entries for key in expired_by(entry, store.get)], entries[-1][: len(INDEX) + TIME_BYTES]
