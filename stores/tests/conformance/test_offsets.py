"""Offsets and position are kept with the data, in the same step, and never show in it.

Queries with a position bound are answered at their own level, or refused with the number of missing offsets.
Source: KIP-892, "Interactive Query .position Offsets"; KIP-796, ``PositionBound``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stores import (
    IsolationLevel,
    KeyValueStore,
    KeyValueView,
    NotUpToBoundError,
    PositionBound,
    StoreClosedError,
    TopicPartition,
)
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, POSITION_KEPT, ROLLED_BACK, carries

Reopen = Callable[[], KeyValueStore]
FIRST, SECOND, THIRD = TopicPartition("changelog", 0), TopicPartition("changelog", 1), TopicPartition("ändere-log", 0)


def offsets(store: KeyValueStore) -> dict[TopicPartition, int | None]:
    """Return the store's committed offsets of three partitions."""
    return {partition: store.committed_offset(partition) for partition in (FIRST, SECOND, THIRD)}


def kept(store: KeyValueStore, expected: dict[TopicPartition, int | None]) -> dict[TopicPartition, int | None]:
    """``expected`` of a store that manages offsets, else None for each."""
    return expected if store.manages_offsets else dict.fromkeys(expected)


@pytest.mark.every_durability
def test_offsets_of_three_partitions_are_kept_by_one_commit(store: KeyValueStore, reopen: Reopen) -> None:
    assert offsets(store) == {FIRST: None, SECOND: None, THIRD: None}
    store.put(b"key", b"value")
    store.commit({FIRST: 0, SECOND: 41, THIRD: 2**63 - 1})
    expected = kept(store, {FIRST: 0, SECOND: 41, THIRD: 2**63 - 1})
    assert offsets(store) == expected
    again = reopen()
    assert offsets(again) == (expected if again.persistent else dict.fromkeys(expected))


def test_offsets_merge_into_those_already_kept(store: KeyValueStore, reopen: Reopen) -> None:
    store.commit({FIRST: 1, SECOND: 2})
    for change in ({}, None, {SECOND: 2}):
        store.put(b"key", repr(change).encode())
        store.commit(change)
        assert offsets(store) == kept(store, {FIRST: 1, SECOND: 2, THIRD: None})
    store.commit()
    store.commit({THIRD: 7, SECOND: None})
    expected = kept(store, {FIRST: 1, SECOND: None, THIRD: 7})
    assert offsets(store) == expected
    assert store.recover().offsets == {
        partition: offset for partition, offset in expected.items() if offset is not None
    }
    if store.persistent:
        assert offsets(reopen()) == expected


def test_none_clears_an_offset_and_a_lower_one_may_follow(store: KeyValueStore) -> None:
    store.commit({FIRST: 100})
    store.commit({FIRST: None})
    assert store.committed_offset(FIRST) is None
    store.commit({FIRST: None})
    store.commit({FIRST: 3})
    assert store.committed_offset(FIRST) == (3 if store.manages_offsets else None)


def test_an_offset_never_moves_backwards(store: KeyValueStore) -> None:
    """The refused commit changes nothing: neither data, nor the other offsets, nor what is staged."""
    store.commit({FIRST: 10, SECOND: 10})
    store.put(b"key", b"value")
    if store.manages_offsets:
        with pytest.raises(ValueError):
            store.commit({SECOND: 11, FIRST: 9})
        assert offsets(store) == {FIRST: 10, SECOND: 10, THIRD: None}
        assert store.read_only().get(b"key") is None
        assert store.approximate_num_uncommitted_bytes() == 8
        store.commit({SECOND: 11, FIRST: 10})
        assert offsets(store) == {FIRST: 10, SECOND: 11, THIRD: None}
    else:
        store.commit({SECOND: 11, FIRST: 9})
        assert offsets(store) == {FIRST: None, SECOND: None, THIRD: None}
    assert store.read_only().get(b"key") == b"value"


def test_an_offset_that_is_none_is_refused_before_anything_changes(store: KeyValueStore) -> None:
    store.put(b"key", b"value")
    named: Any = TopicPartition
    wrong_offsets: list[tuple[Any, type[Exception]]] = [
        ({FIRST: -1}, ValueError), ({FIRST: 2**63}, ValueError), ({FIRST: "1"}, TypeError), ({FIRST: 1.0}, TypeError),
        ({FIRST: True}, TypeError), ({"changelog": 1}, TypeError), ({"changelog": None}, TypeError), (5, TypeError),
        (0, TypeError),
        ({("t", 0): 1}, TypeError), ({named(0, "t"): 1}, TypeError), ({named("t", "0"): 1}, TypeError),
        ({named("t", -1): 1}, ValueError), ({named("t", 2**32): None}, ValueError),
        ({named("t" * 250, 0): 1}, ValueError), ({SECOND: 5, FIRST: -1}, ValueError),
    ]  # fmt: skip
    for bad, error in wrong_offsets:
        with pytest.raises(error):
            store.commit(bad)
        if store.transactional:
            assert store.read_only().get(b"key") is None
            assert store.approximate_num_uncommitted_bytes() == 8
        assert store.recover().offsets == {}
        with pytest.raises(error):
            store.recover(bad)
    for nothing in (3, "changelog", ("t", 0), None):
        with pytest.raises(TypeError):
            store.committed_offset(nothing)  # type: ignore[arg-type]
    for partition, offset in [(FIRST, -1), (FIRST, "1"), ("changelog", 1), (TopicPartition("t", -1), 1)]:
        with pytest.raises((TypeError, ValueError)):
            store.advance_position(partition, offset)  # type: ignore[arg-type]
    assert store.position(IsolationLevel.READ_UNCOMMITTED) == {}
    store.commit({TopicPartition("t" * 249, 2**32 - 1): 1})


def test_a_position_is_staged_and_committed_with_the_writes(store: KeyValueStore, reopen: Reopen) -> None:
    """Merged by maximum. Source: KIP-796."""
    store.advance_position(FIRST, 5)
    store.advance_position(FIRST, 3)
    store.advance_position(SECOND, 0)
    assert store.position(IsolationLevel.READ_UNCOMMITTED) == {FIRST: 5, SECOND: 0}
    if store.transactional:
        assert store.position(IsolationLevel.READ_COMMITTED) == {}
    store.commit()
    store.advance_position(FIRST, 4)
    store.advance_position(SECOND, 9)
    assert store.position(IsolationLevel.READ_UNCOMMITTED) == {FIRST: 5, SECOND: 9}
    store.rollback()
    assert store.position(IsolationLevel.READ_COMMITTED) == {FIRST: 5, SECOND: 0}
    assert store.position(IsolationLevel.READ_UNCOMMITTED) == {FIRST: 5, SECOND: 0}
    again = reopen()
    survives = again.persistent and again.manages_offsets
    assert again.position(IsolationLevel.READ_COMMITTED) == ({FIRST: 5, SECOND: 0} if survives else {})


def test_no_commit_takes_a_position_back(store: KeyValueStore) -> None:
    store.advance_position(FIRST, 5)
    store.commit()
    store.advance_position(FIRST, 4)
    store.commit()
    assert store.position(IsolationLevel.READ_COMMITTED) == {FIRST: 5}
    # Staged before a restore that goes beyond it: the transaction is still that one.
    store.advance_position(FIRST, 6)
    store.advance_position(SECOND, 1)
    store.restore([], {TopicPartition("changelog", 0): 1}, {FIRST: 9})
    store.commit()
    assert store.position(IsolationLevel.READ_COMMITTED) == {FIRST: 9, SECOND: 1}


def test_a_position_is_a_copy_and_its_level_is_one_that_there_is(store: KeyValueStore) -> None:
    store.advance_position(FIRST, 5)
    store.commit()
    for level in IsolationLevel:
        position: Any = store.position(level)
        position[FIRST] = 99
        position[SECOND] = 1
        assert store.position(level) == {FIRST: 5}
    with pytest.raises(ValueError):
        store.position("READ_NOTHING")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        store.read_only("READ_NOTHING")  # type: ignore[arg-type]


def test_offsets_and_position_never_show_in_a_scan_nor_count_as_entries(store: KeyValueStore) -> None:
    for number in range(20):
        store.advance_position(TopicPartition("input", number), number)
        store.commit({TopicPartition("changelog", number): number})
    for reader in (store, store.read_only()):
        assert list(reader.all()) == list(reader.reverse_all()) == list(reader.prefix_scan(b"")) == []
    assert store.approximate_num_entries() == 0
    store.put(b"key", b"value")
    store.delete_range(None, None)
    store.commit()
    if store.manages_offsets:
        assert len(store.recover().offsets) == 20


@pytest.mark.every_durability
def test_data_offsets_and_position_are_of_one_commit_after_reopening(
    case: Case, store: KeyValueStore, reopen: Reopen
) -> None:
    for number in range(5):
        store.put(b"key", b"%d" % number)
        store.advance_position(SECOND, number)
        store.commit({FIRST: number})
    store.put(b"key", b"uncommitted")
    store.advance_position(SECOND, 77)
    again = reopen()
    if again.persistent and again.manages_offsets:
        assert again.get(b"key") == b"4"
        assert again.committed_offset(FIRST) == 4
        assert again.position(IsolationLevel.READ_UNCOMMITTED) == {SECOND: 4}
    else:
        assert again.committed_offset(FIRST) is None
        assert again.position(IsolationLevel.READ_UNCOMMITTED) == {}


def test_the_given_offsets_stay_the_caller_s(store: KeyValueStore) -> None:
    offsets: dict[TopicPartition, int | None] = {FIRST: 1, SECOND: None}
    before: Mapping[TopicPartition, int | None] = dict(offsets)
    store.commit(offsets)
    assert offsets == before
    offsets[FIRST] = 50
    assert store.committed_offset(FIRST) == (1 if store.manages_offsets else None)


INPUT, OTHER_INPUT = TopicPartition("input", 0), TopicPartition("input", 1)
QUERIES: dict[str, Callable[[KeyValueView], Any]] = {
    "get": lambda view: view.get(b"key"),
    "get_many": lambda view: view.get_many([b"key"])[0],
    "range": lambda view: dict(view.range(None, b"z")).get(b"key"),
    "reverse_range": lambda view: dict(view.reverse_range(b"a", None)).get(b"key"),
    "all": lambda view: dict(view.all()).get(b"key"),
    "reverse_all": lambda view: dict(view.reverse_all()).get(b"key"),
    "prefix_scan": lambda view: dict(view.prefix_scan(b"k")).get(b"key"),
    "reverse_prefix_scan": lambda view: dict(view.reverse_prefix_scan(b"k")).get(b"key"),
}


def behind(view: KeyValueView, query: str) -> dict[TopicPartition, int] | None:
    """Return the missing offsets that the query's error has; None if it is answered."""
    try:
        QUERIES[query](view)
    except NotUpToBoundError as error:
        return error.behind
    return None


def test_a_bound_between_the_two_maps_is_met_by_uncommitted_data_only(store: KeyValueStore) -> None:
    store.put(b"key", b"1")
    store.advance_position(INPUT, 5)
    store.commit()
    store.put(b"key", b"2")
    store.advance_position(INPUT, 9)
    bound = PositionBound({INPUT: 8})
    view = store.read_only(IsolationLevel.READ_COMMITTED, bound)
    for name, query in QUERIES.items():
        assert query(store.read_only(IsolationLevel.READ_UNCOMMITTED, bound)) == b"2"
        assert behind(view, name) == ({INPUT: 3} if carries(store, ISOLATED) else None)
        assert query(store.read_only(bound=PositionBound({INPUT: 5}))) in (b"1", b"2")
    store.commit()
    for query in QUERIES.values():
        assert query(view) == b"2"


def test_a_bound_names_every_partition_that_is_behind_and_those_only(store: KeyValueStore) -> None:
    store.advance_position(INPUT, 5)
    store.commit()
    for level in IsolationLevel:
        view = store.read_only(level, PositionBound({INPUT: 7, OTHER_INPUT: 0}))
        assert behind(view, "get") == {INPUT: 2, OTHER_INPUT: 1}
        assert view.position() == {INPUT: 5}
        assert behind(store.read_only(level, PositionBound({INPUT: 5})), "get") is None
        assert behind(store.read_only(level, PositionBound()), "get") is None
        with pytest.raises(NotUpToBoundError):
            view.approximate_num_entries()


def test_a_rollback_takes_the_position_with_it(store: KeyValueStore) -> None:
    store.put(b"key", b"1")
    store.advance_position(INPUT, 1)
    store.commit()
    store.put(b"key", b"2")
    store.advance_position(INPUT, 2)
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED, PositionBound({INPUT: 2}))
    assert view.get(b"key") == b"2"
    store.rollback()
    assert behind(view, "all") == {INPUT: 1}
    assert store.read_only(IsolationLevel.READ_UNCOMMITTED).get(b"key") == (
        b"1" if carries(store, ROLLED_BACK) else b"2"
    )


def test_a_restore_may_advance_the_position_which_is_kept_with_the_data(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    """Merged by maximum, like any other."""
    changelog = TopicPartition("changelog", 0)
    store.restore([(b"key", b"1")], {changelog: 1}, {INPUT: 4, OTHER_INPUT: 2})
    store.restore([(b"key", b"2")], {changelog: 2}, {INPUT: 3, OTHER_INPUT: 6})
    store.restore([], {}, {INPUT: 5})
    store.restore([(b"key", b"3")], {changelog: 3})
    for level in IsolationLevel:
        assert store.position(level) == {INPUT: 5, OTHER_INPUT: 6}
    assert store.read_only(bound=PositionBound({INPUT: 5})).get(b"key") == b"3"
    again = reopen()
    position = {INPUT: 5, OTHER_INPUT: 6} if carries(again, POSITION_KEPT) else {}
    assert again.position(IsolationLevel.READ_COMMITTED) == position


def test_a_bound_that_is_none_is_refused(store: KeyValueStore) -> None:
    wrong: Any
    for wrong in ({"input": 1}, {INPUT: "1"}, {INPUT: 1.0}, {INPUT: True}, {("input", 0): 1}):
        with pytest.raises(TypeError):
            PositionBound(wrong)
    with pytest.raises(ValueError):
        PositionBound({INPUT: -1})
    wrong = {INPUT: 1}
    with pytest.raises(TypeError):
        store.read_only(bound=wrong)
    with pytest.raises((TypeError, ValueError)):
        store.restore([(b"key", b"1")], {}, {INPUT: -1})
    assert store.get(b"key") is None


def test_a_bound_stays_as_it_was_given() -> None:
    position = {INPUT: 1}
    bound = PositionBound(position)
    position[INPUT] = 50
    assert bound.behind({INPUT: 1}) == {}
    assert bound == PositionBound({INPUT: 1})


def test_a_view_with_a_bound_closes_with_its_store(store: KeyValueStore) -> None:
    store.advance_position(INPUT, 1)
    store.commit()
    view = store.read_only(bound=PositionBound({INPUT: 1}))
    store.close()
    for query in QUERIES.values():
        with pytest.raises(StoreClosedError):
            query(view)
    with pytest.raises(StoreClosedError):
        view.position()
