"""Window stores over every backend: a model and a store do the same, and never differ.

The promises are those of Kafka's own suite for these stores (``AbstractWindowBytesStoreTest``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores import IsolationLevel, KeyValueStore, StoreClosedError
from stores.records import BYTES, ValueAndTimestamp, Window, Windowed, WindowStore, WindowView
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, carries
from stores.tests.conformance.window_model import (
    KEYS,
    QUERIES,
    RETENTION,
    SEGMENT,
    WindowModel,
    put_and_shown,
    run_beside_model,
    steps_of,
)

pytestmark = pytest.mark.typed

SIZE = 5
Store = WindowStore[bytes, Any]
View = WindowView[bytes, Any]

PUTS = st.tuples(st.just("put"), KEYS, st.integers(-35, 12), st.none() | st.binary(max_size=2))


def kind(**settings_given: Any) -> Window[bytes, Any]:
    return Window(BYTES, BYTES, **{"size_ms": SIZE, "retention_ms": RETENTION, "segment_ms": SEGMENT, **settings_given})


@pytest.mark.spread_over(how=["plain", "timestamped", "headers", "duplicates", "fine"])
@settings(max_examples=8)
@given(steps=steps_of(PUTS), query=QUERIES)
def test_a_window_store_does_what_a_dict_would(case: Case, how: str, steps: list[Any], query: Any) -> None:
    described = kind(
        timestamped=how == "timestamped",
        headers=how == "headers",
        retain_duplicates=how == "duplicates",
        segment_ms=1 if how == "fine" else SEGMENT,
    )
    model = WindowModel(SIZE, RETENTION, duplicates=how == "duplicates")

    def put(store: Store, number: int, key: bytes, distance: int, value: bytes | None) -> None:
        start = max(0, model.stream_time + distance)
        more, kept = put_and_shown(how, value, number)
        store.put(key, value, start, *more)
        model.put(key, start, kept)

    run_beside_model(
        case,
        described,
        model,
        steps,
        put=put,
        ask_all=lambda store: store.all(),
        shown=model.by_time,
        compare=lambda reads: compare(reads, model, *query),
    )


def compare(reads: Store | View, model: WindowModel, low: bytes, high: bytes, first: int, last: int) -> None:
    """Ask everything that a store can be asked."""
    first, last = min(first, last), max(first, last)
    of_key = model.by_key(lambda key, start: key == low and first <= start <= last)
    of_keys = model.by_key(lambda key, start: low <= key <= high and first <= start <= last)
    up_to = model.by_key(lambda key, start: key <= high and first <= start <= last)
    from_on = model.by_key(lambda key, start: low <= key and first <= start <= last)
    of_time = model.by_time(lambda key, start: first <= start <= last)
    windows = [(start, value) for (_, start, _), value in of_key]
    assert list(reads.fetch(low, first, last)) == windows
    assert list(reads.backward_fetch(low, first, last)) == windows[::-1]
    of_high = model.by_key(lambda key, start: key == high and first <= start <= last)
    asked = [(low, first, last), (high, first, last), (low, last, first - 1)]
    assert reads.fetch_many(asked) == [windows, [(start, value) for (_, start, _), value in of_high], []]
    places = [*((key, start) for key, start, _ in model.records), (low, first), (low, -1), (high, 2**62 - 1)]
    assert reads.get_many(places) == [reads.fetch_one(*place) for place in places]
    assert list(reads.fetch_range(low, high, first, last)) == of_keys
    assert list(reads.backward_fetch_range(low, high, first, last)) == of_keys[::-1]
    assert list(reads.fetch_range(None, high, first, last)) == up_to
    assert list(reads.backward_fetch_range(low, None, first, last)) == from_on[::-1]
    assert list(reads.fetch_all(first, last)) == of_time
    assert list(reads.backward_fetch_all(first, last)) == of_time[::-1]
    assert list(reads.all()) == model.by_time()
    assert list(reads.backward_all()) == model.by_time()[::-1]
    for start in range(first, last + 1):
        assert reads.fetch_one(low, start) == model.one(low, start)


@pytest.fixture
def windows(store: KeyValueStore) -> Store:
    """A new store, which closes with the one below."""
    return kind().over(store)


def test_bounds_are_included_at_both_ends(windows: Store) -> None:
    for start in (9, 10, 11, 19, 20, 21):
        windows.put(b"k", b"%d" % start, start)
    assert [start for start, _ in windows.fetch(b"k", 10, 20)] == [10, 11, 19, 20]
    assert [start for start, _ in windows.fetch(b"k", 20, 20)] == [20]
    assert list(windows.fetch(b"k", 12, 18)) == []


def test_windows_before_and_after_a_time_are_found_across_segments(windows: Store) -> None:
    for start in range(0, 25, 3):
        windows.put(b"k", b"v", start)
    for time in range(30):
        found = [start for start, _ in windows.fetch(b"k", max(0, time - 6), time + 6)]
        assert found == [start for start in range(0, 25, 3) if time - 6 <= start <= time + 6]


def test_keys_that_are_prefixes_of_each_other_never_meet(windows: Store) -> None:
    keys = [b"\0", b"\0\0", b"\0\0\0", b"a", b"a\0", b"a" + b"\0" * 8, b"a" + b"\0" * 7 + b"\x05", b"\xff" * 9]
    for key in keys:
        windows.put(key, key, 5)
    for key in keys:
        assert list(windows.fetch(key, 0, 80)) == [(5, key)]
    assert [window.key for window, _ in windows.fetch_range(None, None, 0, 80)] == sorted(keys)


def test_a_range_whose_first_key_is_behind_its_last_has_nothing(windows: Store) -> None:
    windows.put(b"b", b"v", 1)
    assert list(windows.fetch_range(b"c", b"a", 0, 10)) == []
    assert list(windows.backward_fetch_range(b"c", b"a", 0, 10)) == []


def test_a_window_ends_its_size_after_its_start_and_never_behind_all_times(windows: Store) -> None:
    windows.put(b"k", b"v", 7)
    assert [window for window, _ in windows.all()] == [Windowed(b"k", 7, 12)]
    windows.put(b"k", b"v", 2**62 - 2)
    assert [window for window, _ in windows.all()] == [Windowed(b"k", 2**62 - 2, 2**62 - 1)]


def test_none_deletes_one_window(windows: Store) -> None:
    windows.put(b"k", b"v", 1)
    windows.put(b"k", b"v", 2)
    windows.put(b"k", None, 1)
    assert list(windows.fetch(b"k", 0, 10)) == [(2, b"v")]
    assert windows.fetch_one(b"k", 1) is None


def test_an_empty_value_is_a_value(windows: Store) -> None:
    windows.put(b"k", b"", 1)
    assert windows.fetch_one(b"k", 1) == b""


def test_an_open_iterator_outlasts_the_expiry_of_what_it_shows(windows: Store) -> None:
    windows.put(b"k", b"v", 1)
    windows.commit()
    with windows.fetch(b"k", 0, 10) as one, windows.all() as every:
        windows.put(b"k", b"v", 1000)
        windows.commit()
        assert list(windows.fetch(b"k", 0, 10)) == []
        assert list(one) == [(1, b"v")]
        assert list(every) == [((b"k", 1, 6), b"v")]


@pytest.mark.parametrize("filled", [False, True])
def test_closing_the_store_closes_its_iterators(windows: Store, filled: bool) -> None:
    if filled:
        for start in range(20):
            windows.put(b"k", b"v", start)
    scans: list[Iterator[Any]] = [
        windows.fetch(b"k", 0, 100),
        windows.fetch_range(None, None, 0, 100),
        windows.fetch_all(0, 100),
        windows.backward_all(),
    ]
    if filled:
        for scan in scans:
            next(scan)
    windows.close()
    for scan in scans:
        with pytest.raises(StoreClosedError):
            next(scan)
    with pytest.raises(StoreClosedError):
        windows.fetch(b"k", 0, 10)
    with pytest.raises(StoreClosedError):
        windows.put(b"k", b"v", 1)


def test_a_record_lives_until_the_stream_time_is_its_retention_later(windows: Store) -> None:
    for stream_time, living in ((99, [75, 76]), (100, [76]), (101, [])):
        windows.put(b"k", b"v", 75)
        windows.put(b"k", b"v", 76)
        windows.put(b"other", b"v", stream_time)
        assert [start for start, _ in windows.fetch(b"k", 0, 200)] == living
        assert [start for start in (75, 76) if windows.fetch_one(b"k", start)] == living
        assert [window.start_ms for window, _ in windows.all() if window.key == b"k"] == living
    assert windows.late_total == 1


def test_an_expired_record_is_dropped_and_counted(windows: Store) -> None:
    windows.put(b"k", b"v", 100)
    windows.put(b"k", b"late", 75)
    windows.put(b"k", b"in time", 76)
    assert windows.late_total == windows.metrics.late_total == 1
    assert list(windows.all()) == [((b"k", 76, 81), b"in time"), ((b"k", 100, 105), b"v")]


def test_a_late_record_in_an_older_segment_is_committed_like_all_others(case: Case, path: Path) -> None:
    with kind().over(case.open(path)) as windows:
        for start in (10, 30, 12, 31, 13):
            windows.put(b"k", b"%d" % start, start)
        windows.commit()
        windows.put(b"k", b"later", 12)
        windows.commit()
        expected_windows = [(10, b"10"), (12, b"later"), (13, b"13"), (30, b"30"), (31, b"31")]
        assert list(windows.fetch(b"k", 0, 40)) == expected_windows
        if not windows.store.persistent:
            return
    with kind().over(case.open(path)) as windows:
        assert list(windows.fetch(b"k", 0, 40)) == expected_windows


def test_segments_in_which_nothing_lives_are_removed_with_the_commit(windows: Store) -> None:
    for start in range(0, 100, 2):
        windows.put(b"k", b"v", start)
        windows.commit()
    # Those of the segment in which the first living one lies are still there, and seen by nobody.
    assert len(list(windows.store.all())) == 15
    assert [start for start, _ in windows.fetch(b"k", 0, 100)] == list(range(74, 100, 2))


def test_a_rollback_brings_back_what_had_expired(windows: Store) -> None:
    if not windows.store.transactional:
        assert not carries(windows.store, ISOLATED)
        return
    windows.put(b"k", b"v", 1)
    windows.commit()
    for _ in range(2):
        windows.put(b"k", b"v", 1000)
        windows._before_commit()
        assert list(windows.store.range(None, b"\0" * 7 + b"\1")) == []
        assert [start for start, _ in windows.fetch(b"k", 0, 2000)] == [1000]
        windows.rollback()
        assert list(windows.fetch(b"k", 0, 2000)) == [(1, b"v")]
    windows.put(b"k", b"v", 1000)
    windows.commit()
    assert len(list(windows.store.all())) == 1


def test_what_a_rollback_leaves_is_seen_and_kept(case: Case, path: Path) -> None:
    """By a store that is not transactional: the stream time and the numbers of duplicates stay with the writes."""
    described = kind(retain_duplicates=True)
    with described.over(case.open(path)) as windows:
        if windows.store.transactional:
            return
        windows.put(b"k", b"1", 4)
        windows.rollback()
        windows.put(b"k", b"2", 4)
        found = [(4, b"1"), (4, b"2")]
        assert list(windows.fetch(b"k", 0, 10)) == found
        for level in IsolationLevel:
            assert list(windows.read_only(level).fetch(b"k", 0, 10)) == found
        windows.rollback()
    with described.over(case.open(path)) as windows:
        assert list(windows.fetch(b"k", 0, 10)) == found


def test_duplicates_stay_in_the_order_of_their_writes_across_rollback_and_reopening(case: Case, path: Path) -> None:
    described = kind(retain_duplicates=True)
    with described.over(case.open(path)) as windows:
        for value in (b"3", b"1", b"2", b"1"):
            windows.put(b"k", value, 4)
        windows.put(b"k", None, 4)
        windows.commit()
        if windows.store.transactional:
            windows.put(b"k", b"gone", 4)
            windows.rollback()
        windows.put(b"k", b"0", 4)
        windows.commit()
        found = [(4, value) for value in (b"3", b"1", b"2", b"1", b"0")]
        assert list(windows.fetch(b"k", 0, 10)) == found
        assert windows.fetch_one(b"k", 4) == b"0"
        if not windows.store.persistent:
            return
    with described.over(case.open(path)) as windows:
        windows.put(b"k", b"9", 4)
        assert list(windows.fetch(b"k", 0, 10)) == [*found, (4, b"9")]
        assert list(windows.backward_fetch(b"k", 0, 10)) == [*found, (4, b"9")][::-1]


def test_a_timestamped_store_keeps_each_value_with_its_time(store: KeyValueStore) -> None:
    windows = kind(timestamped=True).over(store)
    windows.put(b"k", b"v", 4, 17)
    windows.put(b"k", b"w", 5)
    assert windows.fetch_one(b"k", 4) == ValueAndTimestamp(b"v", 17)
    assert list(windows.fetch(b"k", 0, 10)) == [(4, (b"v", 17)), (5, (b"w", -1))]


def test_far_more_segments_than_records_are_not_looked_through(store: KeyValueStore) -> None:
    windows = kind(retention_ms=10**15, segment_ms=1).over(store)
    starts = [3, 10**9, 10**12, 10**14]
    for start in starts:
        windows.put(b"k", b"v", start)
    assert [start for start, _ in windows.fetch(b"k", 0, 10**15)] == starts
    assert [window.start_ms for window, _ in windows.backward_all()] == starts[::-1]
    assert [window.start_ms for window, _ in windows.read_only(IsolationLevel.READ_UNCOMMITTED).all()] == starts
