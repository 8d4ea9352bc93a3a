"""Queries with a position bound: answered at their own level, or refused with the number of missing offsets.

Source: KIP-892, "Interactive Query .position Offsets"; KIP-796, ``PositionBound``.
"""

from __future__ import annotations

from collections.abc import Callable
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
from stores.tests.conformance.gaps import ISOLATED, POSITION_KEPT, ROLLED_BACK, carries

FIRST, SECOND = TopicPartition("input", 0), TopicPartition("input", 1)
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
    store.advance_position(FIRST, 5)
    store.commit()
    store.put(b"key", b"2")
    store.advance_position(FIRST, 9)
    bound = PositionBound({FIRST: 8})
    committed = store.read_only(IsolationLevel.READ_COMMITTED, bound)
    for name, query in QUERIES.items():
        assert query(store.read_only(IsolationLevel.READ_UNCOMMITTED, bound)) == b"2"
        assert behind(committed, name) == ({FIRST: 3} if carries(store, ISOLATED) else None)
        assert query(store.read_only(bound=PositionBound({FIRST: 5}))) in (b"1", b"2")
    store.commit()
    for query in QUERIES.values():
        assert query(committed) == b"2"


def test_a_bound_names_every_partition_that_is_behind_and_those_only(store: KeyValueStore) -> None:
    store.advance_position(FIRST, 5)
    store.commit()
    for level in IsolationLevel:
        view = store.read_only(level, PositionBound({FIRST: 7, SECOND: 0}))
        assert behind(view, "get") == {FIRST: 2, SECOND: 1}
        assert view.position() == {FIRST: 5}
        assert behind(store.read_only(level, PositionBound({FIRST: 5})), "get") is None
        assert behind(store.read_only(level, PositionBound()), "get") is None
        with pytest.raises(NotUpToBoundError):
            view.approximate_num_entries()


def test_a_rollback_takes_the_position_with_it(store: KeyValueStore) -> None:
    store.put(b"key", b"1")
    store.advance_position(FIRST, 1)
    store.commit()
    store.put(b"key", b"2")
    store.advance_position(FIRST, 2)
    view = store.read_only(IsolationLevel.READ_UNCOMMITTED, PositionBound({FIRST: 2}))
    assert view.get(b"key") == b"2"
    store.rollback()
    assert behind(view, "all") == {FIRST: 1}
    assert store.read_only(IsolationLevel.READ_UNCOMMITTED).get(b"key") == (
        b"1" if carries(store, ROLLED_BACK) else b"2"
    )


def test_a_restore_may_advance_the_position_which_is_kept_with_the_data(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    """Merged by maximum, like any other."""
    changelog = TopicPartition("changelog", 0)
    store.restore([(b"key", b"1")], {changelog: 1}, {FIRST: 4, SECOND: 2})
    store.restore([(b"key", b"2")], {changelog: 2}, {FIRST: 3, SECOND: 6})
    store.restore([], {}, {FIRST: 5})
    store.restore([(b"key", b"3")], {changelog: 3})
    for level in IsolationLevel:
        assert store.position(level) == {FIRST: 5, SECOND: 6}
    assert store.read_only(bound=PositionBound({FIRST: 5})).get(b"key") == b"3"
    again = reopen()
    kept = {FIRST: 5, SECOND: 6} if carries(again, POSITION_KEPT) else {}
    assert again.position(IsolationLevel.READ_COMMITTED) == kept


def test_a_bound_that_is_none_is_refused(store: KeyValueStore) -> None:
    wrong: Any
    for wrong in ({"input": 1}, {FIRST: "1"}, {FIRST: 1.0}, {FIRST: True}, {("input", 0): 1}):
        with pytest.raises(TypeError):
            PositionBound(wrong)
    with pytest.raises(ValueError):
        PositionBound({FIRST: -1})
    wrong = {FIRST: 1}
    with pytest.raises(TypeError):
        store.read_only(bound=wrong)
    with pytest.raises((TypeError, ValueError)):
        store.restore([(b"key", b"1")], {}, {FIRST: -1})
    assert store.get(b"key") is None


def test_a_bound_stays_as_it_was_given() -> None:
    given = {FIRST: 1}
    bound = PositionBound(given)
    given[FIRST] = 50
    assert bound.behind({FIRST: 1}) == {}
    assert bound == PositionBound({FIRST: 1})


def test_a_view_with_a_bound_closes_with_its_store(store: KeyValueStore) -> None:
    store.advance_position(FIRST, 1)
    store.commit()
    view = store.read_only(bound=PositionBound({FIRST: 1}))
    store.close()
    for query in QUERIES.values():
        with pytest.raises(StoreClosedError):
            query(view)
    with pytest.raises(StoreClosedError):
        view.position()
