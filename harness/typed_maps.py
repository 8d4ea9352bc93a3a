"""Typed stores as maps of bytes to bytes, so that all trials and models of plain stores also apply to them.

A key has one place: a window, session or version that is derived from the key alone, so that the keys of one commit are
in several segments, also old ones. An entry at any other place is shown under a key that no model has, and a value with
another timestamp, or with other headers, as a value that no model has. Keys of the changelog are read without the
library's code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from zlib import crc32

from harness.workloads.suggestion import check_known
from stores.changelog.interface import Headers
from stores.records import (
    BYTES,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)

SEGMENT_MS = 60_000
RETENTION_MS = 20_000 * SEGMENT_MS
"""The retention. No entry at its place expires unless a trial advances the stream time that far."""
SIZE_MS = 1_000
SEGMENTS = 5
FIRST_MS = 30_000 * SEGMENT_MS
_LAST_MS = (1 << 62) - 1

Place = Callable[[bytes], int]
"""The function that returns the time of a key: its window's start or its session's end."""


def place(key: bytes) -> int:
    """Return a time in one of five segments, most likely in another one than that of the next key."""
    number = crc32(key)
    return FIRST_MS + number % SEGMENTS * SEGMENT_MS + number // SEGMENTS % SEGMENT_MS


class TypedMap(ABC):
    """A typed store or its view; only stores can be written. ``place`` returns the places of keys."""

    kind: RecordKind
    """The description of the store."""

    def __init__(self, typed: Any, place: Place = place) -> None:
        self.typed, self._place = typed, place

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of ``key``; None deletes it."""

    @abstractmethod
    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        """Return the store's own scan over these keys."""

    @abstractmethod
    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        """Return one pair of the store as the map shows it."""

    @staticmethod
    @abstractmethod
    def logged(key: bytes, place: Place) -> bytes:
        """Return the map's key for the key of a changelog record."""

    def range(self, start: bytes | None, end: bytes | None, *, reverse: bool = False) -> PairScan:
        """Return the pairs from ``start`` to ``end``, both included, None for open, by key."""
        return PairScan(self._scan(start, end, reverse=reverse), self._pair)

    def of_key(self, key: bytes, first_ms: int, last_ms: int, *, reverse: bool = False) -> PairScan:
        """Return the pair of ``key`` if its window starts, or its session is, between these times, both included."""
        raise NotImplementedError(f"the scan is not tried with stores of kind {self.kind}")

    def of_times(self, first_ms: int, last_ms: int, *, reverse: bool = False) -> PairScan:
        """Return the pairs between these times, both included, by time, then by key."""
        raise NotImplementedError(f"the scan is not tried with stores of kind {self.kind}")

    @staticmethod
    def lies_in(key: bytes, first_ms: int, last_ms: int, place: Place = place) -> bool:
        """Return True if ``of_key`` must find ``key`` if it exists."""
        return first_ms <= place(key) <= last_ms

    def all(self) -> PairScan:
        """Return every pair."""
        return self.range(None, None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of several keys, looked up one after the other."""
        return [self.get(key) for key in keys]

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Put ``value`` if the key has none. Return the previous value."""
        there = self.get(key)
        if there is None:
            self.put(key, value)
        return there

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put the pairs one after the other."""
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key: bytes) -> bytes | None:
        """Delete ``key``, and return its previous value."""
        there = self.get(key)
        self.put(key, None)
        return there

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Delete the keys from ``start`` to ``end``, one by one."""
        with self.range(start, end) as pairs:
            keys = [key for key, _ in pairs]
        for key in keys:
            self.put(key, None)

    @property
    def transactional(self) -> bool:
        """True if the store isolates uncommitted writes."""
        return bool(self.typed.store.transactional)


class PairScan(Iterator[tuple[bytes, bytes]]):
    """A scan of a typed store as pairs of the map; use it in ``with``, or close it."""

    def __init__(self, pairs: Any, pair: Callable[[Any, Any], tuple[bytes, bytes]]) -> None:
        self._pairs, self._pair = pairs, pair

    def __next__(self) -> tuple[bytes, bytes]:
        return self._pair(*next(self._pairs))

    def close(self) -> None:
        """Close the scan of the store."""
        self._pairs.close()

    def __enter__(self) -> PairScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _KeyValueMap(TypedMap):
    kind: RecordKind = KeyValue(BYTES, BYTES)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.typed.get(key)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value)

    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        return self.typed.reverse_range(start, end) if reverse else self.typed.range(start, end)

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return key, value

    @staticmethod
    def logged(key: bytes, place: Place) -> bytes:
        return key


class _TimestampedMap(_KeyValueMap):
    kind: RecordKind = TimestampedKeyValue(BYTES, BYTES)

    def get(self, key: bytes) -> bytes | None:
        return _at_its_time(self.typed.get(key))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value, _time_of(value))

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return key, _at_its_time(value) or b""


class _HeadersMap(_TimestampedMap):
    kind = TimestampedKeyValueWithHeaders(BYTES, BYTES)

    def get(self, key: bytes) -> bytes | None:
        return _with_its_headers(self.typed.get(key))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value, _time_of(value), _headers_of(value))

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return key, _with_its_headers(value) or b""


class _VersionedMap(_KeyValueMap):
    """Each put replaces the version of its key, which is at one time."""

    kind = Versioned(BYTES, BYTES, history_retention_ms=RETENTION_MS)

    def get(self, key: bytes) -> bytes | None:
        return _at_time(self.typed.get(key), self._place(key))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value, self._place(key))

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return key, _at_time(value, self._place(key)) or b""


class _WindowMap(TypedMap):
    kind = Window(BYTES, BYTES, size_ms=SIZE_MS, retention_ms=RETENTION_MS, segment_ms=SEGMENT_MS)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.typed.fetch_one(key, self._place(key))
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value, self._place(key))

    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        fetch = self.typed.backward_fetch_range if reverse else self.typed.fetch_range
        return fetch(start, end, 0, _LAST_MS)

    def of_key(self, key: bytes, first_ms: int, last_ms: int, *, reverse: bool = False) -> PairScan:
        fetch = self.typed.backward_fetch if reverse else self.typed.fetch
        place = self._place(key)
        return PairScan(
            fetch(key, first_ms, last_ms), lambda start_ms, value: (_placed(key, (start_ms,), (place,)), value)
        )

    def of_times(self, first_ms: int, last_ms: int, *, reverse: bool = False) -> PairScan:
        fetch = self.typed.backward_fetch_all if reverse else self.typed.fetch_all
        return PairScan(fetch(first_ms, last_ms), self._pair)

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        at = self._place(key.key)
        return _placed(key.key, (key.start_ms, key.end_ms), (at, at + SIZE_MS)), value

    @staticmethod
    def logged(key: bytes, place: Place) -> bytes:
        plain = _unescaped(key[:-8])
        return _placed(plain, (_number(key[-8:]),), (place(plain),))


class _SessionMap(TypedMap):
    kind = Session(BYTES, BYTES, retention_ms=RETENTION_MS, segment_ms=SEGMENT_MS, headers=True)

    def get(self, key: bytes) -> bytes | None:
        return _with_its_headers(self.typed.fetch_session(key, *self._span(key)))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(Windowed(key, *self._span(key)), value, _time_of(value), _headers_of(value))

    def _span(self, key: bytes) -> tuple[int, int]:
        return _span(key, self._place)

    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        return (self.typed.backward_fetch_range if reverse else self.typed.fetch_range)(start, end)

    def of_key(self, key: bytes, first_ms: int, last_ms: int, *, reverse: bool = False) -> PairScan:
        find = self.typed.backward_find_sessions if reverse else self.typed.find_sessions
        return PairScan(find(key, first_ms, last_ms), self._pair)

    @staticmethod
    def lies_in(key: bytes, first_ms: int, last_ms: int, place: Place = place) -> bool:
        start_ms, end_ms = _span(key, place)
        return end_ms >= first_ms and start_ms <= last_ms

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return _placed(key.key, (key.start_ms, key.end_ms), self._span(key.key)), _with_its_headers(value) or b""

    @staticmethod
    def logged(key: bytes, place: Place) -> bytes:
        plain = _unescaped(key[:-16])
        return _placed(plain, (_number(key[-8:]), _number(key[-16:-8])), _span(plain, place))


KINDS: Mapping[str, type[TypedMap]] = MappingProxyType(
    {
        "key-value": _KeyValueMap,
        "timestamped-key-value": _TimestampedMap,
        "timestamped-key-value-with-headers": _HeadersMap,
        "versioned-key-value": _VersionedMap,
        "window": _WindowMap,
        "session": _SessionMap,
    }
)
"""The map of each kind of typed store. Sessions have timestamps and headers, windows have none."""
_WITH_HEADERS = ("timestamped-key-value-with-headers", "session")
_TIMESTAMPED = ("timestamped-key-value", *_WITH_HEADERS)
PLAIN = ""
"""The kind of a store of bytes, which is not a typed one."""
IN_TURN = (
    *(PLAIN, "window", "session", "timestamped-key-value"),
    *("timestamped-key-value-with-headers", "versioned-key-value"),
)
"""The kinds over which trials rotate, with the same number of trials for each."""


def record_kind(name: str) -> RecordKind | None:
    """Return the description of a store of the kind ``name``; None for a store of bytes."""
    return KINDS[name].kind if name else None


def as_map(name: str, store: Any, place: Place = place) -> Any:
    """Return ``store``, of the kind ``name``, or a view of it, as a map. A store of bytes is a map itself."""
    return KINDS[name](store, place) if name else store


def view_as_map(name: str, view: Any, place: Place = place) -> Any:
    """Return the view ``view`` of the bytes of a store of the kind ``name``, as a map."""
    return KINDS[name](KINDS[name].kind.view(view), place) if name else view


def logged_key(name: str, key: bytes | None) -> bytes | None:
    """Return the map's key for the key of a changelog record, in a store of the kind ``name``."""
    return KINDS[name].logged(key, place) if name and key is not None else key


def logged_time_ms(name: str, key: bytes, value: bytes | None) -> int:
    """Return the time of a changelog record, in a store of the kind ``name``; -1 if it has none."""
    if name == "versioned-key-value":
        return place(key)
    return _time_of(value) if name in _TIMESTAMPED else -1


def logged_headers(name: str, value: bytes | None) -> Headers:
    """Return the headers of a changelog record with ``value``, in a store of the kind ``name``."""
    return _headers_of(value) if name in _WITH_HEADERS else ()


def check_kind(name: str) -> None:
    """Raise ConfigError if there is no such kind."""
    if name:
        check_known("kind of store", KINDS, name)


def _span(key: bytes, place: Place) -> tuple[int, int]:
    end_ms = place(key)
    return end_ms - len(key), end_ms


def _placed(key: bytes, found: tuple[int, ...], expected: tuple[int, ...]) -> bytes:
    return key if found == expected else b"%b, misplaced at %b" % (key, str(found).encode())


def _time_of(value: bytes | None) -> int:
    return crc32(value or b"")


def _at_its_time(found: Any) -> bytes | None:
    return None if found is None else _at_time(found, _time_of(found.value))


def _at_time(found: Any, time_ms: int) -> bytes | None:
    if found is None:
        return None
    value: bytes = found.value
    return value if found.timestamp_ms == time_ms else b"%b, of another time" % value


def _headers_of(value: bytes | None) -> Headers:
    """Return one to three headers, or none."""
    number = crc32(value or b"")
    return (("value", value), ("none", None), ("number", b"%d" % number))[: number % 4]


def _with_its_headers(found: Any) -> bytes | None:
    if found is None or found.headers == _headers_of(found.value):
        return _at_its_time(found)
    return b"%b, with other headers" % found.value


def _unescaped(key: bytes) -> bytes:
    return key[:-1].replace(b"\0\xff", b"\0") if key.endswith(b"\0") else b"no key: " + key


def _number(text: bytes) -> int:
    return int.from_bytes(text, "big")
