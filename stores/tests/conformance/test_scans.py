"""Scans: bounds, directions and order, over committed, staged and mixed entries. Source: KIP-892, KIP-614."""

from __future__ import annotations

from itertools import product

import pytest

from stores import KeyValueStore
from stores.tests.model import Model

KEYS = [
    b"\x00",
    b"\x00\x00",
    b"\x01",
    b"a",
    b"a\x00",
    b"a\xfe",
    b"a\xff",
    b"a\xffz",
    b"b",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\x01",
]
BOUNDS = [None, b"", b"\x00", b"a", b"a\x80", b"a\xff", b"b", b"c", b"\xff", b"\xff\xff\xff"]
PREFIXES = [b"", b"\x00", b"a", b"a\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\xff", b"q", b"a" * 600]
HOWS = ["committed", "staged", "mixed"]


def fill(store: KeyValueStore, how: str) -> Model:
    """Put ``KEYS`` into the store; ``mixed`` also leaves staged deletes, overwrites and a range delete."""
    model = Model()
    for number, key in enumerate(KEYS):
        if how != "mixed" or number % 3:
            store.put(key, b"%d" % number)
            model.put(key, b"%d" % number)
    if how == "staged":
        return model
    store.commit()
    if how == "mixed":
        for key, value in [(KEYS[0], b"new"), (KEYS[1], None), (KEYS[5], b"newer"), (KEYS[9], b"new"), (b"zz", None)]:
            store.put(key, value)
            model.put(key, value)
        store.delete_range(b"a\xfe", b"a\xff")
        model.delete_range(b"a\xfe", b"a\xff")
        store.put(b"a\xff", b"back")
        model.put(b"a\xff", b"back")
    return model


@pytest.mark.parametrize("how", HOWS)
def test_all_is_in_order_of_unsigned_bytes(store: KeyValueStore, how: str) -> None:
    model = fill(store, how)
    assert list(store.all()) == model.scan()
    assert list(store.reverse_all()) == model.scan(reverse=True)


@pytest.mark.parametrize("how", HOWS)
def test_ranges_include_both_ends_in_both_directions(store: KeyValueStore, how: str) -> None:
    """Every pair of bounds, open, empty, crossed, on a key and between keys."""
    model = fill(store, how)
    for start, end in product(BOUNDS, repeat=2):
        assert list(store.range(start, end)) == model.scan(start, end), (start, end)
        assert list(store.reverse_range(start, end)) == model.scan(start, end, reverse=True), (start, end)


@pytest.mark.parametrize("how", HOWS)
def test_a_range_whose_start_lies_behind_its_end_is_empty(store: KeyValueStore, how: str) -> None:
    fill(store, how)
    assert list(store.range(b"b", b"a")) == []
    assert list(store.reverse_range(b"b", b"a")) == []


@pytest.mark.parametrize("how", HOWS)
def test_prefix_scans_in_both_directions_up_to_the_last_byte(store: KeyValueStore, how: str) -> None:
    model = fill(store, how)
    for prefix in PREFIXES:
        assert list(store.prefix_scan(prefix)) == model.prefix(prefix), prefix
        assert list(store.reverse_prefix_scan(prefix)) == model.prefix(prefix, reverse=True), prefix


def test_half_open_ranges_are_the_same_before_and_after_a_commit(store: KeyValueStore) -> None:
    """An open end shows staged and committed entries alike, in both directions."""
    store.put_all([(key, b"1") for key in (b"b", b"d", b"f")])
    store.commit()
    store.put_all([(key, b"2") for key in (b"a", b"c", b"e", b"g")])
    for _ in range(2):
        assert b"".join(key for key, _ in store.range(b"c", None)) == b"cdefg"
        assert b"".join(key for key, _ in store.range(None, b"c")) == b"abc"
        assert b"".join(key for key, _ in store.reverse_range(b"c", None)) == b"gfedc"
        assert b"".join(key for key, _ in store.reverse_range(None, b"c")) == b"cba"
        store.commit()


@pytest.mark.parametrize("staged", [0, 33, 1100])
def test_long_scans_lose_and_repeat_nothing(store: KeyValueStore, staged: int) -> None:
    """Lengths about those in which engines hand pairs over, staged entries in between."""
    committed = 1100
    store.put_all([(b"%06d" % (2 * number), b"c") for number in range(committed)])
    store.commit()
    store.put_all([(b"%06d" % (2 * number + 1), b"s") for number in range(staged)])
    expected = sorted([b"%06d" % (2 * n) for n in range(committed)] + [b"%06d" % (2 * n + 1) for n in range(staged)])
    assert [key for key, _ in store.all()] == expected
    assert [key for key, _ in store.reverse_all()] == expected[::-1]
    for length in (31, 32, 33, 512, 513, 544, 545):
        assert [key for key, _ in store.range(None, expected[length])] == expected[: length + 1]
        assert [key for key, _ in store.reverse_range(expected[-length], None)] == expected[-length:][::-1]


def test_staged_deletes_hide_long_stretches_of_committed_entries(store: KeyValueStore) -> None:
    store.put_all([(b"%06d" % number, b"c") for number in range(1100)])
    store.commit()
    for number in range(10, 1000):
        store.delete(b"%06d" % number)
    store.delete_range(b"001050", b"001098")
    expected = [b"%06d" % number for number in [*range(10), *range(1000, 1050), 1099]]
    assert [key for key, _ in store.all()] == expected
    assert [key for key, _ in store.reverse_all()] == expected[::-1]
    store.commit()
    assert [key for key, _ in store.all()] == expected
