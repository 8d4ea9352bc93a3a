"""The lookups and scans of a window store, for its writer and for views."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Generic, TypeVar

from stores.interface import KeyValueStore, KeyValueView
from stores.records.codec import Codec
from stores.records.data_marks import marks_of
from stores.records.escaped_keys import SEGMENT_BYTES, TIME_BYTES, escaped, packed
from stores.records.iterators import RecordIterator
from stores.records.retention import check_span
from stores.records.segment_scans import LiveScans, SegmentPair, SegmentScans
from stores.records.segment_values import SegmentValues
from stores.records.segmented_kind import SegmentedKind
from stores.records.values import TIME_BOUND_MS, Windowed, check_time_ms
from stores.records.window_keys import WindowKeys

K = TypeVar("K")
V = TypeVar("V")

_unpack_from = Struct(">Q").unpack_from


class WindowReads(Generic[K, V]):
    """Lookups and scans of the visible records, whose window start is above the stream time minus the retention.

    Times are in milliseconds, from 0; both ends of each range are included. Values are ``V``, or
    ``ValueAndTimestamp[V]`` in a timestamped store. Several values of one key and start come in the order of their
    writes. Each scan is a snapshot.

    Raises: TypeError, ValueError for a key that the serde refuses, an invalid time, or an end before its start;
    SerdeMismatchError; else as those of ``ReadOnlyKeyValueStore``.
    """

    def __init__(
        self,
        kind: SegmentedKind,
        keys: WindowKeys,
        size_ms: int,
        source: KeyValueStore | KeyValueView,
        codec: Codec[K, V],
    ) -> None:
        self._source, self._codec = source, codec
        self._retention, self._keys, self._size_ms = kind.retention, keys, size_ms
        self._values = kind.values(codec, source)
        self._scans = SegmentScans(source, marks_of(source), kind.retention, self._keys.time_part)

    def fetch_one(self, key: K, window_start_ms: int) -> Any | None:
        """Return the value of ``key`` in the window with that start, or None; the last written one of several."""
        check_time_ms("a window start", window_start_ms)
        encoded = self._codec.encode_key(key)
        if not self._scans.lives(window_start_ms):
            return None
        segment = self._retention.segment(window_start_ms)
        start = packed(segment) + self._keys.logged(encoded, window_start_ms)
        values = self._values.now()
        if self._keys.sequenced:
            with self._source.reverse_range(start, start[:-TIME_BYTES] + b"\xff" * TIME_BYTES) as pairs:
                kept = next((value for _, value in pairs), None)
        else:
            kept = self._source.get(start)
        return None if kept is None else values.decode(start, kept, segment)

    def fetch(self, key: K, start_ms: int, end_ms: int) -> RecordIterator[tuple[int, Any]]:
        """Return an iterator over ``(window_start_ms, value)`` of ``key``, ascending.

        It has the windows that start from ``start_ms`` to ``end_ms``.
        """
        return self._fetched(key, start_ms, end_ms, reverse=False)

    def backward_fetch(self, key: K, start_ms: int, end_ms: int) -> RecordIterator[tuple[int, Any]]:
        """Return an iterator like ``fetch``, descending."""
        return self._fetched(key, start_ms, end_ms, reverse=True)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int
    ) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator over ``(Windowed(key, start_ms, end_ms), value)`` of keys from ``key_from`` to ``key_to``.

        It is ordered by key, then by time; None leaves an end open. Keys are in the order of their serialized bytes,
        which is that of the keys if their serde keeps order.
        """
        return self._in_key_order(key_from, key_to, start_ms, end_ms, reverse=False)

    def backward_fetch_range(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int
    ) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator like ``fetch_range``, descending. ``key_from`` is the smaller end."""
        return self._in_key_order(key_from, key_to, start_ms, end_ms, reverse=True)

    def fetch_all(self, start_ms: int, end_ms: int) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator over all keys' ``(Windowed(key, start_ms, end_ms), value)``, by time, then by key.

        It has the windows that start from ``start_ms`` to ``end_ms``. The records of one segment in that range are held
        in memory.
        """
        check_span("a range of window starts", start_ms, end_ms)
        return self._in_time_order(start_ms, end_ms, reverse=False)

    def backward_fetch_all(self, start_ms: int, end_ms: int) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator like ``fetch_all``, descending."""
        check_span("a range of window starts", start_ms, end_ms)
        return self._in_time_order(start_ms, end_ms, reverse=True)

    def all(self) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator like ``fetch_all``, for all times."""
        return self._in_time_order(0, None, reverse=False)

    def backward_all(self) -> RecordIterator[tuple[Windowed[K], Any]]:
        """Return an iterator like ``all``, descending."""
        return self._in_time_order(0, None, reverse=True)

    def _fetched(self, key: K, start_ms: int, end_ms: int, *, reverse: bool) -> RecordIterator[tuple[int, Any]]:
        check_span("a range of window starts", start_ms, end_ms)
        encoded = self._codec.encode_key(key)
        part = escaped(encoded)
        values = self._values.now()
        live = self._scans.open(start_ms, end_ms, part, part, reverse=reverse)
        return RecordIterator(self._windows(live, values, SEGMENT_BYTES + len(part)), live)

    def _windows(self, live: LiveScans, values: SegmentValues, start_at: int) -> Iterator[tuple[int, Any]]:
        for segment, pairs in live.scans:
            decode = values.decoder(segment)
            if decode is None:
                for key, kept in pairs:
                    yield _unpack_from(key, start_at)[0], kept
                continue
            for key, kept in pairs:
                try:
                    value = decode(kept)
                except Exception:
                    value = values.decode(key, kept, segment)
                yield _unpack_from(key, start_at)[0], value

    def _in_key_order(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int, *, reverse: bool
    ) -> RecordIterator[tuple[Windowed[K], Any]]:
        check_span("a range of window starts", start_ms, end_ms)
        first, last = self._codec.encode_bound(key_from), self._codec.encode_bound(key_to)
        values = self._values.now()
        live = self._scans.open(
            start_ms,
            end_ms,
            None if first is None else escaped(first),
            None if last is None else escaped(last),
            reverse=reverse,
        )
        return RecordIterator(self._decoded(live.in_key_order(), values), live)

    def _in_time_order(
        self, start_ms: int, end_ms: int | None, *, reverse: bool
    ) -> RecordIterator[tuple[Windowed[K], Any]]:
        values = self._values.now()
        live = self._scans.open(start_ms, end_ms, None, None, reverse=reverse)
        return RecordIterator(self._decoded(live.in_time_order(), values), live)

    def _decoded(self, pairs: Iterator[SegmentPair], values: SegmentValues) -> Iterator[tuple[Windowed[K], Any]]:
        codec, keys, size_ms = self._codec, self._keys, self._size_ms
        for logged, kept, segment in pairs:
            start_ms = keys.time(logged)
            end_ms = min(start_ms + size_ms, TIME_BOUND_MS - 1)
            key = codec.decode_key(keys.key(logged))
            yield Windowed(key, start_ms, end_ms), values.decode(packed(segment) + logged, kept, segment)
