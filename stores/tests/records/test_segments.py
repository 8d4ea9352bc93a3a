"""Keys of windows and sessions: in the order that scans promise, and none a prefix of another."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.records.segments import SessionKeys, WindowKeys, escaped, is_part, unescaped

# The bytes that escaping is about, and their neighbours.
KEYS = st.lists(st.sampled_from([0, 1, 0x7F, 0xFE, 0xFF]), max_size=6).map(bytes) | st.binary(max_size=6)
TIMES = st.integers(0, 2**62 - 1) | st.integers(0, 3) | st.sampled_from([255, 256, 2**32 - 1, 2**32, 2**62 - 1])
SEQUENCES = st.integers(0, 2**62) | st.integers(0, 3)


@given(KEYS, KEYS)
def test_escaped_keys_have_the_order_of_the_keys(one: bytes, other: bytes) -> None:
    behind = b"\x3f" * 8
    assert (escaped(one) < escaped(other)) == (one < other)
    assert (escaped(one) + behind < escaped(other)) == (one < other)


@given(KEYS, KEYS)
def test_no_escaped_key_with_a_time_begins_with_another(one: bytes, other: bytes) -> None:
    for first_of_time in (b"\0", b"\x3f"):
        longer = escaped(other) + b"\x3f" * 8
        assert one == other or not longer.startswith(escaped(one) + first_of_time)


@given(KEYS)
def test_an_escaped_key_has_the_key(key: bytes) -> None:
    assert unescaped(escaped(key)) == key
    assert is_part(escaped(key))


@pytest.mark.parametrize("part", [b"", b"a", b"\0\0", b"a\0b\0", b"\0\xff", b"a\0\xfe\0"])
def test_bytes_that_were_never_escaped_are_refused(part: bytes) -> None:
    assert not is_part(part)


@pytest.mark.parametrize("sequenced", [False, True])
@given(st.tuples(KEYS, TIMES, SEQUENCES), st.tuples(KEYS, TIMES, SEQUENCES))
def test_window_keys_are_ordered_by_key_then_start_then_number(
    sequenced: bool, one: tuple[bytes, int, int], other: tuple[bytes, int, int]
) -> None:
    keys = WindowKeys(sequenced)
    first, second = keys.logged(*one), keys.logged(*other)
    if not sequenced:
        one, other = (*one[:2], 0), (*other[:2], 0)
    assert (first < second) == (one < other)
    assert (first == second) == (one == other)
    assert (keys.key(first), keys.time(first), keys.sequence(first)) == one
    assert keys.is_logged(first)
    assert one == other or not second.startswith(first)


@given(st.tuples(KEYS, TIMES, TIMES), st.tuples(KEYS, TIMES, TIMES))
def test_session_keys_are_ordered_by_key_then_end_then_start(
    one: tuple[bytes, int, int], other: tuple[bytes, int, int]
) -> None:
    one, other = (one[0], *sorted(one[1:])), (other[0], *sorted(other[1:]))  # type: ignore[assignment]
    keys = SessionKeys()
    first, second = keys.logged(*one), keys.logged(*other)
    assert (first < second) == ((one[0], one[2], one[1]) < (other[0], other[2], other[1]))
    assert (keys.key(first), keys.start(first), keys.time(first)) == one
    assert keys.is_logged(first)
    assert one == other or not second.startswith(first)


@pytest.mark.parametrize("sequenced", [False, True])
@given(KEYS, TIMES, st.integers(1, 2**31 - 1))
def test_a_window_key_has_a_form_of_kafka_streams(sequenced: bool, key: bytes, start_ms: int, number: int) -> None:
    """Source: Kafka Streams, ``WindowKeySchema.toStoreKeyBinary``."""
    keys = WindowKeys(sequenced)
    logged = keys.logged(key, start_ms, number)
    theirs = key + struct.pack(">qi", start_ms, number if sequenced else 0)
    assert keys.for_streams(logged) == theirs
    assert keys.of_streams(theirs) == logged
    assert keys.of_streams(theirs[-11:]) is None


@given(KEYS, TIMES, TIMES)
def test_a_session_key_has_a_form_of_kafka_streams(key: bytes, one_ms: int, other_ms: int) -> None:
    """Source: Kafka Streams, ``SessionKeySchema.writeBinary``."""
    start_ms, end_ms = sorted((one_ms, other_ms))
    keys = SessionKeys()
    theirs = key + struct.pack(">qq", end_ms, start_ms)
    assert keys.for_streams(keys.logged(key, start_ms, end_ms)) == theirs
    assert keys.of_streams(theirs) == keys.logged(key, start_ms, end_ms)
    assert keys.of_streams(theirs[-15:]) is None


@pytest.mark.parametrize(("time_ms", "is_one"), [((1 << 62) - 1, True), (1 << 62, False), (-1, False)])
def test_a_time_that_no_store_takes_is_none_of_its_form(time_ms: int, is_one: bool) -> None:
    assert (WindowKeys().of_streams(b"k" + struct.pack(">qi", time_ms, 0)) is not None) == is_one
    assert (SessionKeys().of_streams(b"k" + struct.pack(">qq", time_ms, 5)) is not None) == is_one


@pytest.mark.parametrize("number", [1, 2**31, 2**32 - 1])
def test_a_number_that_kafka_streams_has_not_is_none_of_its_form(number: int) -> None:
    theirs = b"k" + struct.pack(">qI", 5_000, number)
    assert WindowKeys().of_streams(theirs) is None
    assert (WindowKeys(sequenced=True).of_streams(theirs) is None) == (number >= 2**31)
    assert WindowKeys(sequenced=True).for_streams(WindowKeys(sequenced=True).logged(b"k", 5_000, number))[-4:] == (
        number % 2**31
    ).to_bytes(4, "big")


@given(st.binary(max_size=30))
def test_a_foreign_key_is_refused_or_can_be_read(key: bytes) -> None:
    for keys in (WindowKeys(), WindowKeys(True)):
        if keys.is_logged(key):
            assert keys.logged(keys.key(key), keys.time(key), keys.sequence(key)) == key
    if SessionKeys().is_logged(key):
        assert SessionKeys().logged(SessionKeys().key(key), SessionKeys().start(key), SessionKeys().time(key)) == key
