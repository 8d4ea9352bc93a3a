"""Session stores over every backend: a model and a store do the same, and never differ.

The promises are those of Kafka's own suite for these stores (``AbstractSessionBytesStoreTest``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores import KeyValueStore, StoreClosedError
from stores.records import BYTES, Session, SessionStore, SessionView, ValueAndTimestamp, Windowed
from stores.tests.conformance.cases import Case
from stores.tests.conformance.window_model import (
    KEYS,
    QUERIES,
    RETENTION,
    SEGMENT,
    SessionModel,
    put_and_shown,
    run_beside_model,
    steps_of,
)

pytestmark = pytest.mark.typed

Store = SessionStore[bytes, Any]
View = SessionView[bytes, Any]

PUTS = st.tuples(st.just("put"), KEYS, st.integers(-35, 12), st.integers(0, 30), st.none() | st.binary(max_size=2))


def kind(**given: Any) -> Session[bytes, Any]:
    return Session(BYTES, BYTES, **{"retention_ms": RETENTION, "segment_ms": SEGMENT, **given})


@pytest.mark.spread_over(how=["plain", "timestamped", "headers", "fine"])
@settings(max_examples=8)
@given(steps=steps_of(PUTS), query=QUERIES)
def test_a_session_store_does_what_a_dict_would(case: Case, how: str, steps: list[Any], query: Any) -> None:
    described = kind(
        timestamped=how == "timestamped", headers=how == "headers", segment_ms=1 if how == "fine" else SEGMENT
    )
    model = SessionModel(RETENTION)

    def put(store: Store, number: int, key: bytes, distance: int, length: int, value: bytes | None) -> None:
        end = max(0, model.stream_time + distance)
        start = max(0, end - length)
        more, kept = put_and_shown(how, value, number)
        store.put(Windowed(key, start, end), value, *more)
        model.put(key, start, end, kept)

    run_beside_model(
        case,
        described,
        model,
        steps,
        put=put,
        ask_all=lambda store: store.fetch_range(None, None),
        shown=model.found,
        compare=lambda reads: compare(reads, model, *query),
    )


def compare(reads: Store | View, model: SessionModel, low: bytes, high: bytes, end: int, start: int) -> None:
    """Ask everything that a store can be asked: sessions that end at ``end`` or later, and start up to ``start``."""
    of_key = model.found(lambda key, began, ended: key == low)
    of_keys = model.found(lambda key, began, ended: low <= key <= high)
    within = model.found(lambda key, began, ended: key == low and ended >= end and began <= start)
    all_within = model.found(lambda key, began, ended: low <= key <= high and ended >= end and began <= start)
    up_to = model.found(lambda key, began, ended: key <= high)
    assert list(reads.fetch(low)) == of_key
    assert list(reads.backward_fetch(low)) == of_key[::-1]
    assert list(reads.fetch_range(low, high)) == of_keys
    assert list(reads.backward_fetch_range(low, high)) == of_keys[::-1]
    assert list(reads.fetch_range(None, high)) == up_to
    assert list(reads.find_sessions(low, end, start)) == within
    assert list(reads.backward_find_sessions(low, end, start)) == within[::-1]
    assert list(reads.find_sessions_range(low, high, end, start)) == all_within
    assert list(reads.backward_find_sessions_range(low, high, end, start)) == all_within[::-1]
    of_high = model.found(lambda key, began, ended: key == high)
    assert reads.fetch_many([low, high, low]) == [of_key, of_high, of_key]
    assert reads.find_sessions_many([(low, end, start), (high, 0, 2**62 - 1)]) == [within, of_high]
    places = [Windowed(*session) for session in [*model.records, (low, 0, end), (low, -1, end)]]
    assert reads.get_many(places) == [reads.fetch_session(*place) for place in places]
    living = dict(model.found())
    for session in [*model.records, (low, 0, end)]:
        assert reads.fetch_session(*session) == living.get(session)


@pytest.fixture
def sessions(store: KeyValueStore) -> Store:
    """A new store, which closes with the one below."""
    return kind().over(store)


def test_a_session_of_no_length_is_one(sessions: Store) -> None:
    sessions.put(Windowed(b"k", 7, 7), b"v")
    assert list(sessions.fetch(b"k")) == [(Windowed(b"k", 7, 7), b"v")]
    assert sessions.fetch_session(b"k", 7, 7) == b"v"


def test_sessions_are_found_that_touch_a_time_with_a_gap_around_it(sessions: Store) -> None:
    for start, end in ((0, 4), (5, 5), (6, 16), (9, 10), (11, 12), (13, 20)):
        sessions.put(Windowed(b"k", start, end), b"%d" % start)
    found = [(window.start_ms, window.end_ms) for window, _ in sessions.find_sessions(b"k", 5, 11)]
    assert found == [(5, 5), (9, 10), (11, 12), (6, 16)]


def test_removing_a_session_keeps_the_others(sessions: Store) -> None:
    sessions.put(Windowed(b"k", 0, 3), b"1")
    sessions.put(Windowed(b"k", 0, 5), b"2")
    sessions.remove(Windowed(b"k", 0, 3))
    assert list(sessions.fetch(b"k")) == [(Windowed(b"k", 0, 5), b"2")]
    sessions.put(Windowed(b"k", 0, 5), None)
    assert list(sessions.fetch(b"k")) == []


def test_keys_that_are_prefixes_of_each_other_never_meet(sessions: Store) -> None:
    keys = [b"\0", b"\0\0", b"a", b"a\0", b"a" + b"\0" * 8, b"a" + b"\0" * 7 + b"\x05", b"\xff" * 17]
    for key in keys:
        sessions.put(Windowed(key, 1, 5), key)
    for key in keys:
        assert list(sessions.fetch(key)) == [(Windowed(key, 1, 5), key)]
    assert [window.key for window, _ in sessions.fetch_range(None, None)] == sorted(keys)


def test_a_session_lives_by_its_end(sessions: Store) -> None:
    sessions.put(Windowed(b"k", 90, 100), b"v")
    sessions.put(Windowed(b"k", 0, 75), b"late")
    sessions.put(Windowed(b"k", 0, 76), b"in time")
    assert sessions.late_total == 1
    assert [window.end_ms for window, _ in sessions.fetch(b"k")] == [76, 100]
    assert sessions.fetch_session(b"k", 0, 75) is None


def test_an_open_iterator_outlasts_the_expiry_of_what_it_shows(sessions: Store) -> None:
    sessions.put(Windowed(b"k", 0, 1), b"v")
    sessions.commit()
    with sessions.fetch(b"k") as found:
        sessions.put(Windowed(b"k", 0, 1000), b"v")
        sessions.commit()
        assert list(found) == [(Windowed(b"k", 0, 1), b"v")]
    assert [window.end_ms for window, _ in sessions.fetch(b"k")] == [1000]


def test_closing_the_store_closes_its_iterators(sessions: Store) -> None:
    for end in range(20):
        sessions.put(Windowed(b"k", 0, end), b"v")
    scans: list[Iterator[Any]] = [
        sessions.fetch(b"k"),
        sessions.find_sessions(b"k", 0, 5),
        sessions.backward_fetch_range(None, None),
        sessions.find_sessions_range(None, b"z", 0, 5),
    ]
    for scan in scans:
        next(scan)
    sessions.close()
    for scan in scans:
        with pytest.raises(StoreClosedError):
            next(scan)


def test_a_timestamped_store_keeps_each_value_with_its_time(store: KeyValueStore) -> None:
    sessions = kind(timestamped=True).over(store)
    sessions.put(Windowed(b"k", 0, 4), b"v", 17)
    sessions.put(Windowed(b"k", 0, 5), b"w")
    assert sessions.fetch_session(b"k", 0, 4) == ValueAndTimestamp(b"v", 17)
    assert list(sessions.fetch(b"k")) == [((b"k", 0, 4), (b"v", 17)), ((b"k", 0, 5), (b"w", -1))]
