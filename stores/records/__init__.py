"""Typed stores over any backend: keys and values through serdes, timestamps, windows and sessions (KIP-258)."""

from stores.records.key_value import KeyValue, TypedKeyValueStore, TypedKeyValueView
from stores.records.record_kind import RecordIterator, RecordKind, TypedStore, TypedView
from stores.records.serdes import BYTES, FLOAT64, INT64, JSON, STR, Serde
from stores.records.session import Session, SessionStore, SessionView
from stores.records.timestamped import TimestampedKeyValue, TimestampedKeyValueStore, TimestampedKeyValueView
from stores.records.values import ValueAndTimestamp, Windowed
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
    "TimestampedKeyValueView",
    "TypedKeyValueStore",
    "TypedKeyValueView",
    "TypedStore",
    "TypedView",
    "ValueAndTimestamp",
    "Window",
    "WindowStore",
    "WindowView",
    "Windowed",
]
