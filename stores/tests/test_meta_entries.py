"""Offsets as bytes: they are read as they were written, and corruption is detected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores import IsolationLevel, StoreCorruptedError, TopicPartition, open_store
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets, encode_offsets


def test_what_is_written_is_read_back_by_its_kind() -> None:
    offsets = {TopicPartition("a", 0): 0, TopicPartition("\N{SNOWMAN}", 1 << 20): 1 << 40}
    entries: dict[bytes, bytes] = {}
    for kind in (OFFSET, POSITION):
        entries |= {key: value for key, value in encode_offsets(kind, offsets).items() if value is not None}
    assert decode_offsets(OFFSET, entries) == decode_offsets(POSITION, entries) == offsets


@pytest.mark.parametrize(
    ("key", "value"), [(b"o\0\0\0", bytes(8)), (b"o\0\0\0\0a", bytes(7)), (b"o\0\0\0\0\xff\xfe", bytes(8))]
)
def test_an_entry_that_is_none_is_damage(key: bytes, value: bytes) -> None:
    with pytest.raises(StoreCorruptedError):
        decode_offsets(OFFSET, {key: value})


@given(
    meta=st.dictionaries(
        st.tuples(st.sampled_from([b"o", b"p", b"m"]), st.binary(max_size=8)).map(b"".join),
        st.binary(min_size=8, max_size=8) | st.binary(max_size=3),
        max_size=4,
    )
)
def test_entries_of_any_bytes_are_read_or_refused(meta: dict[bytes, bytes]) -> None:
    for read in (
        lambda: decode_offsets(OFFSET, meta),
        lambda: decode_offsets(POSITION, meta),
        lambda: decode_marks(meta),
    ):
        with suppress(StoreCorruptedError):
            read()


def test_an_offset_beyond_64_bits_is_refused_also_of_a_partition_that_is_known(path: Path) -> None:
    partition = TopicPartition("input", 0)
    with open_store("memory-indexed-batch", path) as store:
        store.advance_position(partition, 1)
        store.commit({partition: 1})
        with pytest.raises(ValueError):
            store.advance_position(partition, 1 << 63)
        with pytest.raises(ValueError):
            store.commit({partition: 1 << 63})
        store.advance_position(partition, 2)
        store.commit({partition: (1 << 63) - 1})
        assert store.committed_offset(partition) == (1 << 63) - 1
        assert store.position(IsolationLevel.READ_COMMITTED) == {partition: 2}
