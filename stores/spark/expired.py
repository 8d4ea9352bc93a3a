"""The records of a state that a reader of its log hides: those that have expired at the version's stream time.

A function does not see them either: they are in the store until a later commit removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stores.interface import KeyValueStore
from stores.records import TimestampedKeyValue
from stores.records.expiry import STREAM_TIME, stream_time_of
from stores.records.record_kind import RecordKind
from stores.records.segments import RecordRetention, keys_described, packed, unpacked
from stores.records.values import TIME_BYTES

TTL = "query_ttl_ms"
"""The mark with the time to live of a store's records. It is no part of the description, because it may change."""


def keep_ttl(store: KeyValueStore, records: RecordKind | None) -> None:
    """Stage the time to live of ``records`` as a mark, if it is another one than in the state."""
    if not isinstance(records, TimestampedKeyValue) or not store.keeps_marks:
        return
    mark = None if records.ttl_ms is None else packed(records.ttl_ms)
    if mark != store.mark(TTL):
        store.set_mark(TTL, mark)


def expired_by(kind: Mapping[str, Any], marks: Mapping[str, bytes]) -> Callable[[bytes, bytes], bool]:
    """Return a function that returns True for the key and the value of an expired record of a store.

    ``kind`` is its description, ``marks`` are those of its state at a version.
    """
    stream_time_ms = stream_time_of(marks.get(STREAM_TIME))
    keys = keys_described(kind)
    if keys is not None:
        first_ms = RecordRetention(kind["retention_ms"], kind["segment_ms"]).first_live_ms(stream_time_ms)
        return lambda key, value: keys.time(key) < first_ms
    if TTL in marks:
        limit_ms = stream_time_ms - unpacked(marks[TTL])
        return lambda key, value: 0 <= int.from_bytes(value[:TIME_BYTES], "big", signed=True) <= limit_ms
    return lambda key, value: False
