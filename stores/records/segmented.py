"""The common part of window and session stores.

Of their descriptions: retention, upgrade to timestamps, conversion. Of the stores: scans, stream time, late records and
dropped segments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

from stores.contract.arguments import (
    TIME_BOUND_MS,
    Headers,
    as_pairs,
    check_function,
    check_keys,
    check_lengths,
    check_pair,
    check_pairs,
    check_time_ms,
    check_type,
)
from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore, KeyValueView
from stores.records.closing import CLOSED, Closing, ClosingIndex, make_or_remove_index
from stores.records.codec import Codec
from stores.records.expiry import STREAM_TIME, stream_time_ms
from stores.records.headers import headers_to_store, value_and_headers
from stores.records.pieces import Pairs, restore_in_pieces
from stores.records.record_kind import (
    REBUILDING,
    Description,
    LoggedRecord,
    RecordConverter,
    RecordKind,
    TypedStore,
    TypedView,
    UnfitRecordError,
    check_time_beside_headers,
    unreadable,
    write_description,
)
from stores.records.segment_scans import LiveScans, SegmentScans, existing_segments
from stores.records.segment_values import (
    DROPPED,
    LOG_FORM,
    OLD_SEGMENTS,
    SEQUENCE,
    STREAMS_FORM,
    SegmentValues,
    logs_for_streams,
    mark_of,
    marks_of,
    number,
    pairs_of,
    preparable,
    runs_from,
)
from stores.records.segment_writes import SegmentRecord, SegmentWrites
from stores.records.segments import SEGMENT_BYTES, RecordRetention, SegmentKeys, default_segment_ms, escaped, packed
from stores.records.serdes import Serde, check_serde
from stores.records.values import (
    RecordStaging,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
    check_span_ms,
)

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")
X = TypeVar("X")
_CLOSES: Final = "closes"
"""The property of a store with an index of its open windows."""
_HEADERS: Final = "headers"
"""The property of a store with headers."""
_FREE: Final = dict.fromkeys(("retention_ms", "size_ms", "segment_ms", "timestamped", _CLOSES, _HEADERS))
"""The properties that may differ from those of an existing store. It may get timestamps, and headers."""


class SegmentedKind(RecordKind):
    """The description of a store whose records lie in segments of time, and are dropped after a retention."""

    key: Serde[Any]
    value: Serde[Any]
    retention_ms: int
    segment_ms: int | None
    timestamped: bool
    headers: bool
    grace_ms: int | None
    on_close: Callable[[Windowed[Any], Any, Any], None] | None
    number_marks: ClassVar[Sequence[str]] = (STREAM_TIME, DROPPED, SEQUENCE, CLOSED)

    @property
    @abstractmethod
    def keys(self) -> SegmentKeys:
        """The codec of the store's keys."""

    @property
    @abstractmethod
    def open_ms(self) -> int:
        """The distance of a record's time to the stream time at which it closes, with ``on_close``."""

    @property
    def keeps_times(self) -> bool:
        """True if each value has a time, as one with headers has."""
        return self.timestamped or self.headers

    @property
    def log_parts(self) -> Callable[[bytes], tuple[bytes, Headers]] | None:
        return value_and_headers if self.headers else None

    @property
    def needs_task(self) -> bool:
        return self.on_close is not None

    @property
    def index(self) -> ClosingIndex | None:
        """The index of open windows; None without ``on_close``."""
        return None if self.on_close is None else ClosingIndex(self.keys, self.open_ms)

    @property
    def retention(self) -> RecordRetention:
        """The retention, with the given or the default length of segments."""
        return RecordRetention(self.retention_ms, self.segment_ms or default_segment_ms(self.retention_ms))

    @property
    def commits_stream_time(self) -> bool:
        # The changelog may lose the record with the highest time, if its window was removed.
        return self.on_close is not None

    def marks_at(self, store: KeyValueStore, stream_time_ms: int) -> Mapping[str, bytes | None]:
        marks = {STREAM_TIME: packed(stream_time_ms)}
        if self.index is not None:
            marks[CLOSED] = packed(self.index.first_open_ms(stream_time_ms, number(marks_of(store), CLOSED)))
        return marks

    def codec(self, name: str) -> Codec[Any, Any]:
        """Return the serdes for a store of that name."""
        return Codec(name, self.key, self.value)

    def values(self, codec: Codec[Any, Any], store: KeyValueStore | KeyValueView) -> SegmentValues:
        """Return the codec of the store's values."""
        return SegmentValues(
            codec,
            marks_of(store),
            timestamped=self.keeps_times,
            takes_timestamps=store.timestamps.are_kept,
            headers=self.headers,
        )

    def converter(self, store: KeyValueStore) -> RecordConverter:
        values = self.values(self.codec(store.name), store)
        return SegmentConverter(store, self.retention, self.keys, values, self.index)

    def expired_records(self, store: KeyValueStore) -> Callable[[bytes], bool]:
        marks, keys, retention = marks_of(store), self.keys, self.retention

        def is_expired(key: bytes) -> bool:
            own = key if keys.is_logged(key) else None
            logged = keys.of_streams(key) if logs_for_streams(marks) else own
            return logged is not None and keys.time(logged) < retention.first_live_ms(stream_time_ms(marks.mark))

        return is_expired

    def description(self) -> Description:
        return {
            "key": self.key.name,
            "value": self.value.name,
            "retention_ms": self.retention_ms,
            "segment_ms": self.retention.segment_ms,
            "timestamped": self.keeps_times,
            **({} if self.on_close is None else {_CLOSES: True}),
            **({_HEADERS: True} if self.headers else {}),
        }

    def prepare(self, store: KeyValueStore) -> None:
        super().prepare(preparable(store))

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take a store with another retention, size or length of segments, or without timestamps so far."""
        own = self._whole_description()
        if {**kept, **_FREE} != {**own, **_FREE}:
            super()._prepare_other(store, kept)
        if not all(type(kept.get(name)) is type(own[name]) for name in own if name not in (_CLOSES, _HEADERS)):
            raise unreadable(store.name)
        if kept.get(_HEADERS) and not self.headers:
            raise StoreIncompatibleError(
                f"store {store.name!r} keeps headers with its values: open it with headers=True. Or wipe it, open it "
                "with headers=False and restore it from its changelog, without the headers"
            )
        if kept["timestamped"] and not self.keeps_times:
            raise StoreIncompatibleError(
                f"store {store.name!r} has timestamps, which a {self.kind} store with timestamped=False can't read: "
                f"open it with timestamped=True. {REBUILDING}"
            )
        # A longer retention may bring records into segments that were dropped.
        marks: dict[str, bytes | None] = {DROPPED: None}
        if kept["segment_ms"] != own["segment_ms"]:
            self._move_to_segments(store, kept)
        if kept["timestamped"] != self.keeps_times:
            # Existing segments do not change; new segments have timestamps. Source: KIP-258, "Upgrading window and
            # session stores".
            marks[OLD_SEGMENTS] = mark_of(runs_from(existing_segments(store, 0, TIME_BOUND_MS)))
        if kept.get(_CLOSES) != own.get(_CLOSES):
            marks[CLOSED] = make_or_remove_index(store, self.index, self.keys)
        write_description(store, own, marks)

    def _move_to_segments(self, store: KeyValueStore, kept: Description) -> None:
        """Move each record of a store with another length of segments to its own. A kill leaves the rest to the next
        opening.

        Raises: StoreIncompatibleError if some segments have timestamps and others do not: it is unknown where the
        records of both would lie.
        """
        if store.mark(OLD_SEGMENTS) is not None:
            raise StoreIncompatibleError(
                f"store {store.name!r} has segments from before it had timestamps, so that segment_ms can't change "
                f"until they have expired: open it with segment_ms={kept['segment_ms']}. {REBUILDING}"
            )
        # No configuration has this length: one with the former length continues the move, too.
        write_description(store, {**kept, "segment_ms": 0})
        retention, time = self.retention, self.keys.time

        def moves() -> Iterator[Pairs]:
            with store.range(packed(0), packed(TIME_BOUND_MS)) as pairs:
                for key, value in pairs:
                    logged = key[SEGMENT_BYTES:]
                    new_key = packed(retention.segment(time(logged))) + logged
                    if new_key != key:
                        yield [(new_key, value), (key, None)]

        restore_in_pieces(store, moves())


def check_segmented(kind: SegmentedKind) -> None:
    """Check the common settings of a description. Raises: TypeError, ValueError."""
    check_serde("key", kind.key)
    check_serde("value", kind.value)
    check_span_ms("retention_ms", kind.retention_ms)
    if kind.segment_ms is not None:
        check_span_ms("segment_ms", kind.segment_ms)
    check_type(kind.timestamped, bool, "timestamped is a bool")
    check_type(kind.headers, bool, "headers is a bool")
    if kind.grace_ms is not None:
        check_time_ms("grace_ms", kind.grace_ms)
    if kind.on_close is None:
        if kind.grace_ms is not None:
            raise ValueError("grace_ms is for on_close: give both, or give the grace to update() or merge()")
        return
    check_function("on_close", kind.on_close, "the window", "the value", "the context")
    if kind.retention_ms < kind.open_ms:
        raise ValueError(
            f"retention_ms {kind.retention_ms} is below the {kind.open_ms} ms after which on_close is called: keep "
            "windows at least until they close"
        )


class SegmentConverter(RecordConverter):
    """A converter that puts each record into its segment, and leaves out records older than the retention.

    It decides by the stream time up to that record, as when it was written. It begins with the marks of ``store``.
    If the first record has a key in the form of Kafka Streams, all have, and the store logs in that form from now on.

    Raises: UnfitRecordError for a record that is not of a store of this kind.
    """

    def __init__(
        self,
        store: KeyValueStore,
        retention: RecordRetention,
        keys: SegmentKeys,
        values: SegmentValues,
        index: ClosingIndex | None,
    ) -> None:
        self._name, self._keeps_marks = store.name, store.keeps_marks
        marks = marks_of(store)
        self._retention, self._keys, self._values = retention, keys, values
        self._stream_time, self._next = stream_time_ms(marks.mark), number(marks, SEQUENCE)
        self._index, self._closed_ms = index, number(marks, CLOSED)
        self._for_streams = logs_for_streams(marks)
        self._for_us = self._stream_time >= 0 and not self._for_streams
        """True once a record in our form is known, after which none of Kafka Streams can come."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        data, keys = record.value, self._keys
        if record.key is None:
            return ()
        key = self._logged(record.key)
        time_ms = keys.time(key)
        if time_ms <= self._stream_time - self._retention.retention_ms:
            return ()
        self._stream_time = max(self._stream_time, time_ms)
        self._next = max(self._next, keys.sequence(key) + 1)
        segment = self._retention.segment(time_ms)
        if data is not None and self._values.keeps_headers:
            check_time_beside_headers(record)
        value = None if data is None else self._values.kept(data, record.timestamp_ms, segment, record.headers)
        pairs = [(packed(segment) + key, value)]
        if self._index is not None:
            is_open = value is not None and time_ms >= self._first_open_ms()
            pairs.append((self._index.entry(key), b"" if is_open else None))
        return pairs if self._keeps_marks else [*pairs, *pairs_of(self.marks())]

    def _logged(self, key: bytes) -> bytes:
        """Return a record's key in our form. Raises: UnfitRecordError."""
        if not self._for_streams and self._keys.is_logged(key):
            self._for_us = True
            return key
        logged = self._keys.of_streams(key)
        # Zero bytes alone show no form.
        if logged is None or self._for_us or not (self._for_streams or self._keys.time(logged)):
            raise UnfitRecordError(
                f"the changelog of store {self._name!r} has a record under key {key!r}, which is not of a "
                "store of this kind: use the kind that logged it, or another changelog"
            )
        self._for_streams = True
        return logged

    def _first_open_ms(self) -> int:
        return 0 if self._index is None else self._index.first_open_ms(self._stream_time, self._closed_ms)

    def marks(self) -> Mapping[str, bytes | None]:
        marks: dict[str, bytes | None] = {}
        if self._stream_time >= 0:
            marks[STREAM_TIME] = packed(self._stream_time)
        if self._keys.sequenced:
            marks[SEQUENCE] = packed(self._next)
        if self._for_streams:
            marks[LOG_FORM] = STREAMS_FORM
        if self._index is not None:
            # All that the committed stream time has closed was reported in its transaction.
            marks[CLOSED] = packed(self._first_open_ms())
        return marks


class SegmentReads(Generic[K, V, W]):
    """The parts that read a window or session store, for its writer and for views. ``W`` is one window or session."""

    def __init__(self, kind: SegmentedKind, source: KeyValueStore | KeyValueView, codec: Codec[K, Any]) -> None:
        self._source, self._codec = source, codec
        self._description: Any = kind
        self._retention = kind.retention
        self._keys: Any = kind.keys
        self._values = kind.values(codec, source)
        self._scans = SegmentScans(source, kind.retention, self._keys.time_part)

    def get_many(self, windows: Sequence[W]) -> list[V | None]:
        """Return the values of windows or sessions, in their order, all of one moment; None for a missing one."""
        check_keys(windows, form=self._form)
        places = [self._place(window) for window in windows]
        values = self._values.now()
        stored = self._scans.get_many(places, is_last_of=self._keys.sequenced)
        return [
            None if data is None else self._decode_at(values, logged, time_ms, data)
            for (logged, time_ms), data in zip(places, stored, strict=True)
        ]

    @property
    @abstractmethod
    def _form(self) -> str:
        """The parts of a window or session, as errors name them."""

    @abstractmethod
    def _place(self, window: W) -> tuple[bytes, int]:
        """Return the key in the changelog of a window or session, and its time. Raises: TypeError, ValueError."""

    def _decode_at(self, values: SegmentValues, logged: bytes, time_ms: int, data: bytes) -> Any:
        return values.decode(self._scans.kept_key(logged, time_ms), data, self._retention.segment(time_ms))

    def _opened(
        self, key_from: K | None, key_to: K | None, earliest_ms: int, latest_ms: int | None, *, reverse: bool
    ) -> LiveScans:
        """Open scans of the keys from ``key_from`` to ``key_to``, at these times; None leaves an end open."""
        first, last = self._codec.encode_bound(key_from), self._codec.encode_bound(key_to)
        return self._scans.open(
            earliest_ms,
            latest_ms,
            None if first is None else escaped(first),
            None if last is None else escaped(last),
            reverse=reverse,
        )


class SegmentedView(SegmentReads[K, V, W], TypedView):
    """A read-only view of a window or session store, for any thread."""

    def __init__(self, kind: SegmentedKind, view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        SegmentReads.__init__(self, kind, view, kind.codec("of a view"))


class SegmentedStore(SegmentReads[K, V, W], TypedStore):
    """A window or session store for its writing thread, which reads its own uncommitted writes."""

    def __init__(self, kind: SegmentedKind, staging: RecordStaging) -> None:
        TypedStore.__init__(self, kind, staging)
        SegmentReads.__init__(self, kind, staging.store, kind.codec(staging.store.name))
        closing = None
        if kind.index is not None and kind.on_close is not None:
            closing = Closing(staging, kind.index, kind.retention, self._values, self._windowed, kind.on_close)
        self._writes = SegmentWrites(staging, self._keys, kind.retention, self._values, closing)

    @abstractmethod
    def _windowed(self, logged: bytes) -> Windowed[K]:
        """Return the window or session of a key in the changelog."""

    @overload
    def put_many(
        self: SegmentedStore[K, ValueTimestampHeaders[X], W],
        pairs: Mapping[W, X | None] | Iterable[tuple[W, X | None]],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None: ...

    @overload
    def put_many(
        self: SegmentedStore[K, ValueAndTimestamp[X], W],
        pairs: Mapping[W, X | None] | Iterable[tuple[W, X | None]],
        timestamps_ms: Sequence[int] | None = None,
    ) -> None: ...

    @overload
    def put_many(
        self,
        pairs: Mapping[W, V | None] | Iterable[tuple[W, V | None]],
        timestamps_ms: Sequence[int] | None = None,
    ) -> None: ...

    def put_many(
        self,
        pairs: Mapping[W, Any] | Iterable[tuple[W, Any]],
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Stage all pairs of a window or session and its value, or none if one of them is refused.

        It has the effect of a ``put`` of each, in their order, and readers of staged data see it in one step. The times
        of the values are in the order of ``pairs``; by default all have that of the current record. So are their
        headers, for a store with headers; by default none has any.
        """
        pairs = as_pairs(pairs)
        check_pairs(pairs)
        listed = list(pairs)
        all_times: Iterable[int | None] = repeat(None)
        if timestamps_ms is not None:
            check_lengths(listed, timestamps_ms=timestamps_ms)
            all_times = [check_time_ms("a timestamp", each) for each in timestamps_ms]
        all_headers: Iterable[Headers] = repeat(())
        if headers is not None:
            check_lengths(listed, headers=headers)
            all_headers = [self._checked_headers(each) for each in headers]
        records = []
        for pair, at, own_headers in zip(listed, all_times, all_headers, strict=False):
            check_pair(pair)
            records.append(self._record(*pair, at, own_headers))
        self._writes.put_all(records)

    def delete_many(self, windows: Iterable[W]) -> None:
        """Stage the removal of all windows or sessions, or of none if one of them is refused."""
        check_keys(windows, "delete_many", self._form)
        self._writes.put_all([self._record(window, None) for window in windows])

    @abstractmethod
    def _record(self, window: W, value: Any, timestamp_ms: int | None = None, headers: Headers = ()) -> SegmentRecord:
        """Return the record to write for a window or session; None deletes. Raises: TypeError, ValueError."""

    def _checked_headers(self, headers: Headers) -> Headers:
        """Return the headers of a write. Raises: TypeError, also for a store without headers; ValueError."""
        headers = headers_to_store(headers)
        if headers and not self._description.headers:
            raise TypeError(f"store {self.name!r} keeps no headers: describe it with headers=True, or leave them out")
        return headers

    @property
    def late_total(self) -> int:
        return self._writes.late.total

    @property
    def _late_kept_total(self) -> int:
        return self._writes.late.kept_total

    def _is_closed(self, time_ms: int, open_ms: int, grace_ms: int | None) -> bool:
        """Return True for a window or session that takes no more records, or is older than the retention; count it."""
        if grace_ms is None:
            return self._writes.is_closed(time_ms, self._retention.retention_ms)
        return self._writes.is_closed(time_ms, open_ms + check_time_ms("grace_ms", grace_ms))

    def _before_commit(self) -> None:
        self._writes.drop_expired()
