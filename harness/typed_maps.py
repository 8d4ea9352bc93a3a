"""Typed stores seen as maps of bytes to bytes, so that every trial and every model of one holds for them, too.

A key has one place: a window or session that follows from the key alone, so that the keys of one commit fall into
several segments, older ones among them. What lies anywhere else is shown under a key that no model has, and so is a
value whose timestamp is not its own. Keys of the changelog are read without the library's code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from zlib import crc32

from harness.faults.registry import check_known
from stores.records import BYTES, KeyValue, RecordKind, Session, TimestampedKeyValue, Window, Windowed

SEGMENT_MS = 60_000
RETENTION_MS = 20_000 * SEGMENT_MS
"""Nothing that lies in its place expires unless a trial moves the stream time as far."""
SIZE_MS = 1_000
SEGMENTS = 5
FIRST_MS = 30_000 * SEGMENT_MS
_LAST_MS = (1 << 62) - 1

Place = Callable[[bytes], int]
"""The time of a key: its window's start or its session's end."""


def place(key: bytes) -> int:
    """Somewhere in one of five segments, most likely in another one than the key beside it."""
    number = crc32(key)
    return FIRST_MS + number % SEGMENTS * SEGMENT_MS + number // SEGMENTS % SEGMENT_MS


class TypedMap(ABC):
    """A typed store or its view; writing is for stores. ``place`` is where keys lie, the same whenever it is used."""

    kind: RecordKind
    """What the store is to be described as."""

    def __init__(self, typed: Any, place: Place = place) -> None:
        self.typed, self._place = typed, place

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of ``key``."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set it; None removes the key."""

    @abstractmethod
    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        """The store's own scan over these keys."""

    @abstractmethod
    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        """One pair of it as the map has it."""

    @staticmethod
    @abstractmethod
    def logged(key: bytes, place: Place) -> bytes:
        """The key that a record of the changelog is about."""

    def range(self, start: bytes | None, end: bytes | None, *, reverse: bool = False) -> Scan:
        """The pairs from ``start`` to ``end``, both included, None for open, by key."""
        return Scan(self._scan(start, end, reverse=reverse), self._pair)

    def all(self) -> Scan:
        """Every pair."""
        return self.range(None, None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of several keys, one after the other."""
        return [self.get(key) for key in keys]

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Put ``value`` where there is none; the value that was there."""
        there = self.get(key)
        if there is None:
            self.put(key, value)
        return there

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """One put after the other."""
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key: bytes) -> bytes | None:
        """Remove ``key``; the value that was there."""
        there = self.get(key)
        self.put(key, None)
        return there

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Remove what is there from ``start`` to ``end``, key by key."""
        with self.range(start, end) as pairs:
            keys = [key for key, _ in pairs]
        for key in keys:
            self.put(key, None)

    @property
    def transactional(self) -> bool:
        """Whether the store keeps uncommitted writes apart."""
        return bool(self.typed.store.transactional)


class Scan(Iterator[tuple[bytes, bytes]]):
    """A scan of a typed store, as pairs of the map; use it in ``with``, or close it."""

    def __init__(self, pairs: Any, pair: Callable[[Any, Any], tuple[bytes, bytes]]) -> None:
        self._pairs, self._pair = pairs, pair

    def __next__(self) -> tuple[bytes, bytes]:
        return self._pair(*next(self._pairs))

    def close(self) -> None:
        """End it."""
        self._pairs.close()

    def __enter__(self) -> Scan:
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
    kind = TimestampedKeyValue(BYTES, BYTES)

    def get(self, key: bytes) -> bytes | None:
        return _at_its_time(self.typed.get(key))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(key, value, _time_of(value))

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return key, _at_its_time(value) or b""


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

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        at = self._place(key.key)
        return _placed(key.key, (key.start_ms, key.end_ms), (at, at + SIZE_MS)), value

    @staticmethod
    def logged(key: bytes, place: Place) -> bytes:
        plain = _unescaped(key[:-8])
        return _placed(plain, (_number(key[-8:]),), (place(plain),))


class _SessionMap(TypedMap):
    kind = Session(BYTES, BYTES, retention_ms=RETENTION_MS, segment_ms=SEGMENT_MS, timestamped=True)

    def get(self, key: bytes) -> bytes | None:
        return _at_its_time(self.typed.fetch_session(key, *self._span(key)))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.typed.put(Windowed(key, *self._span(key)), value, _time_of(value))

    def _span(self, key: bytes) -> tuple[int, int]:
        return _span(key, self._place)

    def _scan(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Any:
        return (self.typed.backward_fetch_range if reverse else self.typed.fetch_range)(start, end)

    def _pair(self, key: Any, value: Any) -> tuple[bytes, bytes]:
        return _placed(key.key, (key.start_ms, key.end_ms), self._span(key.key)), _at_its_time(value) or b""

    @staticmethod
    def logged(key: bytes, place: Place) -> bytes:
        plain = _unescaped(key[:-16])
        return _placed(plain, (_number(key[-8:]), _number(key[-16:-8])), _span(plain, place))


KINDS: Mapping[str, type[TypedMap]] = MappingProxyType(
    {
        "key-value": _KeyValueMap,
        "timestamped-key-value": _TimestampedMap,
        "window": _WindowMap,
        "session": _SessionMap,
    }
)
"""The map of each kind of typed store. Sessions have timestamps, windows have none."""
_TIMESTAMPED = ("timestamped-key-value", "session")
PLAIN = ""
"""Stands for a store of bytes, which is no typed one."""
IN_TURN = (PLAIN, "window", "session", "timestamped-key-value")
"""What trials take turns over: as many of each, instead of each trial with every kind."""


def record_kind(name: str) -> RecordKind | None:
    """What a store of the kind ``name`` is described as; None for one of bytes."""
    return KINDS[name].kind if name else None


def as_map(name: str, store: Any, place: Place = place) -> Any:
    """``store``, or a view of one, of the kind ``name``, as a map; one of bytes is one itself."""
    return KINDS[name](store, place) if name else store


def view_as_map(name: str, view: Any, place: Place = place) -> Any:
    """The view ``view`` of the bytes of a store of the kind ``name``, as a map."""
    return KINDS[name](KINDS[name].kind.view(view), place) if name else view


def logged_key(name: str, key: bytes | None) -> bytes | None:
    """What a changelog's record under ``key`` is about, in a store of the kind ``name``."""
    return KINDS[name].logged(key, place) if name and key is not None else key


def logged_time_ms(name: str, value: bytes | None) -> int:
    """The time of a changelog's record with ``value``, in a store of the kind ``name``; -1 where it has none."""
    return _time_of(value) if name in _TIMESTAMPED else -1


def check_kind(name: str) -> None:
    """Raises: ConfigError where there is no such kind."""
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
    if found is None:
        return None
    value: bytes = found.value
    return value if found.timestamp_ms == _time_of(value) else b"%b, of another time" % value


def _unescaped(key: bytes) -> bytes:
    return key[:-1].replace(b"\0\xff", b"\0") if key.endswith(b"\0") else b"no key: " + key


def _number(text: bytes) -> int:
    return int.from_bytes(text, "big")
