"""The rows of a state, read from its log without a local copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from stores.changelog.files import VersionLog
from stores.errors import SerdeMismatchError
from stores.records.segment_keys import (
    SEGMENT_BYTES,
    TIME_BYTES,
    has_timestamps,
    keys_described,
)
from stores.records.serdes import FLOAT64, INT64, JSON, STR
from stores.spark import timers
from stores.spark.expired import expired_by

K = TypeVar("K")
Row = tuple[int, str, str, str, datetime | None, datetime | None, datetime | None]
"""Partition, store, key, value, timestamp, and the start and the end of a window or a session."""
_SERDES: Mapping[str, Any] = {serde.name: serde for serde in (STR, INT64, FLOAT64, JSON)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(log: VersionLog, partition: int, version: int, store: str | None = None) -> Iterator[Row]:
    """Return the rows of one partition at ``version``, by store and key, without those that have expired.

    The partition is held in memory.

    Raises: OffsetOutOfRangeError for a version that the log does not keep; ChangelogError; SerdeMismatchError.
    """
    kinds: Any = log.description["stores"]
    state: dict[str, dict[bytes, bytes]] = {}
    marks: dict[str, dict[str, bytes]] = {}
    for piece in log.partition(partition).restore(None, version):
        if piece.fresh:
            state, marks = {}, {}
        for name, changed in piece.changes.items():
            if store in (None, name):
                _apply(changed.pairs, state.setdefault(name, {}))
                _apply(changed.marks, marks.setdefault(name, {}))
    for name in sorted(state):
        decoder, is_expired = _Decoder(name, kinds[name]), expired_by(kinds[name], marks.get(name, {}))
        for key, value in sorted(state[name].items()):
            if is_expired(key, value):
                continue
            yield (partition, name, *decoder.row(key, value))


def _apply(changes: Mapping[K, bytes | None], kept: dict[K, bytes]) -> None:
    for key, value in changes.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value


class _Decoder:
    """Takes the keys, values and times of one store apart, as its description says."""

    def __init__(self, store: str, kind: Mapping[str, Any]) -> None:
        self._store = store
        self._kind = kind["kind"]
        self._timestamped = has_timestamps(kind)
        self._keys = keys_described(kind)
        self._size_ms = kind.get("size_ms")
        self._key, self._value = _SERDES.get(kind.get("key", "")), _SERDES.get(kind.get("value", ""))

    def row(self, key: bytes, value: bytes) -> tuple[str, str, datetime | None, datetime | None, datetime | None]:
        if self._kind == timers.KIND:
            shown, nothing, time_ms = timers.shown(key, value)
            return shown, nothing, _time(time_ms), None, None
        start = end = timestamp = None
        bare = key
        if self._keys is not None:
            start, *ends = self._keys.times(key).values()
            end = ends[0] if ends else start + self._size_ms if isinstance(self._size_ms, int) else None
            bare = self._keys.key(key[SEGMENT_BYTES:])
        if self._timestamped:
            timestamp = int.from_bytes(value[:TIME_BYTES], "big", signed=True)
            value = value[TIME_BYTES:]
        return (
            self._shown(self._key, bare, "key", key),
            self._shown(self._value, value, "value", key),
            None if timestamp is None or timestamp < 0 else _time(timestamp),
            None if start is None else _time(start),
            None if end is None else _time(end),
        )

    def _shown(self, serde: Any, data: bytes, what: str, key: bytes) -> str:
        if serde is None:
            return data.hex()
        try:
            read = serde.deserialize(data)
        except Exception as error:
            raise SerdeMismatchError(
                f"the {what} under the key {key.hex()} of store {self._store!r} is not of type {serde.name}: read the "
                "state with the release that wrote it"
            ) from error
        return read if isinstance(read, str) and serde is STR else json.dumps(read, ensure_ascii=False, sort_keys=True)


def _time(milliseconds: int) -> datetime | None:
    """Return the time, None if it is after the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
