"""The records of a dump as text or JSON: decoded as the store describes them, or as asked; other bytes are escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from stores.errors import ConfigError
from stores.records import closing, expiring, versions
from stores.records.expiry import STREAM_TIME, has_expired, stream_time_of
from stores.records.headers import stored_time_ms, value_and_headers
from stores.records.record_kind import RECORDS, described
from stores.records.segment_values import OLD_SEGMENTS, is_old
from stores.records.segments import (
    SEGMENT_BYTES,
    has_headers,
    has_timestamps,
    keys_described,
)
from stores.records.serdes import FLOAT64, INT64, JSON, STR
from stores.records.timestamped import TTL
from stores.records.values import TIME_BYTES

SERDES: Mapping[str, Callable[[bytes], Any]] = {
    "str": STR.deserialize,
    "int64": INT64.deserialize,
    "float64": FLOAT64.deserialize,
    "json": JSON.deserialize,
    "bytes": bytes,
}
_MSGSPEC_JSON = "msgspec-json:"
"""The beginning of the names of serdes that write JSON."""
Line = dict[str, object]


class Decoder:
    """Decodes the records of the store ``name``, which has these marks.

    ``key`` and ``value`` are in ``SERDES``. None takes the serde that the store's description names; without one, or of
    another name, they stay bytes. The times of a typed store are taken out of its records.

    Raises: StoreCorruptedError if the description can't be read.
    """

    def __init__(self, name: str, marks: Mapping[str, bytes], key: str | None, value: str | None) -> None:
        kind = described(marks[RECORDS], name) if RECORDS in marks else {}
        self._key = _serde(kind.get("key")) if key is None else key
        self._value = _serde(kind.get("value")) if value is None else value
        self._keys = keys_described(kind)
        self._timestamped = has_timestamps(kind)
        self._with_headers = has_headers(kind)
        self._versioned = kind.get("kind") == versions.VERSIONED
        self._old_segments = marks.get(OLD_SEGMENTS)
        self._index = _index(kind)
        lived_ms = kind.get("retention_ms", kind.get(TTL))
        self._expired_ms = -1
        """The highest time that has expired; -1 for none."""
        if isinstance(lived_ms, int):
            self._expired_ms = stream_time_of(marks.get(STREAM_TIME)) - lived_ms

    def is_expired(self, key: bytes, value: bytes, *, plain: bool = False) -> bool:
        """Return True for a record that the store no longer shows; ``plain`` as in ``record``.

        All versions that a versioned store keeps count as shown.
        """
        if self._keys is not None:
            return self._keys.time(key) <= self._expired_ms
        return self._timestamped and not plain and has_expired(value, self._expired_ms)

    def is_of_index(self, key: bytes) -> bool:
        """Return True for a key of an index by time, which stands for no record of its own."""
        return self._index is not None and key.startswith(self._index)

    def record(self, key: bytes, value: bytes, *, plain: bool = False) -> Line:
        """Return a record by the names of its parts; bytes are those that no serde was asked for.

        ``plain`` is True in the older data family of a store that is being upgraded, whose values have no time.
        Raises: ConfigError for bytes that are not of the serde.
        """
        if self._versioned:
            return self._version(key, value)
        keys = self._keys
        line: Line = {} if keys is None else {**keys.times(key)}
        bare = key if keys is None else keys.key(key[SEGMENT_BYTES:])
        if self._timestamped and not plain and (keys is None or not is_old(key, self._old_segments)):
            if self._with_headers:
                value, more = _with_headers(key, value)
                line |= more
            else:
                line["timestamp_ms"] = int.from_bytes(value[:TIME_BYTES], "big", signed=True)
                value = value[TIME_BYTES:]
        return {
            "key": _decoded(self._key, "key", bare, key),
            "value": _decoded(self._value, "value", value, key),
            **line,
        }

    def _version(self, place: bytes, version: bytes) -> Line:
        """Return a version; the value of a deletion is None."""
        value, more = versions.value_in(place, version), {"timestamp_ms": versions.time_in(place, version)}
        line: Line = {
            "key": _decoded(self._key, "key", versions.key_in(place), place),
            "value": None if value is None else _decoded(self._value, "value", value, place),
            **more,
        }
        return line if value is None or not self._with_headers else line | _with_headers(place, version)[1]


def _with_headers(key: bytes, stored: bytes) -> tuple[bytes, Line]:
    """Return a value of a store with headers, and its time and headers. Raises: ConfigError if they can't be read."""
    try:
        value, headers = value_and_headers(stored)
    except ValueError as error:
        raise ConfigError(f"the value of the record with key {escaped(key)} can't be read: {error}") from error
    return value, {"timestamp_ms": stored_time_ms(stored), "headers": headers}


def _index(kind: Mapping[str, object]) -> bytes | None:
    """Return the beginning of the keys of an index of a store with this description; None for a store without one."""
    if kind.get("kind") == versions.VERSIONED:
        return versions.INDEX
    return expiring.INDEX if kind.get("expires") else closing.INDEX if kind.get("closes") else None


def _serde(described: object) -> str | None:
    """Return the name in ``SERDES`` that decodes what the described serde has written; None if there is none."""
    name = str(described)
    if name.startswith(_MSGSPEC_JSON):
        return "json"
    return name if name in SERDES else None


def _decoded(name: str | None, what: str, data: bytes, key: bytes) -> object:
    if name is None:
        return data
    try:
        return SERDES[name](data)
    except Exception as error:
        raise ConfigError(
            f"the {what} of the record with key {escaped(key)} is not of type {name}: give --{what} bytes"
        ) from error


def escaped(data: bytes) -> str:
    """Return printable ASCII characters as they are, a backslash doubled, and all other bytes as ``\\xNN``."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data).replace(
        "\\x5c", "\\\\"
    )


def mark_shown(mark: bytes) -> str | int:
    """Return a mark as it is if that is text, as a number if it has eight bytes, else with its bytes escaped."""
    text = mark.decode(errors="replace")
    if "\ufffd" not in text and text.isprintable():
        return text
    return int.from_bytes(mark, "big") if len(mark) == TIME_BYTES else escaped(mark)


def as_json(line: Line) -> str:
    """Return a line of JSON in ASCII. Bytes are in hexadecimal, and the names of such parts end with ``_hex``.

    Headers are pairs of a name and a content, such as ``[["trace", "0f"]]``.

    JSON has no infinity: that of a float64 is the text ``inf`` or ``-inf``.
    """
    plain: Line = {}
    for name, part in line.items():
        if isinstance(part, bytes):
            plain[f"{name}_hex"] = part.hex()
        elif isinstance(part, tuple):
            plain[f"{name}_hex"] = [(title, None if content is None else content.hex()) for title, content in part]
        else:
            plain[name] = str(part) if isinstance(part, float) and math.isinf(part) else part
    return json.dumps(plain)


def as_text(line: Line) -> str:
    """Return the parts with tabs between them: bytes and text escaped, other values as JSON."""
    return "\t".join(_text(part) for part in line.values())


def _text(part: object) -> str:
    if isinstance(part, bytes):
        return escaped(part)
    if isinstance(part, str):
        return json.dumps(part, ensure_ascii=False)[1:-1].replace('\\"', '"')
    if isinstance(part, tuple):
        part = [(title, None if content is None else escaped(content)) for title, content in part]
    return json.dumps(part, ensure_ascii=False)
