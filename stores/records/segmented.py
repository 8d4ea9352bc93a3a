"""The common part of window and session stores.

Of their descriptions: retention, upgrade to timestamps, conversion. Of the stores: scans, stream time, late records and
dropped segments.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Generic, TypeVar

from stores.contract.arguments import TIME_BOUND_MS, check_function, check_time_ms, check_type
from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore, KeyValueView
from stores.records.closing import CLOSED, Closing, ClosingIndex, make_or_remove_index
from stores.records.expiry import STREAM_TIME, stream_time_ms, stream_time_of
from stores.records.record_kind import (
    REBUILDING,
    Description,
    LoggedRecord,
    Pairs,
    RecordConverter,
    RecordKind,
    TypedStore,
    TypedView,
    UnfitRecordError,
    restore_in_pieces,
    unreadable,
    write_description,
)
from stores.records.segment_scans import LiveScans, SegmentScans, existing_segments
from stores.records.segment_values import (
    DROPPED,
    OLD_SEGMENTS,
    SEQUENCE,
    SegmentValues,
    mark_of,
    mark_setter,
    marks_of,
    number,
    pair_key,
    pairs_of,
    preparable,
    runs_from,
    runs_of,
    runs_without,
)
from stores.records.segments import SEGMENT_BYTES, RecordRetention, SegmentKeys, default_segment_ms, escaped, packed
from stores.records.serdes import Codec, Serde, check_serde
from stores.records.values import RecordStaging, StagedWrite, Windowed, check_span_ms

K = TypeVar("K")
V = TypeVar("V")
_LOG = logging.getLogger(__name__)
_TOLD_EVERY = 10_000
"""One of this number of late records causes a warning, always the first one."""
_STEP_RECORDS = 1_000
"""The number of expired records that a commit drops, or twice its number of writes if that is more. So a commit takes
little longer, and expired records do not pile up."""
_CLOSES: Final = "closes"
"""The property of a store with an index of its open windows."""
_FREE: Final = dict.fromkeys(("retention_ms", "size_ms", "segment_ms", "timestamped", _CLOSES))
"""The properties that may differ from those of an existing store. A store without timestamps may get them."""


class SegmentedKind(RecordKind):
    """The description of a store whose records lie in segments of time, and are dropped after a retention."""

    key: Serde[Any]
    value: Serde[Any]
    retention_ms: int
    segment_ms: int | None
    timestamped: bool
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
            codec, marks_of(store), timestamped=self.timestamped, takes_timestamps=store.timestamps.are_kept
        )

    def converter(self, store: KeyValueStore) -> RecordConverter:
        values = self.values(self.codec(store.name), store)
        return SegmentConverter(store, self.retention, self.keys, values, self.index)

    def expired_records(self, store: KeyValueStore) -> Callable[[bytes], bool]:
        mark, keys, retention = marks_of(store).mark, self.keys, self.retention

        def is_expired(key: bytes) -> bool:
            return keys.is_logged(key) and keys.time(key) < retention.first_live_ms(stream_time_ms(mark))

        return is_expired

    def description(self) -> Description:
        return {
            "key": self.key.name,
            "value": self.value.name,
            "retention_ms": self.retention_ms,
            "segment_ms": self.retention.segment_ms,
            "timestamped": self.timestamped,
            **({} if self.on_close is None else {_CLOSES: True}),
        }

    def prepare(self, store: KeyValueStore) -> None:
        super().prepare(preparable(store))

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take a store with another retention, size or length of segments, or without timestamps so far."""
        own = self._whole_description()
        if {**kept, **_FREE} != {**own, **_FREE}:
            super()._prepare_other(store, kept)
        if not all(type(kept.get(name)) is type(own[name]) for name in own if name != _CLOSES):
            raise unreadable(store.name)
        if kept["timestamped"] and not self.timestamped:
            raise StoreIncompatibleError(
                f"store {store.name!r} has timestamps, which a {self.kind} store with timestamped=False can't read: "
                f"open it with timestamped=True. {REBUILDING}"
            )
        # A longer retention may bring records into segments that were dropped.
        marks: dict[str, bytes | None] = {DROPPED: None}
        if kept["segment_ms"] != own["segment_ms"]:
            self._move_to_segments(store, kept)
        if kept["timestamped"] != self.timestamped:
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

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, data, keys = record.key, record.value, self._keys
        if key is None:
            return ()
        if not keys.is_logged(key):
            raise UnfitRecordError(
                f"the changelog of store {self._name!r} has a record under key {key!r}, which is not of a "
                "store of this kind: use the kind that logged it, or another changelog"
            )
        time_ms = keys.time(key)
        if time_ms <= self._stream_time - self._retention.retention_ms:
            return ()
        self._stream_time = max(self._stream_time, time_ms)
        self._next = max(self._next, keys.sequence(key) + 1)
        segment = self._retention.segment(time_ms)
        value = None if data is None else self._values.kept(data, record.timestamp_ms, segment)
        pairs = [(packed(segment) + key, value)]
        if self._index is not None:
            is_open = value is not None and time_ms >= self._first_open_ms()
            pairs.append((self._index.entry(key), b"" if is_open else None))
        return pairs if self._keeps_marks else [*pairs, *pairs_of(self.marks())]

    def _first_open_ms(self) -> int:
        return 0 if self._index is None else self._index.first_open_ms(self._stream_time, self._closed_ms)

    def marks(self) -> Mapping[str, bytes | None]:
        marks: dict[str, bytes | None] = {}
        if self._stream_time >= 0:
            marks[STREAM_TIME] = packed(self._stream_time)
        if self._keys.sequenced:
            marks[SEQUENCE] = packed(self._next)
        if self._index is not None:
            # All that the committed stream time has closed was reported in its transaction.
            marks[CLOSED] = packed(self._first_open_ms())
        return marks


class SegmentWrites:
    """The writer of one store."""

    def __init__(
        self,
        staging: RecordStaging,
        retention: RecordRetention,
        values: SegmentValues,
        closing: Closing | None,
    ) -> None:
        self._closing = closing
        self._staging, self._store = staging, staging.store
        self._marks, self._set_mark = marks_of(staging.store), mark_setter(staging)
        self._retention, self._values = retention, values
        self._retention_ms, self._segment_ms = retention.retention_ms, retention.segment_ms
        self._mark, self._stream_time = self._marks.mark, -1
        self._stream_mark: bytes | None = None
        """The mark from which ``_stream_time`` was read. A change or a rollback makes a different object."""
        self._segment, self._prefix = -1, b""
        """The segment of the last write, and the prefix of its keys."""
        self._writes = 0
        """The number of writes since the last commit."""
        self.late_total = 0
        """The number of records that were older than the retention when they were put."""

    def put(self, logged: bytes, time_ms: int, data: bytes | None, timestamp_ms: int | None) -> bool:
        """Stage ``data`` under the key ``logged``, None to delete it; return False if it is too old and was dropped."""
        mark = self._mark(STREAM_TIME)
        if mark is not self._stream_mark:
            self._stream_mark, self._stream_time = mark, stream_time_of(mark)
            if self._closing is not None:
                self._closing.forget()
        stream_time, closing = self._stream_time, self._closing
        if time_ms <= stream_time - self._retention_ms:
            self._tell_late(time_ms, stream_time, self._retention_ms)
            return False
        if closing is not None and data is not None and closing.has_closed(time_ms, stream_time):
            self._tell_late(time_ms, stream_time, closing.open_ms)
            return False
        segment = time_ms // self._segment_ms
        if segment != self._segment:
            self._segment, self._prefix = segment, packed(segment)
        staging, value = self._staging, data
        if data is not None and self._values.takes_timestamps:
            value = self._values.kept(data, staging.timestamp_ms if timestamp_ms is None else timestamp_ms, segment)
        try:
            if time_ms > stream_time or closing is not None:
                writes = [StagedWrite(self._prefix + logged, value, logged, data, timestamp_ms)]
                if closing is not None:
                    writes += closing.writes(logged, time_ms, is_removal=data is None)
                self._put_all(writes, time_ms if time_ms > stream_time else None)
            else:
                staging.put(self._prefix + logged, value, logged, data, timestamp_ms)
        except BaseException as error:
            self._check_length(logged, error)
            raise
        self._writes += 1
        if closing is not None and time_ms > stream_time:
            # It is what the store returns from now on, unless it is rolled back or restored.
            self._stream_mark, self._stream_time = self._mark(STREAM_TIME), time_ms
            closing.moved(time_ms)
        return True

    def _put_all(self, writes: list[StagedWrite], stream_time_ms: int | None) -> None:
        """Stage writes and the stream time, unless it is None. Records above it are hidden, so both are one step."""
        if stream_time_ms is None:
            self._staging.put_all(writes)
        elif self._store.keeps_marks:
            self._staging.put_all(writes, {STREAM_TIME: packed(stream_time_ms)})
        else:
            self._staging.put_all([StagedWrite(pair_key(STREAM_TIME), packed(stream_time_ms)), *writes])

    def _check_length(self, logged: bytes, error: BaseException) -> None:
        """Explain that a key is too long with its times and segment. Raises: ValueError."""
        num_bytes, most = len(self._prefix) + len(logged), self._store.max_key_bytes
        if isinstance(error, ValueError) and num_bytes > most:
            raise ValueError(
                f"store {self._store.name!r}: with its times and segment the key has {num_bytes} bytes, and "
                f"{self._store.backend} accepts up to {most}: use a shorter key"
            ) from error

    def is_closed(self, time_ms: int, open_ms: int) -> bool:
        """Return True for a time that is ``open_ms`` or more, or the retention, behind the stream time; count it."""
        stream_time = stream_time_ms(self._mark)
        kept_ms = min(open_ms, self._retention_ms)
        closed = time_ms <= stream_time - kept_ms or self.has_reported(time_ms, stream_time)
        if closed:
            self._tell_late(time_ms, stream_time, kept_ms)
        return closed

    def has_reported(self, time_ms: int, stream_time: int | None = None) -> bool:
        """Return True if a window or session of that time was reported as closed, or is about to be."""
        if self._closing is None:
            return False
        return self._closing.has_closed(time_ms, stream_time_ms(self._mark) if stream_time is None else stream_time)

    def next_number(self) -> int:
        """Return the number for a duplicate, above all numbers so far."""
        return number(self._marks, SEQUENCE)

    def took_number(self, sequence: int) -> None:
        """Stage that the number is used."""
        self._set_mark(SEQUENCE, packed(sequence + 1))

    def drop_expired(self) -> None:
        """Stage the removal of the segments without living records.

        All are removed if the cost of a range delete is constant, otherwise a bounded number of records. The rest is
        not visible to readers.
        """
        most, self._writes = max(_STEP_RECORDS, 2 * self._writes), 0
        store = self._store
        first = self._retention.first_live_segment(stream_time_ms(self._marks.mark))
        if first == number(self._marks, DROPPED):
            return
        start, end = packed(number(self._marks, DROPPED)), packed(first)
        if not store.deletes_ranges_whole:
            with store.range(start, end) as pairs:
                expired = [key for key, _ in islice(pairs, most)]
            if len(expired) == most:
                self._staging.delete_range(expired[0], expired[-1], logged=False)
                return
        self._staging.delete_range(start, end, logged=False)
        self._set_mark(DROPPED, packed(first))
        old = self._marks.mark(OLD_SEGMENTS)
        if old is not None:
            self._set_mark(OLD_SEGMENTS, mark_of(runs_without(runs_of(old), first)))

    def _tell_late(self, time_ms: int, stream_time: int, kept_ms: int) -> None:
        self.late_total += 1
        if self.late_total % _TOLD_EVERY == 1:
            _LOG.warning(
                "store %r dropped a record of time %d, which is %d ms or more behind the stream time %d; "
                "%d were dropped since it was opened",
                self._store.name,
                time_ms,
                kept_ms,
                stream_time,
                self.late_total,
            )


class SegmentReads(Generic[K, V]):
    """The parts that read a window or session store, for its writer and for views."""

    def __init__(self, kind: SegmentedKind, source: KeyValueStore | KeyValueView, codec: Codec[K, Any]) -> None:
        self._source, self._codec = source, codec
        self._description: Any = kind
        self._retention = kind.retention
        self._keys: Any = kind.keys
        self._values = kind.values(codec, source)
        self._scans = SegmentScans(source, kind.retention, self._keys.time_part)

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


class SegmentedView(SegmentReads[K, V], TypedView):
    """A read-only view of a window or session store, for any thread."""

    def __init__(self, kind: SegmentedKind, view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        SegmentReads.__init__(self, kind, view, kind.codec("of a view"))


class SegmentedStore(SegmentReads[K, V], TypedStore):
    """A window or session store for its writing thread, which reads its own uncommitted writes."""

    def __init__(self, kind: SegmentedKind, staging: RecordStaging) -> None:
        TypedStore.__init__(self, kind, staging)
        SegmentReads.__init__(self, kind, staging.store, kind.codec(staging.store.name))
        closing = None
        if kind.index is not None and kind.on_close is not None:
            closing = Closing(staging, kind.index, kind.retention, self._values, self._windowed, kind.on_close)
        self._writes = SegmentWrites(staging, kind.retention, self._values, closing)

    @abstractmethod
    def _windowed(self, logged: bytes) -> Windowed[K]:
        """Return the window or session of a key in the changelog."""

    @property
    def late_total(self) -> int:
        return self._writes.late_total

    def _is_closed(self, time_ms: int, open_ms: int, grace_ms: int | None) -> bool:
        """Return True for a window or session that takes no more records, or is older than the retention; count it."""
        if grace_ms is None:
            return self._writes.is_closed(time_ms, self._retention.retention_ms)
        return self._writes.is_closed(time_ms, open_ms + check_time_ms("grace_ms", grace_ms))

    def _before_commit(self) -> None:
        self._writes.drop_expired()
