"""The keys of a window store.

Kept: ``<segment><escaped key><window start>``, with ``<sequence>`` behind it where duplicates are retained; numbers are
8 bytes, big-endian. Logged: the same without the segment, which follows from the start.

Source: Kafka, ``WindowKeySchema``, whose keys have no escape: there a key that is a prefix of another may be between
the windows of that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores.records.escaped_keys import TIME_BYTES, escaped, is_part, packed, unescaped, unpacked
from stores.records.values import TIME_BOUND_MS


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The codec of a window store's keys. ``sequenced`` is True if duplicates of a key and start are retained."""

    sequenced: bool = False

    def logged(self, key: bytes, start_ms: int, sequence: int = 0) -> bytes:
        """Return a record's key in the changelog."""
        logged = escaped(key) + packed(start_ms)
        return logged + packed(sequence) if self.sequenced else logged

    @property
    def time_part(self) -> slice:
        """Return the slice of the window start in a key, with or without its segment."""
        return slice(-2 * TIME_BYTES, -TIME_BYTES) if self.sequenced else slice(-TIME_BYTES, None)

    def time(self, logged: bytes) -> int:
        """Return the window start from a key with or without its segment."""
        return unpacked(logged[self.time_part])

    def is_logged(self, key: bytes) -> bool:
        """Return True if ``key`` may be what ``logged`` returns."""
        numbers = 2 * TIME_BYTES if self.sequenced else TIME_BYTES
        return is_part(key[:-numbers]) and self.time(key) < TIME_BOUND_MS

    def sequence(self, logged: bytes) -> int:
        """Return the sequence number from a key; 0 unless ``sequenced``."""
        return unpacked(logged[-TIME_BYTES:]) if self.sequenced else 0

    def key(self, logged: bytes) -> bytes:
        """Return the caller's key from a key without its segment."""
        return unescaped(logged[: -2 * TIME_BYTES if self.sequenced else -TIME_BYTES])
