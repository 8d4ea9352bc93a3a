"""The checksum of a changelog record: SQLite has none, and damaged stores are restored from the changelog.

It is the CRC-32 of offset and timestamp folded into one number, key, value and headers, in this order. A null counts as
empty.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from zlib import crc32

_MASK = 0xFFFFFFFF


def checksums(first_offset: int, fields: list[Any], width: int) -> list[int]:
    """Return the checksums of consecutive records, from ``first_offset`` on.

    ``fields`` has ``width`` entries for each record. The first four are the stored key, value, timestamp and headers.
    """
    keys, values, timestamps, headers = (fields[at::width] for at in range(4))
    made = [
        crc32(value or b"", crc32(key or b"", (offset ^ ms ^ ms >> 31) & _MASK))
        for offset, key, value, ms in zip(count(first_offset), keys, values, timestamps)
    ]
    if any(headers):
        made = [crc32(text.encode(), begun) if text else begun for text, begun in zip(headers, made, strict=True)]
    return made


def is_sound(checksum: Any, offset: Any, key: Any, value: Any, timestamp_ms: Any, headers: Any) -> bool:
    """Return whether a record fits its checksum."""
    try:
        begun = (offset ^ timestamp_ms ^ timestamp_ms >> 31) & _MASK
        found = crc32(b"" if value is None else value, crc32(b"" if key is None else key, begun))
        return (crc32(headers.encode(), found) if headers else found) == checksum  # type: ignore[no-any-return]
    except (TypeError, AttributeError):
        return False
