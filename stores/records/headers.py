"""The stored form of a value with the time and the headers of its record.

A value without headers is stored as in a timestamped store: eight bytes of its time, big-endian, and the value. With
headers, bit 62 of the time is inverted, and the size of the headers and the headers follow it. A time is below 2**62,
or -1 for an unknown one, so its two highest bits are equal, and show which form it is. That is why a timestamped store
becomes one with headers without a change of its records. So does a versioned one, whose deletions have both bits set.

The headers have the form of Kafka's ``HeadersSerializer``: their number, then the length and the bytes of each name and
content, -1 for the length of none. Each number, and the size, is a varint of its zigzag form. Kafka Streams stores the
size and the headers before the time, also where there are none. Source: KIP-1271, ``ValueTimestampHeadersSerializer``.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

from stores.contract.arguments import Headers, checked_headers

_TIME: Final = Struct(">q")
_FLAG: Final = 1 << 62
_SHORT: Final = [bytes([number << 1]) for number in range(64)]
"""The varints of small numbers."""
RESERVED: Final = ("stores.", "txstores-")
"""The beginnings of the names of headers that the library adds to changelog records."""


def headers_to_store(headers: Headers) -> Headers:
    """Return the headers of a write as a tuple of pairs. Raises: TypeError; ValueError also for a reserved name."""
    headers = checked_headers(headers)
    for name, _ in headers:
        if name.startswith(RESERVED):
            raise ValueError(
                f"the header {name!r} is one of a changelog record: leave out headers whose names begin with "
                f"{' or '.join(RESERVED)}"
            )
    return headers


def with_headers(value: bytes, timestamp_ms: int, headers: Headers) -> bytes:
    """Return the stored form of a value, with its time and headers."""
    if not headers:
        return _TIME.pack(timestamp_ms) + value
    encoded = _encoded(headers)
    return b"".join((_TIME.pack(timestamp_ms ^ _FLAG), _varint(len(encoded)), encoded, value))


def stored_time_ms(data: bytes) -> int:
    """Return the time of a stored value. Raises: ValueError if it is too short."""
    try:
        time_ms: int = _TIME.unpack_from(data)[0]
    except struct_error:
        raise _too_short() from None
    return time_ms ^ _FLAG if _has_headers(data) else time_ms


def stored_value(data: bytes) -> bytes:
    """Return a stored value without its time and its headers. Raises: ValueError if it can't be read."""
    if len(data) < _TIME.size:
        raise _too_short()
    return data[_headers_bounds(data)[1] if _has_headers(data) else _TIME.size :]


def value_and_headers(data: bytes) -> tuple[bytes, Headers]:
    """Return a stored value and its headers. Raises: ValueError if they can't be read."""
    if len(data) < _TIME.size or not _has_headers(data):
        return stored_value(data), ()
    start, end = _headers_bounds(data)
    return data[end:], _decoded(data[start:end])


def _too_short() -> ValueError:
    return ValueError("a timestamped value has at least eight bytes")


def _has_headers(data: bytes) -> bool:
    """Return whether bits 62 and 63 of the time differ."""
    return 0x40 <= data[0] < 0xC0


def _headers_bounds(data: bytes) -> tuple[int, int]:
    """Return the start and the end of the headers in a stored value that has some."""
    size, start = _read_varint(data, _TIME.size)
    if not 0 <= size <= len(data) - start:
        raise ValueError(f"{len(data)} bytes of a value can't have {size} bytes of headers")
    return start, start + size


def _encoded(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, content in headers:
        encoded_name = name.encode()
        parts += (_varint(len(encoded_name)), encoded_name)
        parts += (_varint(-1),) if content is None else (_varint(len(content)), content)
    return b"".join(parts)


def _decoded(data: bytes) -> Headers:
    count, at = _read_varint(data, 0)
    headers = []
    for _ in range(count):
        name, at = _part(data, at)
        content, at = _part(data, at)
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name.decode(), content))
    if at != len(data):
        raise ValueError(f"{count} headers end at byte {at} of {len(data)}")
    return tuple(headers)


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    if length == -1:
        return None, at
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"{len(data)} bytes of headers can't have a part of {length} at byte {at}")
    return data[at : at + length], at + length


def _varint(number: int) -> bytes:
    if 0 <= number < 64:
        return _SHORT[number]
    rest = number << 1 if number >= 0 else ~number << 1 | 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and the place behind it."""
    zigzag = shift = 0
    for place in range(at, len(data)):
        byte = data[place]
        if byte < 0x80:
            zigzag |= byte << shift
            return (~(zigzag >> 1) if zigzag & 1 else zigzag >> 1), place + 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
    raise ValueError(f"a number at byte {at} of {len(data)} has no end")
