"""The keys of a session store.

Kept: ``<segment><escaped key><session end><session start>``; numbers are 8 bytes, big-endian. Logged: the same without
the segment, which follows from the end. Source: Kafka, ``SessionKeySchema``, whose keys have no escape.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores.records.escaped_keys import TIME_BYTES, escaped, is_part, packed, unescaped, unpacked
from stores.records.values import TIME_BOUND_MS


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """The codec of a session store's keys."""

    def logged(self, key: bytes, start_ms: int, end_ms: int) -> bytes:
        """Return a record's key in the changelog."""
        return escaped(key) + packed(end_ms) + packed(start_ms)

    @property
    def time_part(self) -> slice:
        """Return the slice of the session's end in a key, with or without its segment."""
        return slice(-2 * TIME_BYTES, -TIME_BYTES)

    def time(self, logged: bytes) -> int:
        """Return the session's end from a key with or without its segment."""
        return unpacked(logged[self.time_part])

    def is_logged(self, key: bytes) -> bool:
        """Return True if ``key`` may be what ``logged`` returns."""
        return is_part(key[: -2 * TIME_BYTES]) and self.start(key) <= self.time(key) < TIME_BOUND_MS

    def sequence(self, logged: bytes) -> int:
        """Return 0: sessions have no duplicates."""
        return 0

    def start(self, logged: bytes) -> int:
        """Return the session's start from a key with or without its segment."""
        return unpacked(logged[-TIME_BYTES:])

    def key(self, logged: bytes) -> bytes:
        """Return the caller's key from a key without its segment."""
        return unescaped(logged[: -2 * TIME_BYTES])
