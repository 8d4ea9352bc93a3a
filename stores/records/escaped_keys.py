"""Keys of any bytes as the first part of longer keys, which have their order and are no prefixes of each other.

A zero byte becomes ``00 ff`` and the key ends with ``00``. The byte that follows must not be ``ff``: it is the first of
a time or a number below 2**62 (``TIME_BOUND_MS``).
"""

from __future__ import annotations

TIME_BYTES = 8
SEGMENT_BYTES = 8


def escaped(key: bytes) -> bytes:
    """``key`` as the first part of a longer one."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def unescaped(part: bytes) -> bytes:
    """The key that ``escaped`` was given."""
    return part[:-1].replace(b"\0\xff", b"\0")


def is_part(part: bytes) -> bool:
    """Return True if ``part`` may be what ``escaped`` returns."""
    return escaped(unescaped(part)) == part


def packed(number: int) -> bytes:
    """A time, a segment or a sequence number, 0 or more, in the order of the numbers."""
    return number.to_bytes(TIME_BYTES, "big")


def unpacked(part: bytes) -> int:
    """The number that ``packed`` was given."""
    return int.from_bytes(part, "big")
