"""A view at a level shows what that level says, for each kind of query, and waits for no step of a commit.

Source: KIP-892, "Query-time Isolation Levels", "Transactional support under READ_UNCOMMITTED".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from stores import (
    IsolationLevel,
    KeyValueStore,
    ReadOnlyKeyValueStore,
    TopicPartition,
    failpoints,
    open_store,
)
from stores.interface import KeyValueIterator, KeyValueView
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import GAPS, ISOLATED, carries

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
INPUT = TopicPartition("input", 0)
Pairs = list[tuple[bytes, bytes]]
BEFORE: Pairs = [(b"a", b"1"), (b"b", b"1"), (b"ba", b"1"), (b"c", b"1"), (b"d", b"1")]
AFTER: Pairs = [(b"a", b"1"), (b"b", b"2"), (b"ba", b"1"), (b"bb", b"2")]
WRITTEN_BY_READERS = {
    "lock.mdb": "LMDB's table of readers, in shared memory",
    "store.db-shm": "SQLite's index of its log, in shared memory",
    "LOG": "RocksDB's own log of what it does",
}
"""Files that are no part of a store's data: created again when it is opened, and of no use to anybody afterwards."""


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def begin(store: KeyValueStore) -> None:
    """Commit ``BEFORE``, and stage what makes it ``AFTER``."""
    store.put_all(BEFORE)
    store.commit()
    store.put_all([(b"b", b"2"), (b"bb", b"2"), (b"e", b"2")])
    store.delete_range(b"c", b"e")


def answers(view: ReadOnlyKeyValueStore, pairs: Pairs) -> dict[str, bool]:
    """Every kind of query, and whether its answer is that of a store that holds ``pairs``."""
    held, within = dict(pairs), [pair for pair in pairs if b"b" <= pair[0] <= b"c"]
    prefixed = [pair for pair in pairs if pair[0].startswith(b"b")]
    keys = [b"a", b"b", b"bb", b"c", b"e", b"zz", b"b"]
    return {
        "get": [view.get(key) for key in keys] == [held.get(key) for key in keys],
        "get_many": view.get_many(keys) == [held.get(key) for key in keys],
        "get_many of nothing": view.get_many([]) == [],
        "range": list(view.range(b"b", b"c")) == within,
        "reverse_range": list(view.reverse_range(b"b", b"c")) == within[::-1],
        "all": list(view.all()) == pairs,
        "reverse_all": list(view.reverse_all()) == pairs[::-1],
        "prefix_scan": list(view.prefix_scan(b"b")) == prefixed,
        "reverse_prefix_scan": list(view.reverse_prefix_scan(b"b")) == prefixed[::-1],
    }


@pytest.mark.parametrize("default", IsolationLevel)
def test_every_kind_of_query_goes_by_the_level_that_is_asked_for_or_else_the_default(
    case: Case, path: Path, default: IsolationLevel
) -> None:
    with (
        open_store(
            case.backend.name, path, durability=case.durability, options=case.options, isolation_level=default
        ) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        begin(store)
        views = {asked: store.read_only(asked) for asked in (None, *IsolationLevel)}
        for asked, view in views.items():
            assert isinstance(view, KeyValueView)
            assert view.isolation_level is (asked or default)
            shown = BEFORE if view.isolation_level is COMMITTED and carries(store, ISOLATED) else AFTER
            agreement = pool.submit(answers, view, shown).result(60)
            assert [kind for kind, right in agreement.items() if not right] == []
        store.commit()
        for view in views.values():
            agreement = pool.submit(answers, view, AFTER).result(60)
            assert [kind for kind, right in agreement.items() if not right] == []


def test_views_of_a_store_that_keeps_nothing_apart_are_the_same_at_both_levels(store: KeyValueStore) -> None:
    """And those of every other store are not: a gap is no way round a promise."""
    store.put(b"key", b"value")
    store.advance_position(INPUT, 7)
    views = [store.read_only(level) for level in IsolationLevel]
    assert (views[0].get(b"key") == views[1].get(b"key")) is GAPS[ISOLATED].excused(store)
    assert (views[0].position() == views[1].position()) is GAPS[ISOLATED].excused(store)


def test_a_reader_of_committed_data_waits_at_no_step_of_a_commit_and_sees_all_of_it_or_nothing(
    case: Case, store: KeyValueStore, disarmed: None
) -> None:
    """Source: Kafka's own test of it, which stalls the writer."""
    agreements: list[dict[str, bool]] = []
    begin(store)
    view = store.read_only(COMMITTED)

    def look() -> None:
        before, after = pool.submit(answers, view, BEFORE).result(30), pool.submit(answers, view, AFTER).result(30)
        assert all(before.values()) or all(after.values())
        agreements.append(after)

    with ThreadPoolExecutor(1) as pool:
        for failpoint in case.backend.failpoints:
            failpoints.arm(failpoint, look)
        store.commit({TopicPartition("changelog", 0): 1})
        failpoints.disarm()
        look()
    assert all(agreements[-1].values())
    assert len(agreements) > 1 or not case.backend.failpoints


@pytest.mark.every_durability
def test_readers_write_nothing(store: KeyValueStore, path: Path) -> None:
    begin(store)
    store.commit()
    store.put(b"staged", b"1")
    before = contents(path)
    with ThreadPoolExecutor(2) as pool:
        for level in IsolationLevel:
            shown = [*AFTER, (b"staged", b"1")] if level is UNCOMMITTED or not carries(store, ISOLATED) else AFTER
            agreement = pool.submit(answers, store.read_only(level), shown).result(60)
            assert all(agreement.values())
    assert contents(path) == before


def contents(path: Path) -> dict[str, str]:
    """Every file below ``path`` with its digest, but for those that readers may write."""
    return {
        str(file.relative_to(path)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in WRITTEN_BY_READERS
    }


CHANGES: list[Callable[[KeyValueStore], object]] = [
    lambda store: store.put_all([(b"%d" % number, b"3") for number in range(100)]),
    lambda store: store.delete_range(None, b"b"),
    lambda store: store.commit(),
    lambda store: (
        store.put(b"b", b"4"),
        store.delete_range(b"b", b"bb"),  # type: ignore[func-returns-value]
        store.put(b"bb", b"4"),
    ),
    lambda store: store.rollback(),
    lambda store: (store.put(b"b", b"5"), store.commit()),
]


def test_a_scan_of_uncommitted_data_does_not_change_with_later_writes(store: KeyValueStore) -> None:
    begin(store)
    iterators: list[tuple[KeyValueIterator, Pairs]] = []
    with ThreadPoolExecutor(1) as pool:
        view = store.read_only(UNCOMMITTED)
        for change in CHANGES:
            now = list(store.all())
            fresh, begun = pool.submit(view.all).result(60), pool.submit(view.reverse_all).result(60)
            assert pool.submit(next, begun).result(60) == now[-1]
            iterators += [(fresh, now), (begun, now[-2::-1])]
            change(store)
        assert len({len(pairs) for _, pairs in iterators[::2]}) > 3
        for scan, pairs in iterators:
            assert pool.submit(list, scan).result(60) == pairs
