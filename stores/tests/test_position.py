"""Offsets as bytes: what is read is what was written, and damage is told as damage."""

from __future__ import annotations

import pytest

from stores import StoreCorruptedError, TopicPartition
from stores.position import OFFSET, POSITION, decode, encode


def test_what_is_written_is_read_back_by_its_kind() -> None:
    offsets = {TopicPartition("a", 0): 0, TopicPartition("\N{SNOWMAN}", 1 << 20): 1 << 40}
    written: dict[bytes, bytes] = {}
    for kind in (OFFSET, POSITION):
        written |= {key: value for key, value in encode(kind, offsets).items() if value is not None}
    assert decode(OFFSET, written) == decode(POSITION, written) == offsets


@pytest.mark.parametrize(
    ("key", "value"), [(b"o\0\0\0", bytes(8)), (b"o\0\0\0\0a", bytes(7)), (b"o\0\0\0\0\xff\xfe", bytes(8))]
)
def test_an_entry_that_is_none_is_damage(key: bytes, value: bytes) -> None:
    with pytest.raises(StoreCorruptedError):
        decode(OFFSET, {key: value})
