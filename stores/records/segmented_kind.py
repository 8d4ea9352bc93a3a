"""The common part of the descriptions of window and session stores: retention, upgrade to timestamps, conversion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore, KeyValueView
from stores.records.codec import Codec
from stores.records.converters import LoggedRecord, RecordConverter, UnfitRecordError
from stores.records.data_marks import marks_of, pairs_of, preparable
from stores.records.expiry import STREAM_TIME, stream_time_ms
from stores.records.record_kind import REBUILDING, Description, RecordKind, unreadable, write_description
from stores.records.retention import RecordRetention, default_segment_ms
from stores.records.segment_keys import SEGMENT_BYTES, SegmentKeys, packed
from stores.records.segment_scans import existing_segments
from stores.records.segment_values import DROPPED, OLD_SEGMENTS, SEQUENCE, SegmentValues, mark_of, number, runs_from
from stores.records.serdes import Serde, check_serde
from stores.records.values import TIME_BOUND_MS, check_span_ms

_FREE: Final = dict.fromkeys(("retention_ms", "size_ms", "segment_ms", "timestamped"))
"""The properties that may differ from those of an existing store. A store without timestamps may get them."""
_PIECE_BYTES: Final = 1 << 20
"""The keys and values of one write while records are moved to other segments."""


class SegmentedKind(RecordKind):
    """The description of a store whose records lie in segments of time, and are dropped after a retention."""

    key: Serde[Any]
    value: Serde[Any]
    retention_ms: int
    segment_ms: int | None
    timestamped: bool
    number_marks: ClassVar[Sequence[str]] = (STREAM_TIME, DROPPED, SEQUENCE)

    @property
    @abstractmethod
    def keys(self) -> SegmentKeys:
        """The codec of the store's keys."""

    @property
    def retention(self) -> RecordRetention:
        """The retention, with the given or the default length of segments."""
        return RecordRetention(self.retention_ms, self.segment_ms or default_segment_ms(self.retention_ms))

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
        return SegmentConverter(store, self.retention, self.keys, values)

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
        }

    def prepare(self, store: KeyValueStore) -> None:
        super().prepare(preparable(store))

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take a store with another retention, size or length of segments, or without timestamps so far."""
        own = self._whole_description()
        if {**kept, **_FREE} != {**own, **_FREE}:
            super()._prepare_other(store, kept)
        if not all(type(kept.get(name)) is type(own[name]) for name in own):
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
        piece: list[tuple[bytes, bytes | None]] = []
        piece_bytes = 0
        with store.range(packed(0), packed(TIME_BOUND_MS)) as pairs:
            for key, value in pairs:
                logged = key[SEGMENT_BYTES:]
                moved = packed(retention.segment(time(logged))) + logged
                if moved != key:
                    piece += (moved, value), (key, None)
                    piece_bytes += len(key) + len(moved) + len(value)
                if piece_bytes >= _PIECE_BYTES:
                    store.restore(piece, {})
                    piece, piece_bytes = [], 0
        store.restore(piece, {})


def check_flag(what: str, given: object) -> None:
    """Check that a setting is a bool. Raises: TypeError."""
    if not isinstance(given, bool):
        raise TypeError(f"{what} is a bool, not {type(given).__name__}")


def check_segmented(kind: SegmentedKind) -> None:
    """Check the common settings of a description. Raises: TypeError, ValueError."""
    check_serde("key", kind.key)
    check_serde("value", kind.value)
    check_span_ms("retention_ms", kind.retention_ms)
    if kind.segment_ms is not None:
        check_span_ms("segment_ms", kind.segment_ms)
    check_flag("timestamped", kind.timestamped)


class SegmentConverter(RecordConverter):
    """A converter that puts each record into its segment, and leaves out records older than the retention.

    It decides by the stream time up to that record, as when it was written. It begins with the marks of ``store``.

    Raises: UnfitRecordError for a record that is not of a store of this kind.
    """

    def __init__(
        self, store: KeyValueStore, retention: RecordRetention, keys: SegmentKeys, values: SegmentValues
    ) -> None:
        self._name, self._keeps_marks = store.name, store.keeps_marks
        marks = marks_of(store)
        self._retention, self._keys, self._values = retention, keys, values
        self._stream_time, self._next = stream_time_ms(marks.mark), number(marks, SEQUENCE)

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
        kept = None if data is None else self._values.kept(data, record.timestamp_ms, segment)
        pair = packed(segment) + key, kept
        return (pair,) if self._keeps_marks else (pair, *pairs_of(self.marks()))

    def marks(self) -> Mapping[str, bytes | None]:
        marks: dict[str, bytes | None] = {}
        if self._stream_time >= 0:
            marks[STREAM_TIME] = packed(self._stream_time)
        if self._keys.sequenced:
            marks[SEQUENCE] = packed(self._next)
        return marks
