"""Window stores: a value for each key and window, kept for a time. Source: KIP-258; Kafka, ``WindowStore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, cast, overload

from stores.contract.arguments import TIME_BOUND_MS, Headers, check_keys, check_parts, check_time_ms, check_type
from stores.contract.reading import close_answer
from stores.errors import ConfigError
from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.record_kind import Description, RecordIterator
from stores.records.segment_scans import LiveScans, SegmentPair, SegmentRange
from stores.records.segment_values import SegmentValues
from stores.records.segment_writes import SegmentRecord
from stores.records.segmented import (
    SegmentedKind,
    SegmentedStore,
    SegmentedView,
    SegmentReads,
    check_segmented,
)
from stores.records.segments import SEGMENT_BYTES, WindowKeys, check_interval, escaped, packed
from stores.records.serdes import Serde
from stores.records.values import (
    TIME_BYTES,
    RecordStaging,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
    check_bound_ms,
    check_span_ms,
)

K = TypeVar("K")
V = TypeVar("V")
X = TypeVar("X")
_unpack_from = Struct(">Q").unpack_from
_FORM: Final = "(key, window_start_ms)"
_RANGE: Final = "(key, start_ms, end_ms)"


@dataclass(frozen=True)
class Window(SegmentedKind, Generic[K, V]):
    """The description of a store of ``key`` and window start to ``value``. Windows are ``size_ms`` long.

    The stream time is the highest window start ever put. A record is visible while its window start is above the stream
    time minus ``retention_ms``, which is at least the size. Records are dropped by segments of ``segment_ms``, by their
    window starts; the default is half of the retention, and at least a minute. With ``timestamped`` each value has a
    timestamp, and with ``headers`` also the headers of a record. With ``retain_duplicates`` a key and start can have
    several values.

    ``size_ms``, ``retention_ms``, ``segment_ms`` and ``grace_ms`` may differ each time the store is opened. Records
    that were dropped do not come back. With another ``segment_ms``, its default included, opening moves all records
    once.

    With ``on_close`` a window closes once the stream time is at its end plus ``grace_ms``, 0 by default, or later. It
    takes no more records then, and ``on_close`` is called with the window (``Windowed``), its value and the context of
    the task, once for each window that has a value. Writes and outputs of ``on_close`` are in the transaction of the
    record that closed the window, and an exception in it rolls back that transaction. It needs a task under exactly
    once. A window that was closed when a store got its ``on_close`` is not reported.

    A store without timestamps can be opened with them, and one without headers with those. Values that were put before
    have the timestamp -1 and no headers. The way back is a restore from the changelog.

    For checkers of types, ``V`` is the type of the values that are read: of the serde's type a ``ValueAndTimestamp``
    with ``timestamped``, and a ``ValueTimestampHeaders`` with ``headers``.

    Raises: TypeError, ValueError for an invalid argument. Source: Kafka Streams, ``EmitStrategy.onWindowClose``
    (KIP-825); ``TimestampedWindowStoreWithHeaders`` (KIP-1271).
    """

    kind: ClassVar[str] = "window"
    __hash__ = SegmentedKind.__hash__

    key: Serde[K]
    value: Serde[Any]
    size_ms: int
    retention_ms: int
    segment_ms: int | None = None
    timestamped: bool = False
    retain_duplicates: bool = False
    headers: bool = field(default=False, kw_only=True)
    grace_ms: int | None = field(default=None, kw_only=True)
    on_close: Callable[[Windowed[Any], Any, Any], None] | None = field(default=None, kw_only=True, repr=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Window[K, X],
            key: Serde[K],
            value: Serde[X],
            size_ms: int,
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: Literal[False] = False,
            retain_duplicates: bool = False,
            *,
            headers: Literal[False] = False,
            name: str | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], X, Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Window[K, ValueAndTimestamp[X]],
            key: Serde[K],
            value: Serde[X],
            size_ms: int,
            retention_ms: int,
            segment_ms: int | None = None,
            *,
            timestamped: Literal[True],
            retain_duplicates: bool = False,
            headers: Literal[False] = False,
            name: str | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], ValueAndTimestamp[X], Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Window[K, ValueTimestampHeaders[X]],
            key: Serde[K],
            value: Serde[X],
            size_ms: int,
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: bool = False,
            retain_duplicates: bool = False,
            *,
            headers: Literal[True],
            name: str | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], ValueTimestampHeaders[X], Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Window[K, Any],
            key: Serde[K],
            value: Serde[X],
            size_ms: int,
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: bool = False,
            retain_duplicates: bool = False,
            *,
            headers: bool = False,
            name: str | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], X | ValueAndTimestamp[X] | ValueTimestampHeaders[X], Any], None]
            | None = None,
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        check_span_ms("size_ms", self.size_ms)
        check_segmented(self)
        check_type(self.retain_duplicates, bool, "retain_duplicates is a bool")
        if self.retention_ms < self.size_ms:
            raise ValueError(
                f"retention_ms {self.retention_ms} is below size_ms {self.size_ms}: keep windows at least for their "
                "size"
            )
        if self.retain_duplicates and self.on_close is not None:
            raise ValueError("a window with several values has no final one for on_close: drop retain_duplicates")

    @property
    def open_ms(self) -> int:
        return self.size_ms + (self.grace_ms or 0)

    @property
    def keys(self) -> WindowKeys:
        return WindowKeys(self.retain_duplicates)

    def description(self) -> Description:
        return {**super().description(), "size_ms": self.size_ms, "retain_duplicates": self.retain_duplicates}

    def over(self, store: KeyValueStore) -> WindowStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> WindowStore[K, V]:
        return WindowStore(self, staging)

    def view(self, view: KeyValueView) -> WindowView[K, V]:
        return WindowView(self, view)


class WindowReads(SegmentReads[K, V, tuple[K, int]]):
    """Lookups and scans of the visible records, whose window start is above the stream time minus the retention.

    Times are in milliseconds, from 0; both ends of each range are included. An end below 0 is as far as 0, and a range
    that ends before it starts has nothing. Values are ``ValueAndTimestamp`` in a timestamped store, and
    ``ValueTimestampHeaders`` in one with headers.
    Several values of one key and start come in the order of their writes. Each scan is a snapshot.

    Raises: TypeError, ValueError for a key that the serde refuses, and for what is no int below 2**62 as a time;
    SerdeMismatchError; else as those of ``ReadOnlyKeyValueStore``.
    """

    def fetch_one(self, key: K, window_start_ms: int) -> V | None:
        """Return the value of ``key`` in the window with that start, or None; the last written one of several."""
        check_bound_ms("a window start", window_start_ms)
        encoded = self._codec.encode_key(key)
        if not self._scans.lives(window_start_ms):
            return None
        segment = self._retention.segment(window_start_ms)
        start = packed(segment) + self._keys.logged(encoded, window_start_ms)
        values = self._values.now()
        if self._keys.sequenced:
            with self._source.reverse_range(start, start[:-TIME_BYTES] + b"\xff" * TIME_BYTES) as pairs:
                data = next((value for _, value in pairs), None)
        else:
            data = self._source.get(start)
        return None if data is None else values.decode(start, data, segment)

    def fetch(self, key: K, start_ms: int, end_ms: int) -> RecordIterator[tuple[int, V]]:
        """Return an iterator over ``(window_start_ms, value)`` of ``key``, ascending.

        It has the windows that start from ``start_ms`` to ``end_ms``.
        """
        return self._fetched(key, start_ms, end_ms, reverse=False)

    def backward_fetch(self, key: K, start_ms: int, end_ms: int) -> RecordIterator[tuple[int, V]]:
        """Return an iterator like ``fetch``, descending."""
        return self._fetched(key, start_ms, end_ms, reverse=True)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int
    ) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator over ``(Windowed(key, start_ms, end_ms), value)`` of keys from ``key_from`` to ``key_to``.

        It is ordered by key, then by time; None leaves an end open. Keys are in the order of their serialized bytes,
        which is that of the keys if their serde keeps order.
        """
        return self._in_key_order(key_from, key_to, start_ms, end_ms, reverse=False)

    def backward_fetch_range(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int
    ) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator like ``fetch_range``, descending. ``key_from`` is the smaller end."""
        return self._in_key_order(key_from, key_to, start_ms, end_ms, reverse=True)

    def fetch_all(self, start_ms: int, end_ms: int) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator over all keys' ``(Windowed(key, start_ms, end_ms), value)``, by time, then by key.

        It has the windows that start from ``start_ms`` to ``end_ms``. The records of one segment in that range are held
        in memory.
        """
        check_interval("a range of window starts", start_ms, end_ms)
        return self._in_time_order(start_ms, end_ms, reverse=False)

    def backward_fetch_all(self, start_ms: int, end_ms: int) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator like ``fetch_all``, descending."""
        check_interval("a range of window starts", start_ms, end_ms)
        return self._in_time_order(start_ms, end_ms, reverse=True)

    def all(self) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator like ``fetch_all``, for all times."""
        return self._in_time_order(0, None, reverse=False)

    def backward_all(self) -> RecordIterator[tuple[Windowed[K], V]]:
        """Return an iterator like ``all``, descending."""
        return self._in_time_order(0, None, reverse=True)

    def fetch_many(self, ranges: Sequence[tuple[K, int, int]]) -> list[list[tuple[int, V]]]:
        """Return what ``fetch`` yields for each ``(key, start_ms, end_ms)``, in their order, all of one snapshot."""
        check_keys(ranges, "fetch_many", _RANGE)
        spans = []
        for each in ranges:
            check_parts(each, "fetch_many", _RANGE)
            key, start_ms, end_ms = each
            check_interval("a range of window starts", start_ms, end_ms)
            part = escaped(self._codec.encode_key(key))
            spans.append(SegmentRange(start_ms, end_ms, part, part))
        values = self._values.now()
        scans = self._scans.open_many(spans)
        try:
            return [
                list(self._windows(live, values, SEGMENT_BYTES + len(span.first or b"")))
                for live, span in zip(scans, spans, strict=True)
            ]
        finally:
            close_answer(scans)

    @property
    def _form(self) -> str:
        return _FORM

    def _place(self, window: tuple[K, int]) -> tuple[bytes, int]:
        check_parts(window, "get_many", _FORM)
        key, start_ms = window
        check_bound_ms("a window start", start_ms)
        # Nothing lives below 0.
        return self._keys.logged(self._codec.encode_key(key), max(0, start_ms)), start_ms

    def _fetched(self, key: K, start_ms: int, end_ms: int, *, reverse: bool) -> RecordIterator[tuple[int, V]]:
        check_interval("a range of window starts", start_ms, end_ms)
        encoded = self._codec.encode_key(key)
        part = escaped(encoded)
        values = self._values.now()
        live = self._scans.open(start_ms, end_ms, part, part, reverse=reverse)
        return RecordIterator(self._windows(live, values, SEGMENT_BYTES + len(part)), live)

    def _windows(self, live: LiveScans, values: SegmentValues, start_at: int) -> Iterator[tuple[int, V]]:
        for segment, pairs in live.in_segment_order():
            decode = values.decoder(segment)
            if decode is None:
                for key, data in pairs:
                    yield _unpack_from(key, start_at)[0], data  # type: ignore[misc]  # no cast(): it is a call
                continue
            for key, data in pairs:
                try:
                    value = decode(data)
                except Exception:
                    value = values.decode(key, data, segment)
                yield _unpack_from(key, start_at)[0], value

    def _in_key_order(
        self, key_from: K | None, key_to: K | None, start_ms: int, end_ms: int, *, reverse: bool
    ) -> RecordIterator[tuple[Windowed[K], V]]:
        check_interval("a range of window starts", start_ms, end_ms)
        values = self._values.now()
        live = self._opened(key_from, key_to, start_ms, end_ms, reverse=reverse)
        return RecordIterator(self._decoded(live.in_key_order(), values), live)

    def _in_time_order(
        self, start_ms: int, end_ms: int | None, *, reverse: bool
    ) -> RecordIterator[tuple[Windowed[K], V]]:
        values = self._values.now()
        live = self._scans.open_all(start_ms, end_ms, reverse=reverse)
        return RecordIterator(self._decoded(live.in_time_order(), values), live)

    def _decoded(self, pairs: Iterator[SegmentPair], values: SegmentValues) -> Iterator[tuple[Windowed[K], V]]:
        codec, keys, size_ms = self._codec, self._keys, self._description.size_ms
        for logged, data, segment in pairs:
            start_ms = keys.time(logged)
            end_ms = min(start_ms + size_ms, TIME_BOUND_MS - 1)
            key = codec.decode_key(keys.key(logged))
            yield Windowed(key, start_ms, end_ms), values.decode(packed(segment) + logged, data, segment)


class WindowView(WindowReads[K, V], SegmentedView[K, V, tuple[K, int]]):
    """A read-only view of a window store, for any thread."""


class WindowStore(WindowReads[K, V], SegmentedStore[K, V, tuple[K, int]]):
    """A window store for its writing thread, which reads its own uncommitted writes.

    Raises, all writes: TypeError and ValueError for an invalid time, and for a key or value that a serde or the store
    refuses, before anything is staged; else as those of ``KeyValueStore``.
    """

    @overload
    def put(
        self: WindowStore[K, ValueTimestampHeaders[X]],
        key: K,
        value: X | None,
        window_start_ms: int,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None: ...

    @overload
    def put(
        self: WindowStore[K, ValueAndTimestamp[X]],
        key: K,
        value: X | None,
        window_start_ms: int,
        timestamp_ms: int | None = None,
    ) -> None: ...

    @overload
    def put(self, key: K, value: V | None, window_start_ms: int, timestamp_ms: int | None = None) -> None: ...

    def put(
        self, key: K, value: Any, window_start_ms: int, timestamp_ms: int | None = None, headers: Headers = ()
    ) -> None:
        """Stage ``value`` for ``key`` in the window that starts at ``window_start_ms``.

        None deletes, and has no effect if duplicates are retained. The default time is that of the current record, or
        -1 outside of a task. A record older than the retention is dropped and counted (``late_total``); some of them
        are logged as warnings. A store with headers also keeps ``headers``, which are those of
        ``TimestampedKeyValueStoreWithHeaders``.
        """
        self._writes.put(*self._record((key, window_start_ms), value, timestamp_ms, headers))

    def _record(
        self, window: tuple[K, int], value: Any, timestamp_ms: int | None = None, headers: Headers = ()
    ) -> SegmentRecord:
        check_parts(window, "put_many", _FORM)
        key, start_ms = window
        check_time_ms("a window start", start_ms)
        if timestamp_ms is not None:
            check_time_ms("a timestamp", timestamp_ms)
        encoded = self._codec.encode_key(key)
        data = None if value is None else self._codec.encode_value(key, value)
        if headers != ():
            headers = self._checked_headers(headers)
        return SegmentRecord(self._keys.logged(encoded, start_ms), start_ms, data, timestamp_ms, headers)

    @overload
    def update(
        self: WindowStore[K, ValueTimestampHeaders[X]],
        key: K,
        timestamp_ms: int,
        fn: Callable[[X | None], X],
        *,
        grace_ms: int | None = None,
        headers: Headers = (),
    ) -> X | None: ...

    @overload
    def update(
        self: WindowStore[K, ValueAndTimestamp[X]],
        key: K,
        timestamp_ms: int,
        fn: Callable[[X | None], X],
        *,
        grace_ms: int | None = None,
    ) -> X | None: ...

    @overload
    def update(
        self, key: K, timestamp_ms: int, fn: Callable[[V | None], V], *, grace_ms: int | None = None
    ) -> V | None: ...

    def update(
        self,
        key: K,
        timestamp_ms: int,
        fn: Callable[[Any], Any],
        *,
        grace_ms: int | None = None,
        headers: Headers = (),
    ) -> Any | None:
        """Stage the result of ``fn`` for ``key`` in the window of ``timestamp_ms``, and return it.

        Windows start at multiples of ``size_ms``. ``fn`` is called with the value of the window, or None in a new one.
        In a timestamped store the time becomes ``timestamp_ms`` if that is the later one, and ``fn`` gets the value
        alone. In a store with headers the new value has ``headers``, and none of the former one's.

        With ``grace_ms`` a window is closed once the stream time is that far behind its end, or further. Then, and
        for a window that ``on_close`` has reported or that is older than the retention, nothing is called or staged.
        Such a record is counted as one that ``put`` drops, and None is returned.

        Raises: ConfigError if duplicates are retained; as ``put``; the exceptions of ``fn``. Source: Kafka Streams,
        ``TimeWindows.ofSizeAndGrace``; KIP-258, times of aggregates.
        """
        if self._keys.sequenced:
            raise ConfigError(
                f"store {self.name!r} retains duplicates, so that no value is the one to update: call put()"
            )
        size_ms = self._description.size_ms
        start_ms = check_time_ms("timestamp_ms", timestamp_ms) // size_ms * size_ms
        if self._is_closed(start_ms, size_ms, grace_ms):
            return None
        present: Any = self.fetch_one(key, start_ms)
        if present is not None and self._description.keeps_times:
            present, timestamp_ms = present.value, max(present.timestamp_ms, timestamp_ms)
        value = fn(present)
        self._writes.put(*self._record((key, start_ms), value, timestamp_ms, headers))
        return value

    def _windowed(self, logged: bytes) -> Windowed[K]:
        start_ms = self._keys.time(logged)
        end_ms = min(start_ms + self._description.size_ms, TIME_BOUND_MS - 1)
        return Windowed(self._codec.decode_key(self._keys.key(logged)), start_ms, end_ms)

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> WindowView[K, V]:
        return cast(WindowView[K, V], super().read_only(isolation_level, bound))
