"""Session stores: an aggregate of each key and session, for as long as a retention. Source: KIP-258; Kafka,
``SessionStore``. Kafka never shipped one with timestamps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, cast, overload

from stores.contract.arguments import TIME_BOUND_MS, Headers, check_keys, check_parts, check_time_ms
from stores.contract.reading import close_answer
from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.record_kind import RecordIterator
from stores.records.segment_scans import SegmentPair, SegmentRange
from stores.records.segment_values import SegmentValues
from stores.records.segment_writes import SegmentRecord
from stores.records.segmented import SegmentedKind, SegmentedStore, SegmentedView, SegmentReads, check_segmented
from stores.records.segments import SessionKeys, check_interval, check_span, escaped, packed
from stores.records.serdes import Serde
from stores.records.values import RecordStaging, ValueAndTimestamp, ValueTimestampHeaders, Windowed, check_bound_ms

K = TypeVar("K")
V = TypeVar("V")
X = TypeVar("X")
_SEARCH: Final = "(key, earliest_end_ms, latest_start_ms)"
Sessions = RecordIterator[tuple[Windowed[K], V]]


@dataclass(frozen=True)
class Session(SegmentedKind, Generic[K, V]):
    """Describes a store of sessions, which are a ``key``, a start and an end, to ``value``.

    A session lives while its end is above the stream time, which is the highest end ever put, less ``retention_ms``.
    Sessions lie in segments of ``segment_ms`` by their end, and are dropped by segments; by default it is half the
    retention, and a minute at least. With ``timestamped`` each value has a timestamp, and with ``headers`` also the
    headers of a record.

    ``retention_ms``, ``segment_ms``, ``gap_ms`` and ``grace_ms`` may differ each time the store is opened. Sessions
    that were dropped do not come back. With another ``segment_ms``, its default included, opening moves all sessions
    once.

    With ``on_close`` a session closes once the stream time is more than ``gap_ms`` and ``grace_ms`` (0 by default)
    after its end. Then it is reported as a window is: see ``Window``. ``merge`` refuses another ``gap_ms``.

    A store without timestamps or without headers can be opened with them, as a ``Window`` can.

    For checkers of types, ``V`` is the type of the values that are read: of the serde's type a ``ValueAndTimestamp``
    with ``timestamped``, and a ``ValueTimestampHeaders`` with ``headers``.

    Raises: TypeError, ValueError for an invalid argument. Source: KIP-1271, ``SessionStoreWithHeaders``, whose values
    have headers and no timestamp.
    """

    kind: ClassVar[str] = "session"
    __hash__ = SegmentedKind.__hash__

    key: Serde[K]
    value: Serde[Any]
    retention_ms: int
    segment_ms: int | None = None
    timestamped: bool = False
    headers: bool = field(default=False, kw_only=True)
    gap_ms: int | None = field(default=None, kw_only=True)
    grace_ms: int | None = field(default=None, kw_only=True)
    on_close: Callable[[Windowed[Any], Any, Any], None] | None = field(default=None, kw_only=True, repr=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Session[K, X],
            key: Serde[K],
            value: Serde[X],
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: Literal[False] = False,
            *,
            headers: Literal[False] = False,
            name: str | None = None,
            gap_ms: int | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], X, Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Session[K, ValueAndTimestamp[X]],
            key: Serde[K],
            value: Serde[X],
            retention_ms: int,
            segment_ms: int | None = None,
            *,
            timestamped: Literal[True],
            headers: Literal[False] = False,
            name: str | None = None,
            gap_ms: int | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], ValueAndTimestamp[X], Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Session[K, ValueTimestampHeaders[X]],
            key: Serde[K],
            value: Serde[X],
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: bool = False,
            *,
            headers: Literal[True],
            name: str | None = None,
            gap_ms: int | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], ValueTimestampHeaders[X], Any], None] | None = None,
        ) -> None: ...

        @overload
        def __init__(
            self: Session[K, Any],
            key: Serde[K],
            value: Serde[X],
            retention_ms: int,
            segment_ms: int | None = None,
            timestamped: bool = False,
            *,
            headers: bool = False,
            name: str | None = None,
            gap_ms: int | None = None,
            grace_ms: int | None = None,
            on_close: Callable[[Windowed[K], X | ValueAndTimestamp[X] | ValueTimestampHeaders[X], Any], None]
            | None = None,
        ) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap_ms is not None:
            check_time_ms("gap_ms", self.gap_ms)
        if (self.gap_ms is None) != (self.on_close is None):
            raise ValueError("a session needs its gap_ms to close, and on_close is what closes it: give both or none")
        check_segmented(self)

    @property
    def open_ms(self) -> int:
        # As in ``merge``: a record at the end of the gap still belongs to the session.
        return (self.gap_ms or 0) + 1 + (self.grace_ms or 0)

    @property
    def keys(self) -> SessionKeys:
        return SessionKeys()

    def over(self, store: KeyValueStore) -> SessionStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> SessionStore[K, V]:
        return SessionStore(self, staging)

    def view(self, view: KeyValueView) -> SessionView[K, V]:
        return SessionView(self, view)


class SessionReads(SegmentReads[K, V, Windowed[K]]):
    """Lookups and scans of the visible sessions, whose end is above the stream time minus the retention.

    Times are in milliseconds, from 0; bounds are included, and may be below 0. Scans return
    ``(Windowed(key, start_ms, end_ms), value)``; values are ``ValueAndTimestamp`` in a timestamped store, and
    ``ValueTimestampHeaders`` in one with headers.
    They run by key, then by the session's end, then by its start; backward forms from the end. Keys are in the order of
    their serialized bytes, which is that of the keys if their serde keeps order. Each scan is a snapshot.

    Raises: TypeError, ValueError for a key that the serde refuses, and for what is no int below 2**62 as a time;
    SerdeMismatchError; else as those of ``ReadOnlyKeyValueStore``.
    """

    def fetch_session(self, key: K, start_ms: int, end_ms: int) -> V | None:
        """Return the value of the session of ``key`` with this start and end, or None."""
        check_interval("a session", start_ms, end_ms)
        encoded = self._codec.encode_key(key)
        if start_ms < 0 or not self._scans.lives(end_ms):
            return None
        segment = self._retention.segment(end_ms)
        kept_key = packed(segment) + self._keys.logged(encoded, start_ms, end_ms)
        values = self._values.now()
        value = self._source.get(kept_key)
        return None if value is None else values.decode(kept_key, value, segment)

    def fetch(self, key: K) -> Sessions[K, V]:
        """Return an iterator over all sessions of ``key``, ascending."""
        return self._of_key(key, 0, None, reverse=False)

    def backward_fetch(self, key: K) -> Sessions[K, V]:
        """Return an iterator like ``fetch``, descending."""
        return self._of_key(key, 0, None, reverse=True)

    def find_sessions(self, key: K, earliest_end_ms: int, latest_start_ms: int) -> Sessions[K, V]:
        """Return an iterator over the sessions of ``key`` that end at ``earliest_end_ms`` or later and start at
        ``latest_start_ms`` or earlier, ascending.

        With ``time - gap`` and ``time + gap`` these are the sessions that a record of that time belongs to.
        """
        return self._of_key(key, *_checked(earliest_end_ms, latest_start_ms), reverse=False)

    def backward_find_sessions(self, key: K, earliest_end_ms: int, latest_start_ms: int) -> Sessions[K, V]:
        """Return an iterator like ``find_sessions``, descending."""
        return self._of_key(key, *_checked(earliest_end_ms, latest_start_ms), reverse=True)

    def fetch_many(self, keys: Sequence[K]) -> list[list[tuple[Windowed[K], V]]]:
        """Return what ``fetch`` yields for each of ``keys``, in their order, all of one snapshot."""
        check_keys(keys, "fetch_many")
        return self._of_keys([(key, 0, None) for key in keys])

    def find_sessions_many(self, searches: Sequence[tuple[K, int, int]]) -> list[list[tuple[Windowed[K], V]]]:
        """Return what ``find_sessions`` yields for each ``(key, earliest_end_ms, latest_start_ms)``, in their order.

        All are of one snapshot.
        """
        check_keys(searches, "find_sessions_many", _SEARCH)
        for search in searches:
            check_parts(search, "find_sessions_many", _SEARCH)
            _checked(*search[1:])
        return self._of_keys(searches)

    def fetch_range(self, key_from: K | None, key_to: K | None) -> Sessions[K, V]:
        """Return an iterator over all sessions of the keys from ``key_from`` to ``key_to``; None leaves an end open."""
        return self._of_range(key_from, key_to, 0, None, reverse=False)

    def backward_fetch_range(self, key_from: K | None, key_to: K | None) -> Sessions[K, V]:
        """Return an iterator like ``fetch_range``, descending. ``key_from`` is the smaller end."""
        return self._of_range(key_from, key_to, 0, None, reverse=True)

    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int
    ) -> Sessions[K, V]:
        """Return an iterator like ``find_sessions``, for the keys from ``key_from`` to ``key_to``.

        None leaves an end open.
        """
        return self._of_range(key_from, key_to, *_checked(earliest_end_ms, latest_start_ms), reverse=False)

    def backward_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int
    ) -> Sessions[K, V]:
        """Return an iterator like ``find_sessions_range``, descending. ``key_from`` is the smaller end."""
        return self._of_range(key_from, key_to, *_checked(earliest_end_ms, latest_start_ms), reverse=True)

    def _of_key(self, key: K, earliest_end_ms: int, latest_start_ms: int | None, *, reverse: bool) -> Sessions[K, V]:
        part = escaped(self._codec.encode_key(key))
        values = self._values.now()
        live = self._scans.open(earliest_end_ms, None, part, part, reverse=reverse)
        return RecordIterator(self._decoded(live.in_key_order(), values, latest_start_ms), live)

    def _of_keys(self, searches: Sequence[tuple[K, int, int | None]]) -> list[list[tuple[Windowed[K], V]]]:
        parts = [escaped(self._codec.encode_key(key)) for key, _, _ in searches]
        values = self._values.now()
        scans = self._scans.open_many(
            [
                SegmentRange(earliest_end_ms, None, part, part)
                for part, (_, earliest_end_ms, _) in zip(parts, searches, strict=True)
            ]
        )
        try:
            return [
                list(self._decoded(live.in_key_order(), values, latest_start_ms))
                for live, (_, _, latest_start_ms) in zip(scans, searches, strict=True)
            ]
        finally:
            close_answer(scans)

    @property
    def _form(self) -> str:
        return "Windowed(key, start_ms, end_ms)"

    def _place(self, window: Windowed[K]) -> tuple[bytes, int]:
        _check_session(window)
        key, start_ms, end_ms = window
        check_interval("a session", start_ms, end_ms)
        # Nothing lives below 0.
        logged = self._keys.logged(self._codec.encode_key(key), max(0, start_ms), max(0, end_ms))
        return logged, min(start_ms, end_ms) if start_ms < 0 else end_ms

    def _of_range(
        self, key_from: K | None, key_to: K | None, earliest_end_ms: int, latest_start_ms: int | None, *, reverse: bool
    ) -> Sessions[K, V]:
        values = self._values.now()
        live = self._opened(key_from, key_to, earliest_end_ms, None, reverse=reverse)
        return RecordIterator(self._decoded(live.in_key_order(), values, latest_start_ms), live)

    def _decoded(
        self, pairs: Iterator[SegmentPair], values: SegmentValues, latest_start_ms: int | None
    ) -> Iterator[tuple[Windowed[K], V]]:
        codec, keys = self._codec, self._keys
        for logged, value, segment in pairs:
            start_ms = keys.start(logged)
            if latest_start_ms is None or start_ms <= latest_start_ms:
                key = codec.decode_key(keys.key(logged))
                yield (
                    Windowed(key, start_ms, keys.time(logged)),
                    values.decode(packed(segment) + logged, value, segment),
                )


def _check_session(session: object) -> None:
    if not isinstance(session, Windowed):
        raise TypeError(f"a session is a Windowed, not {type(session).__name__}")


def _checked(earliest_end_ms: int, latest_start_ms: int) -> tuple[int, int]:
    # Either may be larger: a session may be between the two times, or contain them.
    check_bound_ms("the earliest end", earliest_end_ms)
    check_bound_ms("the latest start", latest_start_ms)
    return earliest_end_ms, latest_start_ms


class SessionView(SessionReads[K, V], SegmentedView[K, V, Windowed[K]]):
    """A read-only view of a session store, for any thread."""


class SessionStore(SessionReads[K, V], SegmentedStore[K, V, Windowed[K]]):
    """A session store for its writing thread, which reads its own uncommitted writes.

    Raises, all writes: TypeError and ValueError for an invalid session, and for a key or value that a serde or the
    store refuses, before anything is staged; else as those of ``KeyValueStore``.
    """

    @overload
    def put(
        self: SessionStore[K, ValueTimestampHeaders[X]],
        session: Windowed[K],
        aggregate: X | None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None: ...

    @overload
    def put(
        self: SessionStore[K, ValueAndTimestamp[X]],
        session: Windowed[K],
        aggregate: X | None,
        timestamp_ms: int | None = None,
    ) -> None: ...

    @overload
    def put(self, session: Windowed[K], aggregate: V | None, timestamp_ms: int | None = None) -> None: ...

    def put(self, session: Windowed[K], aggregate: Any, timestamp_ms: int | None = None, headers: Headers = ()) -> None:
        """Stage ``aggregate`` for ``session``, whose end may be its start; None deletes.

        The default time is that of the current record, or -1 outside of a task. A session older than the retention is
        dropped and counted (``late_total``); some of them are logged as warnings. A store with headers also keeps
        ``headers``, which are those of ``TimestampedKeyValueStoreWithHeaders``.
        """
        self._writes.put(*self._record(session, aggregate, timestamp_ms, headers))

    def _record(
        self, window: Windowed[K], value: Any, timestamp_ms: int | None = None, headers: Headers = ()
    ) -> SegmentRecord:
        _check_session(window)
        key, start_ms, end_ms = window
        check_span("a session", start_ms, end_ms)
        if timestamp_ms is not None:
            check_time_ms("a timestamp", timestamp_ms)
        encoded = self._codec.encode_key(key)
        data = None if value is None else self._codec.encode_value(key, value)
        if headers != ():
            headers = self._checked_headers(headers)
        return SegmentRecord(self._keys.logged(encoded, start_ms, end_ms), end_ms, data, timestamp_ms, headers)

    def remove(self, session: Windowed[K]) -> None:
        """Stage the removal of ``session``."""
        self.put(session, None)

    @overload
    def merge(
        self: SessionStore[K, ValueTimestampHeaders[X]],
        key: K,
        timestamp_ms: int,
        gap_ms: int,
        fn: Callable[[list[X]], X],
        *,
        grace_ms: int | None = None,
        headers: Headers = (),
    ) -> tuple[Windowed[K], X] | None: ...

    @overload
    def merge(
        self: SessionStore[K, ValueAndTimestamp[X]],
        key: K,
        timestamp_ms: int,
        gap_ms: int,
        fn: Callable[[list[X]], X],
        *,
        grace_ms: int | None = None,
    ) -> tuple[Windowed[K], X] | None: ...

    @overload
    def merge(
        self, key: K, timestamp_ms: int, gap_ms: int, fn: Callable[[list[V]], V], *, grace_ms: int | None = None
    ) -> tuple[Windowed[K], V] | None: ...

    def merge(
        self,
        key: K,
        timestamp_ms: int,
        gap_ms: int,
        fn: Callable[[list[Any]], Any],
        *,
        grace_ms: int | None = None,
        headers: Headers = (),
    ) -> tuple[Windowed[K], Any] | None:
        """Merge a record of ``timestamp_ms`` with the sessions of ``key`` within ``gap_ms``; return the merged session.

        The session lasts from the first to the last time of its records. ``fn`` is called with the values of the
        sessions that are merged, in the order of their ends, and returns that of the merged one. The list is empty for
        a new session. In a timestamped store the value's time is the latest one, and ``fn`` gets the values alone. In
        a store with headers the merged value has ``headers``, and none of those before.

        A store with ``on_close`` has a gap of its own, and takes no other one. A session that it has reported stays as
        it is. With ``grace_ms`` a session is closed once its end is more than ``gap_ms + grace_ms`` behind the stream
        time. If the record only fits a closed one, or is older than the retention, nothing is called or staged. Such a
        record is counted as one that ``put`` drops, and None is returned.

        Raises: as ``put``; the exceptions of ``fn``. Source: Kafka Streams, ``SessionWindows`` and
        ``KStreamSessionWindowAggregate``.
        """
        check_time_ms("timestamp_ms", timestamp_ms)
        check_time_ms("gap_ms", gap_ms)
        declared_ms = self._description.gap_ms
        if declared_ms not in (None, gap_ms):
            raise ValueError(
                f"store {self.name!r} closes sessions by its gap_ms of {declared_ms}, and merge was called with gap_ms "
                f"{gap_ms}: give both the same"
            )
        with self.find_sessions(key, timestamp_ms - gap_ms, min(timestamp_ms + gap_ms, TIME_BOUND_MS - 1)) as pairs:
            parts: list[tuple[Windowed[K], Any]] = [
                pair for pair in pairs if not self._writes.has_reported(pair[0].end_ms)
            ]
        merged = Windowed(
            key,
            min([timestamp_ms, *(part.start_ms for part, _ in parts)]),
            max([timestamp_ms, *(part.end_ms for part, _ in parts)]),
        )
        if self._is_closed(merged.end_ms, gap_ms + 1, grace_ms):
            return None
        values = [value for _, value in parts]
        if self._description.keeps_times:
            timestamp_ms = max([timestamp_ms, *(value.timestamp_ms for value in values)])
            values = [value.value for value in values]
        aggregate = fn(values)
        # The merged one first: if it is refused, nothing has been staged.
        self._writes.put(*self._record(merged, aggregate, timestamp_ms, headers))
        for part, _ in parts:
            # One that the merged session has made too old is dropped with its segment.
            if part != merged and self._scans.lives(part.end_ms):
                self.remove(part)
        return merged, aggregate

    def _windowed(self, logged: bytes) -> Windowed[K]:
        keys = self._keys
        return Windowed(self._codec.decode_key(keys.key(logged)), keys.start(logged), keys.time(logged))

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> SessionView[K, V]:
        return cast(SessionView[K, V], super().read_only(isolation_level, bound))
