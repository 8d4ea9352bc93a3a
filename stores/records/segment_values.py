"""The values and the marks of a window or session store.

A value is stored plain, or after its timestamp, or with headers (``stores.records.headers``). The marks are the stream
time, the first segment that is not dropped, and old segments. They are read at each use and not cached: so they are
correct after a rollback, a restore and an opening, and at each isolation level of a view.

Over a store without marks they are pairs in its data, after all segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import lru_cache
from typing import Any, Final, Protocol, Self, cast, overload

from stores.contract.arguments import Headers
from stores.contract.reading import Answer, of_one_moment
from stores.errors import damaged
from stores.interface import KeyValueIterator, KeyValueStore, KeyValueView, Position, TopicPartition
from stores.records.codec import Codec
from stores.records.headers import stored_time_ms, value_and_headers, with_headers
from stores.records.record_kind import RECORDS
from stores.records.segments import SEGMENT_BYTES, packed, unpacked
from stores.records.values import (
    SURROGATE_MS,
    TIME,
    TIME_BYTES,
    RecordStaging,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    with_time_and_headers,
)

DROPPED: Final = "dropped"
"""The first segment that was not dropped. There is no record before it."""
SEQUENCE: Final = "sequence"
"""The number of the next duplicate."""
LOG_FORM: Final = "log_form"
"""The mark of a store whose changelog has keys in the form of Kafka Streams (``STREAMS_FORM``)."""
STREAMS_FORM: Final = b"streams"
OLD_SEGMENTS: Final = "old_segments"
"""The segments of a timestamped store whose values have no timestamps: they are older than the upgrade."""

_BEHIND_ALL = b"\xff" * 8
"""No segment has this number."""
_RUNS_MAX = 2048
"""The most runs in a mark: they take half of a mark's maximum size."""

_pack, _unpack_from = TIME.pack, TIME.unpack_from
Runs = tuple[tuple[int, int], ...]
"""Segments as the first and the last one of each run, ascending."""


def logs_for_streams(marked: SegmentMarks) -> bool:
    """Return whether the store logs keys in the form of Kafka Streams, which has begun its changelog."""
    return marked.mark(LOG_FORM) == STREAMS_FORM


def number(marked: SegmentMarks, name: str) -> int:
    """Return the number in a mark, 0 if it is not set. Raises: StoreCorruptedError."""
    mark = marked.mark(name)
    if mark is not None and len(mark) != TIME_BYTES:
        raise damaged(f"the mark {name!r} of a store can't be read")
    return 0 if mark is None else unpacked(mark)


@lru_cache(maxsize=64)
def runs_of(mark: bytes | None) -> Runs:
    """Return the runs in the mark of the old segments. Raises: StoreCorruptedError."""
    if mark is None:
        return ()
    if len(mark) % 16:
        raise damaged("the list of a store's old segments can't be read")
    return tuple((unpacked(mark[at : at + 8]), unpacked(mark[at + 8 : at + 16])) for at in range(0, len(mark), 16))


def mark_of(runs: Runs) -> bytes | None:
    """Return the mark for ``runs``, None for no run."""
    return b"".join(packed(first) + packed(last) for first, last in runs) or None


def runs_from(segments: Iterable[int]) -> Runs:
    """Return the runs of ascending ``segments``.

    If they are too many for a mark, they become one run: the segments in between, which are empty, then count as old.
    """
    runs: list[tuple[int, int]] = []
    for segment in segments:
        if runs and runs[-1][1] + 1 >= segment:
            runs[-1] = (runs[-1][0], segment)
        else:
            runs.append((segment, segment))
    return tuple(runs) if len(runs) <= _RUNS_MAX else ((runs[0][0], runs[-1][1]),)


def runs_without(runs: Runs, first: int) -> Runs:
    """Return ``runs`` without the segments before ``first``."""
    return tuple((max(low, first), high) for low, high in runs if high >= first)


def is_old(key: bytes, mark: bytes | None) -> bool:
    """Return True if ``key``, with its segment, lies in one of the old segments of their mark."""
    segment = unpacked(key[:SEGMENT_BYTES])
    return any(first <= segment <= last for first, last in runs_of(mark))


class SegmentValues:
    """An encoder and decoder of the values of one store. The store's marks name its old segments.

    A value is the caller's, or a ``ValueAndTimestamp`` of it if the store is ``timestamped``, which one with
    ``headers`` is: it has a ``ValueTimestampHeaders``.
    """

    def __init__(
        self, codec: Codec[Any, Any], marks: SegmentMarks, *, timestamped: bool, takes_timestamps: bool, headers: bool
    ) -> None:
        self._codec, self._marks = codec, marks
        self._timestamped, self.keeps_headers = timestamped, headers
        self._takes_timestamps = timestamped and takes_timestamps
        """True if new segments keep times."""
        self.are_plain = not (self._takes_timestamps or headers)
        """True if each value is stored and logged as the serde has written it."""
        self._old: Runs | None = None
        """The fixed old segments; None to read the marks at each call."""

    def now(self) -> Self:
        """Return a decoder with the present old segments, which stays valid after a later commit has dropped one.

        Call it before a lookup or a scan whose records are decoded later.
        """
        if not self._takes_timestamps:
            return self
        fixed = copy(self)
        fixed._old = runs_of(self._marks.mark(OLD_SEGMENTS))
        return fixed

    def kept(self, data: bytes, timestamp_ms: int, segment: int, headers: Headers = ()) -> bytes:
        """Return the stored form of ``data``, a serialized value, in the segment."""
        if not self._has_timestamps(segment):
            return data
        return with_headers(data, timestamp_ms, headers) if self.keeps_headers else _pack(timestamp_ms) + data

    def logged(self, data: bytes, timestamp_ms: int, headers: Headers) -> bytes:
        """Return ``StagedWrite.log_value`` for ``data``, a serialized value: see ``RecordKind.log_parts``."""
        return with_headers(data, timestamp_ms, headers) if self.keeps_headers else data

    def decoder(self, segment: int) -> Callable[[bytes], Any] | None:
        """Return the function that decodes stored values of ``segment``; None if they are the caller's bytes.

        The function raises the errors of the serde.
        """
        codec = self._codec
        deserialize = codec.deserialize_value
        if not self._timestamped:
            return None if codec.serialize_value is None else deserialize
        if not self._has_timestamps(segment):
            return lambda kept: self._untimed(deserialize(kept))
        if self.keeps_headers:
            return lambda kept: with_time_and_headers(kept, deserialize)
        if codec.serialize_value is None:
            return lambda kept: ValueAndTimestamp(kept[TIME_BYTES:], _unpack_from(kept)[0])
        return lambda kept: ValueAndTimestamp(deserialize(kept[TIME_BYTES:]), _unpack_from(kept)[0])

    def decode(self, key: bytes, kept: bytes, segment: int) -> Any:
        """Return the value of ``kept``, which ``segment`` has under ``key``. Raises: SerdeMismatchError."""
        decode_value = self._codec.decode_value
        if not self._timestamped:
            return decode_value(key, kept)
        if not self._has_timestamps(segment):
            return self._untimed(decode_value(key, kept))
        if self.keeps_headers:
            try:
                data, headers = value_and_headers(kept)
            except ValueError as error:
                raise self._codec.mismatch(key, "value", "of headers") from error
            return ValueTimestampHeaders(decode_value(key, data), stored_time_ms(kept), headers)
        if len(kept) < TIME_BYTES:
            raise self._codec.mismatch(key, "value", "of timestamps")
        return ValueAndTimestamp(decode_value(key, kept[TIME_BYTES:]), _unpack_from(kept)[0])

    def _untimed(self, value: Any) -> Any:
        if self.keeps_headers:
            return ValueTimestampHeaders(value, SURROGATE_MS, ())
        return ValueAndTimestamp(value, SURROGATE_MS)

    def _has_timestamps(self, segment: int) -> bool:
        if not self._takes_timestamps:
            return False
        old = runs_of(self._marks.mark(OLD_SEGMENTS)) if self._old is None else self._old
        return not any(first <= segment <= last for first, last in old)


class SegmentMarks(Protocol):
    """A reader of marks."""

    def mark(self, name: str, /) -> bytes | None:
        """Return the value of the mark, None if it is not set."""


class DataMarks:
    """A reader of marks that are pairs of a store."""

    def __init__(self, store: KeyValueStore) -> None:
        self._get = store.get

    def mark(self, name: str) -> bytes | None:
        """Return the value of the mark, None if it is not set."""
        return self._get(pair_key(name))


class ViewMarks:
    """A reader of the marks of a view, wherever its store has them: a store that keeps marks has a description there.

    Nothing is read in advance: the view may have a position bound that its store has not reached yet.
    """

    def __init__(self, view: KeyValueView) -> None:
        self._view = view
        self._in_data: bool | None = None

    def mark(self, name: str) -> bytes | None:
        """Return the value of the mark, None if it is not set."""
        if self._in_data is None:
            self._in_data = self._view.mark(RECORDS) is None
        return self._view.get(pair_key(name)) if self._in_data else self._view.mark(name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        """Return what ``KeyValueView.with_mark`` returns."""
        if self._in_data is None:
            self.mark(name)
        return of_one_moment(lambda: self.mark(name), read) if self._in_data else self._view.with_mark(name, read)

    def at_one_moment(self, name: str, read: Callable[[bytes | None, KeyValueView], Answer]) -> Answer:
        """Return what ``KeyValueView.at_one_moment`` returns."""
        if self._in_data is None:
            self.mark(name)
        if self._in_data:
            return of_one_moment(lambda: self.mark(name), lambda mark: read(mark, self._view))
        return self._view.at_one_moment(name, read)


class MarkedStore:
    """The part of a store that ``RecordKind.prepare`` uses, with marks that are pairs."""

    keeps_marks = True

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.name, self.mark = store.name, DataMarks(store).mark

    def all(self) -> KeyValueIterator:
        return self._store.all()

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store.range(start, end)

    def restore(
        self,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
        marks: Mapping[str, bytes | None] | None = None,
    ) -> None:
        self._store.restore([*pairs, *pairs_of(marks or {})], changelog_offsets, position)


def pair_key(name: str) -> bytes:
    """Return the key of the pair for the mark ``name``."""
    return _BEHIND_ALL + name.encode("ascii")


def pairs_of(marks: Mapping[str, bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """Return the pairs for ``marks``."""
    return [(pair_key(name), value) for name, value in marks.items()]


def preparable(store: KeyValueStore) -> KeyValueStore:
    """Return ``store`` if it keeps marks, else an adapter that keeps them as pairs."""
    return store if store.keeps_marks else cast(Any, MarkedStore(store))


@overload
def marks_of(source: KeyValueView) -> ViewMarks: ...


@overload
def marks_of(source: KeyValueStore | KeyValueView) -> SegmentMarks: ...


def marks_of(source: KeyValueStore | KeyValueView) -> SegmentMarks:
    """Return the reader of the marks of a prepared store, or of a view of one."""
    if isinstance(source, KeyValueStore):
        return source if source.keeps_marks else DataMarks(source)
    return ViewMarks(source)


def mark_setter(staging: RecordStaging) -> Callable[[str, bytes | None], None]:
    """Return the function that stages a mark."""
    if staging.store.keeps_marks:
        return staging.store.set_mark
    return lambda name, value: staging.put_unlogged(pair_key(name), value)
