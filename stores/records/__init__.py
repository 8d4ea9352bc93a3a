"""Typed stores over any backend: keys and values through serdes, times, versions, windows, sessions (KIP-258, 889)."""

from stores.records.key_value import KeyValue, TypedKeyValueStore, TypedKeyValueView
from stores.records.record_kind import RecordIterator, RecordKind, TypedStore, TypedView
from stores.records.serdes import BYTES, FLOAT64, INT64, JSON, STR, Serde
from stores.records.session import Session, SessionStore, SessionView
from stores.records.timestamped import TimestampedKeyValue, TimestampedKeyValueStore, TimestampedKeyValueView
from stores.records.timestamped_headers import (
    TimestampedKeyValueStoreWithHeaders,
    TimestampedKeyValueViewWithHeaders,
    TimestampedKeyValueWithHeaders,
)
from stores.records.values import (
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
    VersionedRecordWithHeaders,
    Windowed,
)
from stores.records.versioned import Versioned, VersionedStore, VersionedView
from stores.records.versioned_headers import (
    VersionedStoreWithHeaders,
    VersionedViewWithHeaders,
    VersionedWithHeaders,
)
from stores.records.window import Window, WindowStore, WindowView

__all__ = [
    "BYTES",
    "FLOAT64",
    "INT64",
    "JSON",
    "STR",
    "KeyValue",
    "RecordIterator",
    "RecordKind",
    "Serde",
    "Session",
    "SessionStore",
    "SessionView",
    "TimestampedKeyValue",
    "TimestampedKeyValueStore",
    "TimestampedKeyValueStoreWithHeaders",
    "TimestampedKeyValueView",
    "TimestampedKeyValueViewWithHeaders",
    "TimestampedKeyValueWithHeaders",
    "TypedKeyValueStore",
    "TypedKeyValueView",
    "TypedStore",
    "TypedView",
    "ValueAndTimestamp",
    "ValueTimestampHeaders",
    "Versioned",
    "VersionedRecord",
    "VersionedRecordWithHeaders",
    "VersionedStore",
    "VersionedStoreWithHeaders",
    "VersionedView",
    "VersionedViewWithHeaders",
    "VersionedWithHeaders",
    "Window",
    "WindowStore",
    "WindowView",
    "Windowed",
]
