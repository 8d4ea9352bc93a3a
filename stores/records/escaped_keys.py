"""An encoding of keys that keeps their order and makes no key a prefix of another, so that numbers can follow.

A zero byte becomes ``00 ff`` and the key ends with ``00``. The byte that follows must not be ``ff``: it is the first of
a time or a number below 2**62 (``TIME_BOUND_MS``).
"""

from __future__ import annotations

from struct import Struct

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
