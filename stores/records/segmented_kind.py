"""The common part of the descriptions of window and session stores: retention, and the upgrade to timestamps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from stores.errors import StoreIncompatibleError
from stores.interface import KeyValueStore, KeyValueView
from stores.records.codec import Codec
from stores.records.converters import RecordConverter
from stores.records.data_marks import marks_of, preparable
from stores.records.expiry import stream_time_ms
from stores.records.record_kind import Description, RecordKind, write_description
from stores.records.retention import Retention, default_segment_ms
from stores.records.segment_converter import LoggedKeys, SegmentConverter
from stores.records.segment_marks import OLD_SEGMENTS, mark_of, runs_from
from stores.records.segment_scans import existing_segments
from stores.records.segment_values import SegmentValues
from stores.records.serdes import Serde, check_serde
from stores.records.values import TIME_BOUND_MS, check_span_ms


class SegmentedKind(RecordKind):
    """The description of a store whose records lie in segments of time, and are dropped after a retention."""

    key: Serde[Any]
    value: Serde[Any]
    retention_ms: int
    segment_ms: int | None
    timestamped: bool

    @property
    @abstractmethod
    def keys(self) -> LoggedKeys:
        """The codec of the store's keys."""

    @property
    def sequenced(self) -> bool:
        """True if keys have a sequence number."""
        return False

    @property
    def retention(self) -> Retention:
        """The retention, with the given or the default length of segments."""
        return Retention(self.retention_ms, self.segment_ms or default_segment_ms(self.retention_ms))

    def codec(self, name: str) -> Codec[Any, Any]:
        """Return the serdes for a store of that name."""
        return Codec(name, self.key, self.value)

    def values(self, codec: Codec[Any, Any], store: KeyValueStore | KeyValueView) -> SegmentValues:
        """Return the codec of the store's values."""
        return SegmentValues(
            codec, marks_of(store), timestamped=self.timestamped, takes_timestamps=store.takes_timestamps
        )

    def converter(self, store: KeyValueStore) -> RecordConverter:
        values = self.values(self.codec(store.name), store)
        return SegmentConverter(store, self.retention, self.keys, values, sequenced=self.sequenced)

    @property
    def log_retention_ms(self) -> int | None:
        return self.retention_ms

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
        own = self._whole_description()
        if {**kept, "timestamped": None} != {**own, "timestamped": None}:
            super()._prepare_other(store, kept)
        if not self.timestamped:
            raise StoreIncompatibleError(
                f"store {store.name!r} has timestamps, which a {self.kind} store with timestamped=False can't read: "
                "open it with timestamped=True, or wipe it and restore it from its changelog"
            )
        # Existing segments do not change; new segments have timestamps. Source: KIP-258, "Upgrading window and session
        # stores".
        old = mark_of(runs_from(existing_segments(store, 0, TIME_BOUND_MS)))
        write_description(store, own, {OLD_SEGMENTS: old})


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
