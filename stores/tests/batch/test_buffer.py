"""The indexed batch against a naive model: lookups, frozen stacks that never change, bytes counted exactly."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import stores.ordered
from stores.batch import buffer
from stores.batch.buffer import MISSING, IndexedBatch, Layer, Missing, lookup
from stores.batch.memory import bytes_of
from stores.batch.merge import lay_over
from stores.ordered import SORTED_AT_ONCE, WHOLE, KeyRanges, SortedMap, prefix_bounds
from stores.tests.model import Model, within

KEYS = st.binary(min_size=1, max_size=2).map(lambda raw: bytes(b"\x00a\xff"[byte % 3] for byte in raw))
VALUES = st.none() | st.binary(max_size=4)
BOUNDS = st.none() | st.just(b"") | KEYS
BELOW = {bytes([first, second]): b"below" for first in b"\x00a\xff" for second in b"\x00b\xff"}


class BatchMachine(RuleBasedStateMachine):
    """Writes, freezes, releases and clears; every stack that was ever frozen keeps showing its moment."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = IndexedBatch()
        self.begin()
        self.frozen: list[tuple[tuple[Layer, ...], list[tuple[bytes, bytes]]]] = []

    def begin(self) -> None:
        """The model over some committed entries."""
        self.model = Model()
        for key, value in BELOW.items():
            self.model.put(key, value)
        self.model.commit({})

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.batch.put(key, value)
        self.model.put(key, value)

    @rule(pairs=st.dictionaries(KEYS, VALUES, max_size=9))
    def put_all(self, pairs: dict[bytes, bytes | None]) -> None:
        self.batch.put_all(dict(pairs), bytes_of(dict(pairs)))
        for key, value in pairs.items():
            self.model.put(key, value)

    @rule()
    def make_room(self) -> None:
        assert self.batch.make_room(1)

    @rule(start=BOUNDS, end=BOUNDS)
    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        if start is None or end is None or start <= end:
            self.batch.delete_range(start, end)
            self.model.delete_range(start, end)

    @rule()
    def freeze(self) -> None:
        with self.batch.lock:
            self.frozen.append((self.batch.freeze(), self.model.scan()))

    @precondition(lambda self: self.frozen)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        self.batch.release(self.frozen.pop(which % len(self.frozen))[0])

    @rule()
    def clear(self) -> None:
        with self.batch.lock:
            self.batch.clear()
        self.begin()

    @invariant()
    def every_key_is_looked_up_as_in_the_model(self) -> None:
        for key in {*BELOW, *self.model.staged, b"a", b"\xff"}:
            value = self.batch.get(key)
            assert (BELOW.get(key) if value is MISSING else value) == self.model.current.get(key)

    @invariant()
    def bytes_of_keys_and_values_are_exact(self) -> None:
        least, most = self.model.uncommitted_bytes()
        assert least <= self.batch.num_bytes <= most
        assert self.batch.num_bytes_held() == self.batch.num_bytes

    @invariant()
    def it_is_empty_exactly_where_nothing_was_staged_since_it_was_cleared(self) -> None:
        if self.batch.is_empty():
            assert not self.model.staged
            assert self.batch.layers() == []
        if self.model.staged:
            assert not self.batch.is_empty()

    @invariant()
    def frozen_stacks_show_their_own_moment_in_both_directions(self) -> None:
        for layers, expected in self.frozen:
            assert scan(layers) == expected
            assert scan(layers, reverse=True) == expected[::-1]
            for key, below in BELOW.items():
                value = lookup(layers, key)
                assert (below if value is MISSING else value) == dict(expected).get(key)


def scan(layers: tuple[Layer, ...], *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
    """``BELOW`` with the layers over it, handed over in chunks of two."""
    pairs = sorted(BELOW.items(), reverse=reverse)
    chunks = iter([pairs[at : at + 2] for at in range(0, len(pairs), 2)])
    for layer in layers:
        chunks = lay_over(chunks, layer.scan(WHOLE, reverse=reverse), layer.ranges, reverse=reverse)
    return [pair for chunk in chunks for pair in chunk]


TestBatch = BatchMachine.TestCase


class TestBatchInSmallSteps(BatchMachine.TestCase):  # type: ignore[misc, valid-type]
    """As ``TestBatch``, with every step that is bounded to keep others from waiting bounded to a few keys."""

    def setUp(self) -> None:
        self._bounds = pytest.MonkeyPatch()
        for module, name, bound in (
            (buffer, "_MERGED_AT_ONCE", 2),
            (buffer, "_ORDERED_AT_ONCE", 1),
            (buffer, "_CUT_FROM", 2),
            (buffer, "_FROZEN_MAX", 2),
            (buffer, "SORTED_AT_ONCE", 2),
            (stores.ordered, "SORTED_AT_ONCE", 2),
            (stores.ordered, "RUN_KEYS", 4),
            (stores.ordered, "_PIECE_KEYS_FIRST", 1),
            (stores.ordered, "_KEYS_OF_EACH", 1),
            (stores.ordered, "BLOCK_KEYS", 2),
        ):
            self._bounds.setattr(module, name, bound)
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        self._bounds.undo()


@given(st.lists(st.tuples(BOUNDS, BOUNDS), max_size=8), st.lists(KEYS, max_size=20))
def test_ranges_contain_what_any_of_them_contains(
    bounds: list[tuple[bytes | None, bytes | None]], keys: list[bytes]
) -> None:
    ranges, half = KeyRanges(), KeyRanges()
    for number, (start, end) in enumerate(bounds):
        (half if number % 2 else ranges).add(start, end)
    ranges.update(half)
    for key in keys:
        assert (key in ranges) is any(within(key, start, end) for start, end in bounds)
    range_list = list(ranges)
    assert bool(ranges) is bool(range_list)
    assert ranges.num_bytes() == sum(len(bound) for pair in range_list for bound in pair if bound is not None)
    for (_, end), (start, _) in pairwise(range_list):
        assert end is not None
        assert start is not None
        assert end < start
    for key in keys:
        assert (key in ranges) is any(within(key, start, end) for start, end in range_list)


@given(st.binary(max_size=4).map(lambda raw: bytes(b"\x00a\xfe\xff"[byte % 4] for byte in raw)), st.lists(KEYS))
def test_prefix_bounds_are_those_of_the_keys_with_the_prefix(prefix: bytes, keys: list[bytes]) -> None:
    start, end = prefix_bounds(prefix)
    for key in [*keys, prefix, prefix + b"\x00", prefix + b"\xff\xff"]:
        inside = (start is None or start <= key) and (end is None or key < end)
        assert inside is key.startswith(prefix)


def test_new_maps_and_sets_of_ranges_share_no_keys() -> None:
    changed: SortedMap[int] = SortedMap({b"1": 1, b"2": 2, b"3": 3})
    changed.order_some(2)
    ranges = KeyRanges()
    ranges.add(b"1", b"2")
    other: SortedMap[int] = SortedMap({b"4": 4})
    assert changed.keys_between(None, None) == [b"1", b"2", b"3"]
    assert other.keys_between(None, None) == [b"4"]
    assert list(ranges) == [(b"1", b"2")]
    assert list(KeyRanges()) == []
    assert b"1" not in KeyRanges()
    other_ranges = KeyRanges()
    other_ranges.add(b"3", None)
    assert list(other_ranges) == [(b"3", None)]


@given(
    st.lists(st.tuples(st.sampled_from(["put", "put", "put", "discard", "range", "look"]), KEYS, BOUNDS), max_size=60)
)
def test_a_sorted_map_is_a_dict_that_knows_its_order(steps: list[tuple[str, bytes, bytes | None]]) -> None:
    held: SortedMap[int] = SortedMap()
    model: dict[bytes, int] = {}
    for number, (what, key, bound) in enumerate(steps):
        if what == "put":
            held.writes[key] = model[key] = number
        elif what == "discard":
            held.discard(key)
            model.pop(key, None)
        elif what == "range":
            removed = sorted((k, model.pop(k)) for k in list(model) if within(k, key, bound))
            assert held.discard_range(key, bound) == removed
        else:
            assert held.keys_between(key, bound) == sorted(k for k in model if within(k, key, bound))
            open_ended = held.keys_between(None, bound, end_open=True)
            assert open_ended == sorted(k for k in model if bound is None or k < bound)
    assert held.keys_between(None, None) == sorted(model)
    assert held.writes == model


def test_a_sorted_map_takes_many_new_keys_at_once() -> None:
    keys: SortedMap[int] = SortedMap({b"%04d" % (number * 7 % 1000): number for number in range(500)})
    assert keys.keys_between(None, None) == sorted(keys.writes)
    keys.writes.update({b"%04d" % (number * 3 % 1000): number for number in range(1000)})
    assert keys.keys_between(None, None) == [b"%04d" % number for number in range(1000)]


def test_layers_are_merged_away_as_soon_as_the_writer_goes_on_without_anybody_needing_them() -> None:
    batch = IndexedBatch()
    held = []
    for number in range(6):
        batch.put(b"%d" % number, b"1")
        with batch.lock:
            held.append(batch.freeze())
    batch.put(b"0", b"2")
    with batch.lock:
        assert len(batch.layers()) == 7
    # The newest first: an older one that is still held keeps those below it.
    for stack in reversed(held[1:]):
        batch.release(stack)
    batch.put(b"1", b"3")
    with batch.lock:
        assert len(batch.layers()) == 2
    assert list(held[0][0].staged.writes.items()) == [(b"0", b"1")]
    batch.release(held[0])
    batch.put(b"new", b"4")
    with batch.lock:
        (layer,) = batch.layers()
    ones = {b"%d" % number: b"1" for number in range(2, 6)}
    assert layer.staged.writes == {b"0": b"2", b"1": b"3", b"new": b"4", **ones}


def test_readers_that_come_and_go_leave_nothing_behind_while_the_writer_rests() -> None:
    """In bytes: ten thousand stacks given back would take as many references."""
    batch = IndexedBatch()
    batch.put(b"key", b"value")

    def look() -> None:
        with batch.lock:
            stack = batch.freeze()
        batch.release(stack)

    look()
    tracemalloc.start()
    try:
        for _ in range(10_000):
            look()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10_000
    # Whoever comes last has left the layer free, although nobody has written since.
    with batch.lock:
        batch.release(batch.freeze())
        batch.release(batch.freeze())
    batch.put(b"key", b"other")
    with batch.lock:
        assert len(batch.layers()) == 1


def test_scans_that_follow_each_other_without_a_gap_do_not_pile_up_layers() -> None:
    """There is always one that is held: none of the layers is ever free."""
    batch = IndexedBatch()
    batch.put(b"key", b"value")
    held: deque[tuple[tuple[Layer, ...], int]] = deque()
    deepest = 0
    for number in range(2_000):
        with batch.lock:
            held.append((batch.freeze(), number))
            deepest = max(deepest, len(batch.layers()))
        batch.put(b"%d" % (number % 500), b"%d" % number)
        if number % 50 == 7:
            batch.delete_range(b"1", b"2")
        if len(held) > 3:
            stack, made = held.popleft()
            last = b"%d" % ((made - 1) % 500)
            if made and made % 50 != 8:
                assert lookup(stack, last) == b"%d" % (made - 1)
            assert lookup(stack, b"%d" % (made % 500)) != b"%d" % made
            batch.release(stack)
    assert deepest <= 24


def test_layers_that_are_compacted_leave_deleted_what_a_newer_one_of_them_deletes() -> None:
    batch = IndexedBatch()
    batch.put_all({b"%d" % number: b"old" for number in range(3)}, 12)
    held = []

    def freeze() -> None:
        with batch.lock:
            held.append(batch.freeze())

    freeze()
    batch.delete_range(b"0", b"1")
    batch.put(b"1", b"new")
    while len(held) <= buffer._FROZEN_MAX:
        freeze()
        batch.put(b"other", b"%d" % len(held))
    freeze()
    batch.delete_range(b"x", b"y")
    assert len(batch.layers()) < len(held)
    assert [batch.get(b"%d" % number) for number in range(3)] == [None, b"new", b"old"]
    assert [lookup(held[0], b"%d" % number) for number in range(3)] == [b"old"] * 3


def test_a_layer_that_a_reader_has_frozen_meanwhile_is_not_merged_into() -> None:
    """The reader came after the writer had looked for layers that nobody holds."""
    batch = IndexedBatch()
    batch.put(b"key", b"old")
    with batch.lock:
        stack = batch.freeze()
    batch._merge_large(batch._frozen[-1], batch._active)
    batch.put(b"key", b"new")
    assert (lookup(stack, b"key"), batch.get(b"key")) == (b"old", b"new")


def test_a_layer_that_a_reader_freezes_while_others_are_compacted_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader comes while the writer compares their sizes, without the lock."""
    monkeypatch.setattr(buffer, "_FROZEN_MAX", 1)
    batch = IndexedBatch()
    size = Layer.size
    held = []

    def freeze() -> None:
        with batch.lock:
            held.append(batch.freeze())

    def interrupted(layer: Layer) -> int:
        if len(held) == 2:
            freeze()
        return size(layer)

    batch.put_all({b"%d" % number: b"value" for number in range(3)}, 18)
    freeze()
    batch.put(b"3", b"value")
    freeze()
    batch.put(b"4", b"value")
    monkeypatch.setattr(Layer, "size", interrupted)
    batch.put(b"5", b"value")
    assert len(held) == 3
    assert [batch.get(b"%d" % number) for number in range(6)] == [b"value"] * 6


def test_what_a_layer_deletes_stays_deleted_where_it_is_too_large_to_be_merged_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "_MERGED_AT_ONCE", 2)
    batch = IndexedBatch()
    for number in range(5):
        batch.put(b"old %d" % number, b"value")
    with batch.lock:
        stack = batch.freeze()
    batch.delete_range(b"old 0", b"old 1")
    for number in range(5):
        batch.put(b"new %d" % number, b"value")
    batch.release(stack)
    batch.put(b"last", b"value")
    assert [batch.get(b"old %d" % number) for number in range(3)] == [None, None, b"value"]


class Drained:
    """A spill in memory for the drained writes of a batch."""

    def __init__(self, writes: dict[bytes, bytes | None]) -> None:
        self._writes = writes

    def get(self, key: bytes) -> bytes | Missing | None:
        return self._writes.get(key, MISSING)

    def pairs_between(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, int]]:
        for key, value in sorted(self._writes.items()):
            if (start is None or start <= key) and (end is None or key < end):
                yield key, len(key) + len(value or b"")


def test_what_was_drained_counts_until_it_is_overwritten_or_deleted() -> None:
    batch = IndexedBatch()
    batch.put_all({b"a": b"12", b"b": b"12", b"c": None}, 7)
    assert (batch.num_bytes, batch.num_bytes_held()) == (7, 7)
    with batch.lock:
        batch.drain(Drained(dict(batch.writes)))
    assert (batch.num_bytes, batch.num_bytes_held()) == (7, 0)
    batch.put(b"a", b"1234")
    assert (batch.num_bytes, batch.num_bytes_held()) == (9, 5)
    batch.put_all({b"c": b"1", b"d": b"1"}, 4)
    assert (batch.num_bytes, batch.num_bytes_held()) == (12, 9)
    batch.delete_range(b"a", b"b")
    assert (batch.num_bytes, batch.num_bytes_held()) == (6, 6)
    with batch.lock:
        batch.drain(Drained({b"a": None, b"b": None, b"c": b"1", b"d": b"1"}))
    assert (batch.num_bytes, batch.num_bytes_held()) == (6, 0)
    with batch.lock:
        batch.clear()
    assert (batch.num_bytes, batch.num_bytes_held()) == (0, 0)


def test_the_first_room_of_a_transaction_is_that_of_pairs_like_the_last_ones() -> None:
    rooms = []
    for value_bytes in (10, 100):
        batch = IndexedBatch()
        for number in range(1_000):
            batch.make_room(8 + value_bytes)
            batch.put(b"%08d" % number, bytes(value_bytes))
        batch.clear()
        rooms.append(batch.room_bytes)
    assert rooms == [SORTED_AT_ONCE * (8 + 10 + 1), SORTED_AT_ONCE * (8 + 100 + 1)]
