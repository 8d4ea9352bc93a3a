"""``view.snapshot()``: several lookups and scans of one commit, whatever is committed meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest

from stores import (
    ConfigError,
    IsolationLevel,
    KeyValueStore,
    NotUpToBoundError,
    PositionBound,
    StoreClosedError,
    StoreError,
    TopicPartition,
)
from stores.interface import KeyValueSnapshot, KeyValueView
from stores.records import (
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    Window,
    Windowed,
)

COMMITTED = IsolationLevel.READ_COMMITTED
INPUT = TopicPartition("input", 0)
KEYS = [b"a", b"ab", b"b", b"ba", b"c"]
QUERIES: dict[str, Callable[[KeyValueView], Any]] = {
    "get": lambda view: [view.get(key) for key in (*KEYS, b"", b"zz")],
    "get_many": lambda view: view.get_many([*KEYS, b"zz", b"a"]),
    "get_many of nothing": lambda view: view.get_many([]),
    "all": lambda view: list(view.all()),
    "reverse_all": lambda view: list(view.reverse_all()),
    "range": lambda view: list(view.range(b"ab", b"b")),
    "reverse_range": lambda view: list(view.reverse_range(b"ab", b"b")),
    "empty range": lambda view: list(view.range(b"c", b"a")),
    "open range": lambda view: list(view.range(b"b", None)) + list(view.reverse_range(None, b"b")),
    "prefix_scan": lambda view: list(view.prefix_scan(b"a")),
    "reverse_prefix_scan": lambda view: list(view.reverse_prefix_scan(b"b")),
    "prefix_scan of all": lambda view: list(view.prefix_scan(b"")) + list(view.reverse_prefix_scan(b"\xff")),
    "range_many": lambda view: [list(scan) for scan in view.range_many([(None, b"ab"), (b"b", None)], reverse=True)],
}


def elsewhere(action: Callable[[], Any]) -> Any:
    """The action's result, or its error, from another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(timeout=600)


def write(store: KeyValueStore, number: int) -> None:
    """Stage ``number`` under every key but one, which is removed, in the mark and as the position."""
    value = b"%d" % number * 50
    store.delete_range(None, None)
    store.put_all([(key, value) for key in KEYS])
    store.put(KEYS[number % len(KEYS)], None)
    store.put(b"%d" % number, value)
    store.set_mark("m", value)
    store.advance_position(INPUT, number)


def asked(view: KeyValueView) -> dict[str, Any]:
    return {**{name: query(view) for name, query in QUERIES.items()}, "mark": view.mark("m")}


def test_a_snapshot_answers_every_query_as_the_view_did_when_it_was_taken(store: KeyValueStore) -> None:
    view = store.read_only(COMMITTED)
    snapshots: list[tuple[KeyValueSnapshot, dict[str, Any]]] = []
    for number in range(6):
        write(store, number)
        store.commit()
        snapshots.append((view.snapshot(), asked(view)))
    write(store, 100)
    store.rollback()
    write(store, 101)
    for number, (snapshot, expected) in enumerate(snapshots):
        assert asked(snapshot) == expected == elsewhere(partial(asked, snapshot))
        assert snapshot.position() == {INPUT: number}
        assert snapshot.isolation_level is COMMITTED
        assert snapshot.snapshot() is snapshot
        assert snapshot.approximate_num_entries() >= 0
    for snapshot, _ in snapshots:
        snapshot.close()
    assert store.metrics.num_open_iterators == 0
    store.commit()
    assert view.get(b"101") == b"101" * 50


def test_a_snapshot_of_an_empty_store_stays_empty(store: KeyValueStore) -> None:
    with store.read_only(COMMITTED).snapshot() as snapshot:
        write(store, 1)
        store.commit()
        assert list(snapshot.all()) == list(snapshot.reverse_all()) == []
        assert (snapshot.get(b"a"), snapshot.mark("m"), snapshot.position()) == (None, None, {})


def test_a_snapshot_shows_nothing_that_is_staged(store: KeyValueStore) -> None:
    write(store, 1)
    store.commit()
    if not store.transactional:
        return  # Its views show each write at once, and so does a snapshot that is taken after the write.
    before = asked(store.read_only(COMMITTED))
    write(store, 2)
    with store.read_only(COMMITTED).snapshot() as snapshot:
        assert asked(snapshot) == before


def test_scans_of_a_snapshot_may_run_side_by_side_with_its_lookups(store: KeyValueStore) -> None:
    pairs = [(b"%04d" % number, b"%d" % number) for number in range(3_000)]
    store.put_all(pairs)
    store.commit()
    with store.read_only(COMMITTED).snapshot() as snapshot:
        forward, backward = snapshot.all(), snapshot.reverse_range(b"0100", b"2899")
        store.delete_range(None, None)
        store.commit()
        seen = []
        for number, pair in enumerate(forward):
            seen.append(pair)
            if number < 2_800:
                assert next(backward) == pairs[2_899 - number]
            if number % 500 == 0:
                assert snapshot.get(b"%04d" % number) == b"%d" % number
        assert seen == pairs
        assert list(backward) == []


def test_a_snapshot_beside_commits_is_always_one_commit(store: KeyValueStore) -> None:
    """Two lookups of a view may come from two commits; those of a snapshot never do."""
    view, over = store.read_only(COMMITTED), Event()
    if not store.transactional:
        return
    write(store, 0)
    store.commit()

    def read() -> int:
        taken = 0
        last = -1
        while not over.is_set() or not taken:
            least = view.position()[INPUT]
            with view.snapshot() as snapshot:
                mark = snapshot.mark("m")
                assert mark is not None
                number = int(mark[: len(mark) // 50])
                missing = KEYS[number % len(KEYS)]
                assert snapshot.get_many(KEYS) == [None if key == missing else mark for key in KEYS]
                assert [snapshot.get(key) for key in KEYS] == [None if key == missing else mark for key in KEYS]
                pairs = list(snapshot.all())
                assert {value for _, value in pairs} == {mark}
                assert list(snapshot.reverse_all()) == pairs[::-1]
                assert (snapshot.get(b"%d" % number), len(pairs)) == (mark, len(KEYS))
                assert number == snapshot.position()[INPUT] >= max(last, least)
                last = number
            taken += 1
        return taken

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(1, 50):
                write(store, number)
                if number % 7 == 0:
                    store.rollback()
                else:
                    store.commit()
        finally:
            over.set()
        assert all(reader.result(timeout=600) for reader in readers)
    assert store.metrics.num_open_iterators == 0


def uses(snapshot: KeyValueSnapshot) -> Iterator[Callable[[], Any]]:
    yield from (partial(query, snapshot) for name, query in QUERIES.items() if name != "range_many")
    yield partial(snapshot.mark, "m")
    yield snapshot.position
    yield snapshot.approximate_num_entries


def test_a_closed_snapshot_and_its_scans_raise(store: KeyValueStore) -> None:
    write(store, 1)
    store.commit()
    snapshot = store.read_only(COMMITTED).snapshot()
    scan, other = snapshot.all(), store.read_only(COMMITTED).all()
    assert next(scan) == next(other)
    assert store.metrics.num_open_iterators == 3
    snapshot.close()
    snapshot.close()
    for use in uses(snapshot):
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(StoreClosedError):
        next(scan)
    assert list(other)
    assert store.metrics.num_open_iterators == 0


def test_a_snapshot_is_closed_with_its_store(store: KeyValueStore, reopen: Callable[[], KeyValueStore]) -> None:
    write(store, 1)
    store.commit()
    view = store.read_only(COMMITTED)
    snapshot = view.snapshot()
    scan = snapshot.all()
    again = reopen()
    for use in uses(snapshot):
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(StoreClosedError):
        next(scan)
    with pytest.raises(StoreClosedError):
        view.snapshot()
    snapshot.close()
    assert again.is_open


def test_a_dropped_snapshot_gives_up_what_it_holds(store: KeyValueStore, reopen: Callable[[], KeyValueStore]) -> None:
    write(store, 1)
    store.commit()
    store.read_only(COMMITTED).snapshot().get(b"a")
    scan = store.read_only(COMMITTED).snapshot().all()
    del scan
    gc.collect()
    assert store.metrics.num_open_iterators == 0
    reopen()


def test_a_view_of_uncommitted_data_has_no_snapshot(store: KeyValueStore) -> None:
    with pytest.raises(ConfigError):
        store.read_only(IsolationLevel.READ_UNCOMMITTED).snapshot()


def test_a_bounded_view_takes_a_snapshot_once_the_bound_is_reached(store: KeyValueStore) -> None:
    view = store.read_only(COMMITTED, PositionBound({INPUT: 2}))
    write(store, 1)
    store.commit()
    with pytest.raises(NotUpToBoundError):
        view.snapshot()
    write(store, 2)
    store.commit()
    with view.snapshot() as snapshot:
        assert snapshot.get(b"2") == b"2" * 50
    assert store.metrics.num_open_iterators == 0


@pytest.mark.parametrize(
    ("kind", "put", "read"),
    [
        (KeyValue(key=STR, value=INT64), lambda typed, n: typed.put("a", n), lambda view: [view.get("a"), *view.all()]),
        (
            TimestampedKeyValue(key=STR, value=INT64, ttl_ms=10),
            lambda typed, n: typed.put(f"a{n}", n, n),
            lambda view: [view.get("a1"), *view.all(), *view.plain().all()],
        ),
        (
            TimestampedKeyValueWithHeaders(key=STR, value=INT64, ttl_ms=10),
            lambda typed, n: typed.put(f"a{n}", n, n, (("n", b"%d" % n),)),
            lambda view: [view.get("a1"), *view.all(), *view.plain().all()],
        ),
        (
            Versioned(key=STR, value=INT64, history_retention_ms=10),
            lambda typed, n: typed.put("a", n, n),
            lambda view: [*view.get_versions("a"), *view.all(), view.get("a", 4), view.get("a", 95)],
        ),
        (
            Window(key=STR, value=INT64, size_ms=1, retention_ms=10),
            lambda typed, n: typed.put("a", n, n),
            lambda view: [*view.fetch("a", 0, 1_000), *view.all()],
        ),
        (
            Window(key=STR, value=INT64, size_ms=1, retention_ms=10, headers=True),
            lambda typed, n: typed.put("a", n, n, n, (("n", b"%d" % n),)),
            lambda view: [*view.fetch("a", 0, 1_000), *view.all()],
        ),
        (
            Session(key=STR, value=INT64, retention_ms=10),
            lambda typed, n: typed.put(Windowed("a", n, n), n),
            lambda view: list(view.fetch("a")),
        ),
    ],
)
def test_a_typed_view_takes_snapshots_with_the_stream_time_of_their_moment(
    store: KeyValueStore, kind: Any, put: Callable[[Any, int], None], read: Callable[[Any], list[Any]]
) -> None:
    typed = kind.over(store)
    view = typed.read_only(COMMITTED)
    taken = []
    for number in (1, 5, 9, 100, 105):
        put(typed, number)
        typed.commit()
        taken.append((view.snapshot(), read(view)))
    assert len({repr(expected) for _, expected in taken}) == len(taken)
    for snapshot, expected in taken:
        with snapshot as held:
            assert type(held) is type(view)
            assert read(held) == expected
        with pytest.raises(StoreClosedError):
            read(snapshot)
    view.close()
    assert read(view) == taken[-1][1]


def test_plain_views_of_timestamped_stores_take_snapshots(store: KeyValueStore) -> None:
    typed = TimestampedKeyValue(key=STR, value=INT64).over(store)
    typed.put("a", 1, 1)
    typed.commit()
    with typed.read_only(COMMITTED).plain().snapshot() as snapshot:
        typed.put("a", 2, 2)
        typed.commit()
        assert snapshot.get("a") == 1


def test_a_view_without_snapshots_says_what_to_use() -> None:
    class Other(KeyValueView):
        isolation_level = COMMITTED
        get = get_many = range = reverse_range = prefix_scan = reverse_prefix_scan = None  # type: ignore[assignment]
        approximate_num_entries = position = None  # type: ignore[assignment]

    with pytest.raises(StoreError):
        Other().snapshot()
