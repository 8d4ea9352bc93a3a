"""The lookups and scans of a session store, for its writer and for views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from stores.interface import KeyValueStore, KeyValueView
from stores.records.codec import Codec
from stores.records.data_marks import marks_of
from stores.records.escaped_keys import escaped, packed
from stores.records.iterators import RecordIterator
from stores.records.retention import check_span
from stores.records.segment_scans import SegmentPair, SegmentScans
from stores.records.segment_values import SegmentValues
from stores.records.segmented_kind import SegmentedKind
from stores.records.session_keys import SessionKeys
from stores.records.values import Windowed, check_time_ms

K = TypeVar("K")
V = TypeVar("V")
Sessions = RecordIterator[tuple[Windowed[K], Any]]


class SessionReads(Generic[K, V]):
    """Lookups and scans of the visible sessions, whose end is above the stream time minus the retention.

    Times are in milliseconds, from 0; bounds are included. Scans return ``(Windowed(key, start_ms, end_ms), value)``;
    values are ``V``, or ``ValueAndTimestamp[V]`` in a timestamped store. They run by key, then by the session's end,
    then by its start; backward forms from the end. Keys are in the order of their serialized bytes, which is that of
    the keys if their serde keeps order. Each scan is a snapshot.

    Raises: TypeError, ValueError for a key that the serde refuses, an invalid time, or an end before its start;
    SerdeMismatchError; else as those of ``ReadOnlyKeyValueStore``.
    """

    def __init__(
        self, kind: SegmentedKind, keys: SessionKeys, source: KeyValueStore | KeyValueView, codec: Codec[K, V]
    ) -> None:
        self._source, self._codec = source, codec
        self._retention, self._keys = kind.retention, keys
        self._values = kind.values(codec, source)
        self._scans = SegmentScans(source, marks_of(source), kind.retention, self._keys.time_part)

    def fetch_session(self, key: K, start_ms: int, end_ms: int) -> Any | None:
        """Return the value of the session of ``key`` with this start and end, or None."""
        check_span("a session", start_ms, end_ms)
        encoded = self._codec.encode_key(key)
        if not self._scans.lives(end_ms):
            return None
        segment = self._retention.segment(end_ms)
        kept_key = packed(segment) + self._keys.logged(encoded, start_ms, end_ms)
        values = self._values.now()
        kept = self._source.get(kept_key)
        return None if kept is None else values.decode(kept_key, kept, segment)

    def fetch(self, key: K) -> Sessions[K]:
        """Return an iterator over all sessions of ``key``, ascending."""
        return self._of_key(key, 0, None, reverse=False)

    def backward_fetch(self, key: K) -> Sessions[K]:
        """Return an iterator like ``fetch``, descending."""
        return self._of_key(key, 0, None, reverse=True)

    def find_sessions(self, key: K, earliest_end_ms: int, latest_start_ms: int) -> Sessions[K]:
        """Return an iterator over the sessions of ``key`` that end at ``earliest_end_ms`` or later and start at
        ``latest_start_ms`` or earlier, ascending.

        With ``time - gap`` and ``time + gap`` these are the sessions that a record of that time belongs to.
        """
        return self._of_key(key, *_checked(earliest_end_ms, latest_start_ms), reverse=False)

    def backward_find_sessions(self, key: K, earliest_end_ms: int, latest_start_ms: int) -> Sessions[K]:
        """Return an iterator like ``find_sessions``, descending."""
        return self._of_key(key, *_checked(earliest_end_ms, latest_start_ms), reverse=True)

    def fetch_range(self, key_from: K | None, key_to: K | None) -> Sessions[K]:
        """Return an iterator over all sessions of the keys from ``key_from`` to ``key_to``; None leaves an end open."""
        return self._of_range(key_from, key_to, 0, None, reverse=False)

    def backward_fetch_range(self, key_from: K | None, key_to: K | None) -> Sessions[K]:
        """Return an iterator like ``fetch_range``, descending. ``key_from`` is the smaller end."""
        return self._of_range(key_from, key_to, 0, None, reverse=True)

    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int
    ) -> Sessions[K]:
        """Return an iterator like ``find_sessions``, for the keys from ``key_from`` to ``key_to``.

        None leaves an end open.
        """
        return self._of_range(key_from, key_to, *_checked(earliest_end_ms, latest_start_ms), reverse=False)

    def backward_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int
    ) -> Sessions[K]:
        """Return an iterator like ``find_sessions_range``, descending. ``key_from`` is the smaller end."""
        return self._of_range(key_from, key_to, *_checked(earliest_end_ms, latest_start_ms), reverse=True)

    def _of_key(self, key: K, earliest_end_ms: int, latest_start_ms: int | None, *, reverse: bool) -> Sessions[K]:
        part = escaped(self._codec.encode_key(key))
        return self._found(part, part, earliest_end_ms, latest_start_ms, reverse=reverse)

    def _of_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int | None, *, reverse: bool
    ) -> Sessions[K]:
        first, last = self._codec.encode_bound(key_from), self._codec.encode_bound(key_to)
        return self._found(
            None if first is None else escaped(first),
            None if last is None else escaped(last),
            earliest_end_ms,
            latest_start_ms,
            reverse=reverse,
        )

    def _found(
        self,
        first: bytes | None,
        last: bytes | None,
        earliest_end_ms: int,
        latest_start_ms: int | None,
        *,
        reverse: bool,
    ) -> Sessions[K]:
        values = self._values.now()
        live = self._scans.open(earliest_end_ms, None, first, last, reverse=reverse)
        return RecordIterator(self._decoded(live.in_key_order(), values, latest_start_ms), live)

    def _decoded(
        self, pairs: Iterator[SegmentPair], values: SegmentValues, latest_start_ms: int | None
    ) -> Iterator[tuple[Windowed[K], Any]]:
        codec, keys = self._codec, self._keys
        for logged, kept, segment in pairs:
            start_ms = keys.start(logged)
            if latest_start_ms is None or start_ms <= latest_start_ms:
                key = codec.decode_key(keys.key(logged))
                yield (
                    Windowed(key, start_ms, keys.time(logged)),
                    values.decode(packed(segment) + logged, kept, segment),
                )


def _checked(earliest_end_ms: int, latest_start_ms: int) -> tuple[int, int]:
    # Either may be larger: a session may be between the two times, or contain them.
    return check_time_ms("the earliest end", earliest_end_ms), check_time_ms("the latest start", latest_start_ms)
