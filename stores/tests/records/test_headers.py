"""The stored form of headers is Kafka's, and other bytes are an error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.records.headers import headers_to_store, stored_time_ms, stored_value, value_and_headers, with_headers

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=200)), max_size=70).map(tuple)
TIMES = st.sampled_from((-1, 0, 2**62 - 1)) | st.integers(-1, 2**62 - 1)


def kafkas_varint(number: int) -> bytes:
    """Source: Kafka, ``ByteUtils.writeVarint``, in which the lowest bit has the sign."""
    unsigned = -2 * number - 1 if number < 0 else 2 * number
    groups = [unsigned >> shift & 127 for shift in range(0, 35, 7)]
    while len(groups) > 1 and not groups[-1]:
        groups.pop()
    return bytes([*(group + 128 for group in groups[:-1]), groups[-1]])


def kafkas_headers(headers: Any) -> bytes:
    """Source: Kafka, ``HeadersSerializer``."""
    parts = [kafkas_varint(len(headers))]
    for name, content in headers:
        parts += [kafkas_varint(len(name.encode())), name.encode()]
        parts += [kafkas_varint(-1)] if content is None else [kafkas_varint(len(content)), content]
    return b"".join(parts)


@given(value=st.binary(max_size=20), time_ms=TIMES, headers=HEADERS)
def test_a_value_with_headers_is_read_as_it_was_written(value: bytes, time_ms: int, headers: Any) -> None:
    stored = with_headers(value, time_ms, headers)
    assert (value_and_headers(stored), stored_value(stored), stored_time_ms(stored)) == (
        (value, headers),
        value,
        time_ms,
    )
    time = time_ms.to_bytes(8, "big", signed=True)
    if headers:
        encoded = kafkas_headers(headers)
        assert stored == bytes([time[0] ^ 0x40]) + time[1:] + kafkas_varint(len(encoded)) + encoded + value
    else:
        assert stored == time + value


@given(
    first=st.sampled_from((0x00, 0x40, 0x7F, 0x80, 0xBF, 0xC0, 0xFF)),
    rest=st.binary(max_size=24) | st.binary(max_size=16).map(lambda data: bytes(7) + data),
)
def test_any_bytes_are_read_or_a_value_error(first: int, rest: bytes) -> None:
    for read in (stored_time_ms, stored_value, value_and_headers):
        with suppress(ValueError):
            read(bytes([first]) + rest)
    for read in (stored_time_ms, stored_value, value_and_headers):
        with suppress(ValueError):
            read(rest[:7])
            raise AssertionError(rest)


def test_the_error_for_a_name_that_has_no_bytes_says_that_it_is_a_header_s() -> None:
    with pytest.raises(ValueError, match="header"):
        headers_to_store((("lone \ud800", b""),))
