"""The keys of window and session stores: a caller's key, escaped, and then numbers.

An escaped key keeps the order of keys, and none is a prefix of another, so that numbers can follow. A zero byte becomes
``00 ff`` and the key ends with ``00``. The byte that follows must not be ``ff``: it is the first of a time or a number
below 2**62 (``TIME_BOUND_MS``). Numbers are 8 bytes, big-endian.

Kept in a window store: ``<segment><escaped key><window start>``, with ``<sequence>`` behind it where duplicates are
retained. Kept in a session store: ``<segment><escaped key><session end><session start>``. Logged: the same without the
segment, which follows from the first time.

Source: Kafka, ``WindowKeySchema`` and ``SessionKeySchema``, whose keys have no escape: there a key that is a prefix of
another may be between the windows of that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from stores.records.values import TIME_BOUND_MS

TIME_BYTES = 8
SEGMENT_BYTES = 8

packed = Struct(">Q").pack
"""Return the bytes of a number, 0 or more, whose order is that of the numbers."""


def escaped(key: bytes) -> bytes:
    """Return ``key``, encoded as the first part of a longer key."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def unescaped(part: bytes) -> bytes:
    """Return the key of which ``part`` is the encoding."""
    return part[:-1].replace(b"\0\xff", b"\0")


def is_part(part: bytes) -> bool:
    """Return True if ``part`` may be what ``escaped`` returns."""
    return escaped(unescaped(part)) == part


def unpacked(part: bytes) -> int:
    """Return the number that was packed."""
    return int.from_bytes(part, "big")


SEQUENCE_BOUND: Final = (1 << 64) - 1
"""Above every number of a duplicate: the next one has to fit into 8 bytes."""


class SegmentKeys(ABC):
    """The codec of the keys of one store, in which ``numbers`` follow the caller's key.

    ``sequenced`` is True if the last of them is that of a duplicate.
    """

    def __init__(self, numbers: int, *, sequenced: bool = False) -> None:
        self.sequenced = sequenced
        self._num_bytes = numbers * TIME_BYTES
        self.time_part = slice(-self._num_bytes, TIME_BYTES - self._num_bytes or None)
        """The place of the time that determines the segment, in a key with or without its segment."""

    def time(self, logged: bytes) -> int:
        """Return the window start or the session's end from a key with or without its segment."""
        return unpacked(logged[self.time_part])

    def key(self, logged: bytes) -> bytes:
        """Return the caller's key from a key without its segment."""
        return unescaped(logged[: -self._num_bytes])

    def sequence(self, logged: bytes) -> int:
        """Return the number of a duplicate from a key; 0 unless ``sequenced``."""
        return unpacked(logged[-TIME_BYTES:]) if self.sequenced else 0

    @abstractmethod
    def is_logged(self, key: bytes) -> bool:
        """Return True if ``key`` may be one that the store logs."""

    @abstractmethod
    def times(self, key: bytes) -> dict[str, int]:
        """Return the times of a key with or without its segment, by name; the start is the first of them."""


class WindowKeys(SegmentKeys):
    """The codec of a window store's keys. ``sequenced`` is True if duplicates of a key and start are retained."""

    def __init__(self, sequenced: bool = False) -> None:
        super().__init__(2 if sequenced else 1, sequenced=sequenced)

    def logged(self, key: bytes, start_ms: int, sequence: int = 0) -> bytes:
        """Return a record's key in the changelog."""
        logged = escaped(key) + packed(start_ms)
        return logged + packed(sequence) if self.sequenced else logged

    def is_logged(self, key: bytes) -> bool:
        is_key = is_part(key[: -self._num_bytes])
        return is_key and self.time(key) < TIME_BOUND_MS and self.sequence(key) < SEQUENCE_BOUND

    def times(self, key: bytes) -> dict[str, int]:
        return {"window_start_ms": self.time(key)}


class SessionKeys(SegmentKeys):
    """The codec of a session store's keys."""

    def __init__(self) -> None:
        super().__init__(2)

    def logged(self, key: bytes, start_ms: int, end_ms: int) -> bytes:
        """Return a record's key in the changelog."""
        return escaped(key) + packed(end_ms) + packed(start_ms)

    def is_logged(self, key: bytes) -> bool:
        return is_part(key[: -self._num_bytes]) and self.start(key) <= self.time(key) < TIME_BOUND_MS

    def start(self, logged: bytes) -> int:
        """Return the session's start from a key with or without its segment."""
        return unpacked(logged[-TIME_BYTES:])

    def times(self, key: bytes) -> dict[str, int]:
        return {"session_start_ms": self.start(key), "session_end_ms": self.time(key)}


def has_timestamps(description: Mapping[str, Any]) -> bool:
    """Return True if the values of a store with that description begin with a timestamp."""
    return str(description.get("kind", "")).startswith("timestamped") or bool(description.get("timestamped"))


def keys_described(description: Mapping[str, Any]) -> SegmentKeys | None:
    """Return the codec of the keys of a window or session store by its description; None for another kind's."""
    if description.get("kind") == "session":
        return SessionKeys()
    is_window = description.get("kind") == "window"
    return WindowKeys(bool(description.get("retain_duplicates"))) if is_window else None
