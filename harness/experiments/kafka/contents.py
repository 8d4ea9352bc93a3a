"""A checksum of what stores have, in any order, which ``Streams.java`` computes as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32


def checksum_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return the number of entries, and the sum of the CRC-32 of each, key and value together, modulo 2**32."""
    entries = total = 0
    for key, value in pairs:
        entries += 1
        total += crc32(value, crc32(key))
    return {"entries": entries, "checksum": f"{total & 0xFFFFFFFF:08x}"}
