"""Scans: bounds, directions and order, over committed, staged and mixed entries.

Iterators are snapshots of the moment they were made, cost no copy, and end with their store. Source: KIP-892, KIP-614.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest

from stores import IsolationLevel, KeyValueIterator, KeyValueStore, StoreClosedError
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


Change = Callable[[KeyValueStore], object]
CHANGES: dict[str, Change] = {
    "put": lambda store: store.put(b"a5", b"changed"),
    "many puts": lambda store: store.put_all([(b"%04d" % number, b"changed") for number in range(2000)]),
    "delete": lambda store: store.delete(b"a1"),
    "delete_range": lambda store: store.delete_range(None, None),
    "commit": lambda store: store.commit(),
    "change and commit": lambda store: (store.put(b"a0", b"changed"), store.delete(b"b0"), store.commit()),
    "delete_range and commit": lambda store: (
        store.delete_range(b"a", b"b"),  # type: ignore[func-returns-value]
        store.commit(),
        store.put(b"a0", b"x"),
    ),
    "rollback": lambda store: store.rollback(),
    "rollback, put and commit": lambda store: (
        store.rollback(),  # type: ignore[func-returns-value]
        store.put(b"b0", b"changed"),
        store.commit(),
    ),
}
SCANS: dict[str, Callable[[KeyValueStore], KeyValueIterator]] = {
    "all": lambda store: store.all(),
    "reverse_all": lambda store: store.reverse_all(),
    "range": lambda store: store.range(b"a1", b"b3"),
    "reverse_range": lambda store: store.reverse_range(None, b"b3"),
    "prefix_scan": lambda store: store.prefix_scan(b"a"),
    "reverse_prefix_scan": lambda store: store.reverse_prefix_scan(b"b"),
}


def fill_in_layers(store: KeyValueStore) -> None:
    """Some committed entries, and staged ones over and between them."""
    store.put_all([(b"a%d" % number, b"committed") for number in range(8)])
    store.put_all([(b"b%d" % number, b"committed") for number in range(8)])
    store.commit()
    store.put_all([(b"a%d" % number, b"staged") for number in range(0, 12, 2)])
    store.delete(b"b2")
    store.delete_range(b"b4", b"b6")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_scan_was_made_does_not_show_in_it(store: KeyValueStore, change: str) -> None:
    fill_in_layers(store)
    expected = {name: list(scan(store)) for name, scan in SCANS.items()}
    fresh = {name: scan(store) for name, scan in SCANS.items()}
    iterators = {name: scan(store) for name, scan in SCANS.items()}
    first = {name: next(scan) for name, scan in iterators.items()}
    CHANGES[change](store)
    assert {name: list(scan) for name, scan in fresh.items()} == expected
    assert {name: [first[name], *scan] for name, scan in iterators.items()} == expected


def test_scans_of_several_moments_each_show_their_own(store: KeyValueStore) -> None:
    iterators = []
    for moment in range(30):
        store.put(b"key", b"%d" % moment)
        iterators.append(store.all())
        if moment % 7 == 6:
            store.commit()
        if moment % 11 == 10:
            store.delete_range(None, None)
    assert [list(scan) for scan in iterators] == [[(b"key", b"%d" % moment)] for moment in range(30)]


def test_a_loop_may_write_what_it_reads(store: KeyValueStore) -> None:
    fill_in_layers(store)
    expected = [(key, value + b"!") for key, value in store.all()]
    for key, value in store.all():
        store.put(key, value + b"!")
    assert list(store.all()) == expected


def test_an_iterator_is_its_own_iterator_and_goes_on_where_it_was(store: KeyValueStore) -> None:
    fill_in_layers(store)
    expected = list(store.all())
    scan = store.all()
    assert [next(scan), next(scan)] == expected[:2]
    for pair in scan:
        assert pair == expected[2]
        break
    assert list(scan) == expected[3:]
    assert list(scan) == []
    with pytest.raises(StopIteration):
        next(scan)


def test_leaving_its_block_closes_an_iterator_and_using_it_then_raises(store: KeyValueStore) -> None:
    fill_in_layers(store)
    with store.all() as scan:
        next(scan)
    with pytest.raises(StoreClosedError):
        next(scan)
    with pytest.raises(StoreClosedError):
        list(scan)
    scan.close()


def test_a_loop_left_early_may_be_closed_from_outside(store: KeyValueStore) -> None:
    fill_in_layers(store)
    with store.all() as scan:
        for _ in scan:
            break
        store.put(b"later", b"1")
    store.commit()
    assert store.get(b"later") == b"1"


def test_closing_the_store_closes_its_iterators(store: KeyValueStore) -> None:
    fill_in_layers(store)
    begun, fresh, ended = store.all(), store.reverse_all(), store.range(b"x", b"y")
    loop = iter(store.prefix_scan(b"a"))
    next(begun)
    next(loop)
    assert list(ended) == []
    store.close()
    for scan in (begun, fresh, ended, loop):
        with pytest.raises(StoreClosedError):
            next(scan)


def test_a_store_closes_with_any_number_of_open_iterators(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    fill_in_layers(store)
    scans = [store.all() for _ in range(100)]
    for scan in scans[::2]:
        next(scan)
    again = reopen()
    assert again.is_open
    for scan in scans:
        with pytest.raises(StoreClosedError):
            next(scan)


def test_forgotten_iterators_pin_nothing_for_good(store: KeyValueStore) -> None:
    """A thousand scans that nobody closes: the engine's own limit on readers is not reached."""
    fill_in_layers(store)
    expected = list(store.all())
    for _ in range(1000):
        next(store.all())
    gc.collect()
    assert list(store.all()) == expected


def test_many_iterators_may_be_open_at_once(store: KeyValueStore) -> None:
    fill_in_layers(store)
    expected = list(store.all())
    scans = [store.all() for _ in range(100)]
    store.commit()
    assert [list(scan) for scan in scans] == [expected] * 100


@pytest.mark.as_is
def test_making_an_iterator_does_not_copy_what_is_staged(store: KeyValueStore) -> None:
    """Counted in bytes: ten thousand staged entries, and a scan of them takes less than a list of references would."""
    store.put_all([(b"%08d" % number, b"value") for number in range(10_000)])
    next(store.all())
    tracemalloc.start()
    try:
        scans = [store.all() for _ in range(3)]
        store.put(b"between", b"1")
        scans.append(store.all())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10_000 * 8
    assert [sum(1 for _ in scan) for scan in scans] == [10_000] * 3 + [10_001]


def test_scans_of_several_range_deletes_each_show_those_before_them(store: KeyValueStore) -> None:
    """Each delete overlaps or meets the one before: together they are one range, which no older scan may see grow."""
    keys = [b"%02d" % number for number in range(10)]
    store.put_all([(key, b"committed") for key in keys])
    store.commit()
    store.put_all([(key, b"staged") for key in keys[::2]])
    scans = [store.all()]
    uncommitted = [store.read_only(IsolationLevel.READ_UNCOMMITTED).reverse_all()]
    for end in range(1, 10, 2):
        store.delete_range(keys[max(0, end - 2)], keys[end])
        scans.append(store.all())
        uncommitted.append(store.read_only(IsolationLevel.READ_UNCOMMITTED).reverse_all())
    store.rollback()
    store.delete_range(None, None)
    expected = [keys, *(keys[end + 1 :] for end in range(1, 10, 2))]
    assert [[key for key, _ in scan] for scan in scans] == expected
    assert [[key for key, _ in scan] for scan in uncommitted] == [shown[::-1] for shown in expected]
