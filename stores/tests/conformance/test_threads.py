"""The thread that opened writes; any number read through ``read_only``, at each level, which costs the writer nothing.

Source: KIP-892, "Proposed Changes", "Interactive Queries", "Query-time Isolation Levels", "Transactional support under
READ_UNCOMMITTED".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest

from stores import (
    IsolationLevel,
    KeyValueStore,
    ReadOnlyKeyValueStore,
    StoreClosedError,
    StoreError,
    TopicPartition,
    WrongThreadError,
)
from stores.interface import KeyValueView
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import ISOLATED, carries

WRITES: dict[str, Callable[[KeyValueStore], object]] = {
    "put": lambda store: store.put(b"key", b"value"),
    "put of None": lambda store: store.put(b"key", None),
    "put_all": lambda store: store.put_all([(b"key", b"value")]),
    "put_all of nothing": lambda store: store.put_all([]),
    "put_if_absent": lambda store: store.put_if_absent(b"key", b"value"),
    "delete": lambda store: store.delete(b"key"),
    "delete_range": lambda store: store.delete_range(None, None),
    "commit": lambda store: store.commit(),
    "commit of offsets": lambda store: store.commit({TopicPartition("t", 0): 1}),
    "rollback": lambda store: store.rollback(),
    "restore": lambda store: store.restore([(b"key", b"value")], {}),
    "advance_position": lambda store: store.advance_position(TopicPartition("t", 0), 1),
    "put of a time": lambda store: store.timestamps.put(b"key", b"value", 1),
    "put of None at a time": lambda store: store.timestamps.put(b"key", None, 1),
}


def elsewhere(action: Callable[[], Any]) -> Any:
    """The action's result, or its error, from another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(timeout=600)


def test_any_write_of_another_thread_is_refused_and_changes_nothing(store: KeyValueStore) -> None:
    store.put(b"committed", b"1")
    store.commit()
    store.put(b"staged", b"2")
    for write in WRITES.values():
        with pytest.raises(WrongThreadError):
            elsewhere(partial(write, store))
    assert list(store.all()) == [(b"committed", b"1"), (b"staged", b"2")]
    assert store.recover().offsets == {}
    store.commit()


def test_another_thread_becomes_the_writer_of_an_open_store_and_what_is_open_stays_open(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    if not store._can_change_writer or not store.transactional:
        return
    partition = TopicPartition("t", 0)
    store.put_all([(b"%03d" % number, b"first") for number in range(600)])
    store.advance_position(partition, 1)
    store.commit({partition: 1})
    view = store.read_only(IsolationLevel.READ_COMMITTED)
    snapshot, scan = view.snapshot(), store.all()
    seen = [next(scan)]

    def work() -> None:
        store._change_writer()
        # As a task that restores the rest, and continues.
        store.restore([(b"restored", b"2")], {partition: 2})
        store.put(b"000", b"second")
        store.delete_range(b"500", b"599")
        store.advance_position(partition, 3)
        assert [value for _, value in store.range(b"000", b"001")] == [b"second", b"first"]
        store.commit({partition: 3})
        store.put(b"000", b"undone")
        store.rollback()
        store.put(b"staged", b"1")

    elsewhere(work)
    for write in WRITES.values():
        with pytest.raises(WrongThreadError):
            write(store)
    assert (snapshot.get(b"000"), snapshot.get(b"restored"), snapshot.position()) == (b"first", None, {partition: 1})
    seen += scan
    assert (len(seen), {value for _, value in seen}) == (600, {b"first"})
    assert view.get_many([b"000", b"500", b"restored", b"staged"]) == [b"second", None, b"2", None]
    assert view.position() == {partition: 3}
    snapshot.close()
    if store.persistent:
        kept = reopen()
        assert kept.get_many([b"000", b"staged"]) == [b"second", None]
        assert kept.committed_offset(partition) == 3


def test_the_writer_of_a_store_with_staged_writes_and_of_a_closed_one_stays(store: KeyValueStore) -> None:
    if not store._can_change_writer or not store.transactional:
        return
    staged: list[Callable[[], object]] = [
        lambda: store.put(b"key", b"1"),
        lambda: store.delete_range(None, None),
        lambda: store.set_mark("mark", b"1"),
        lambda: store.advance_position(TopicPartition("t", 0), 1),
    ]
    for stage in staged:
        stage()
        with pytest.raises(StoreError):
            elsewhere(store._change_writer)
        store.rollback()
    elsewhere(store._change_writer)
    store._change_writer()
    store.put(b"key", b"2")
    store.commit()
    store.close()
    with pytest.raises(StoreClosedError):
        store._change_writer()
    assert not store.is_open


def test_only_the_writers_thread_splits_a_store_and_only_while_it_is_open(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    if not store.timestamps.can_split:
        return
    store.put(b"key", b"value")
    store.commit()
    with pytest.raises(WrongThreadError):
        elsewhere(lambda: store.timestamps.split({}))
    assert not store.timestamps.is_split
    assert list(store.all()) == [(b"key", b"value")]
    timestamps = store.timestamps
    store.close()
    with pytest.raises(StoreClosedError):
        timestamps.split({})
    assert not reopen().timestamps.is_split


def test_the_thread_that_opened_it_is_the_writer(case: Case, path: Path) -> None:
    stores: list[KeyValueStore] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: stores.append(case.open(path))).result(timeout=600)
        try:
            with pytest.raises(WrongThreadError):
                stores[0].put(b"key", b"value")
            pool.submit(stores[0].put, b"key", b"value").result(timeout=600)
            pool.submit(stores[0].commit).result(timeout=600)
            assert stores[0].read_only().get(b"key") == b"value"
        finally:
            pool.submit(stores[0].close).result(timeout=600)


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_reader_on_another_thread_sees_what_its_level_shows(store: KeyValueStore, level: IsolationLevel) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    store.commit()
    store.put(b"b", b"2")
    store.delete(b"c")
    reader = store.read_only(level)
    sees_staged = level is IsolationLevel.READ_UNCOMMITTED or not store.transactional
    expected = [(b"a", b"1"), (b"b", b"2")] if sees_staged else [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert elsewhere(lambda: list(reader.all())) == expected
    assert elsewhere(lambda: list(reader.reverse_all())) == expected[::-1]
    assert elsewhere(lambda: reader.get_many([b"a", b"b", b"c"])) == [
        dict(expected).get(key) for key in (b"a", b"b", b"c")
    ]
    assert elsewhere(lambda: list(reader.range(b"b", b"c"))) == expected[1:]
    assert elsewhere(lambda: list(reader.reverse_range(None, b"b"))) == expected[1::-1]
    assert elsewhere(lambda: list(reader.prefix_scan(b"b"))) == expected[1:2]
    assert elsewhere(reader.approximate_num_entries) >= 0


def test_a_reader_has_no_way_to_write(store: KeyValueStore) -> None:
    reader = store.read_only()
    assert isinstance(reader, ReadOnlyKeyValueStore)
    assert not isinstance(reader, KeyValueStore)
    for name in ("put", "put_all", "put_if_absent", "delete", "delete_range", "commit", "rollback", "restore"):
        assert not hasattr(reader, name)


@pytest.mark.parametrize("level", IsolationLevel)
def test_readers_see_whole_moments_while_the_writer_goes_on(store: KeyValueStore, level: IsolationLevel) -> None:
    """Every scan of committed data shows one commit, all its keys alike; of uncommitted data, no key of a later put
    before one of an earlier."""
    keys = [b"%02d" % number for number in range(40)]
    store.put_all([(key, b"0") for key in keys])
    store.commit()

    def read(reader: KeyValueView) -> None:
        values = [int(value) for _, value in reader.all()]
        assert len(values) == len(keys)
        assert values == sorted(values, reverse=True)
        if level is IsolationLevel.READ_COMMITTED and store.transactional:
            assert len(set(values)) == 1
        assert int(reader.get(keys[-1]) or b"") >= values[-1]

    read_beside_rounds(store, keys, level, read, readers=2)


def test_readers_and_their_iterators_close_with_the_store(store: KeyValueStore) -> None:
    store.put_all([(b"%04d" % number, b"1") for number in range(2000)])
    store.commit()
    readers = [store.read_only(level) for level in IsolationLevel]
    scans = [reader.all() for reader in readers]
    for scan in scans:
        elsewhere(partial(next, scan))
    store.close()
    for reader, scan in zip(readers, scans, strict=True):
        with pytest.raises(StoreClosedError):
            elsewhere(partial(next, scan))
        for use in (
            partial(reader.get, b"a"),
            partial(reader.get_many, []),
            reader.all,
            reader.approximate_num_entries,
        ):
            with pytest.raises(StoreClosedError):
                elsewhere(use)


def test_a_store_may_be_closed_while_others_read(store: KeyValueStore) -> None:
    """They end with the error that says so, whatever they were at."""
    store.put_all([(b"%04d" % number, b"1") for number in range(500)])
    store.commit()
    store.put_all([(b"x%04d" % number, b"1") for number in range(500)])
    begins = [Event(), Event()]

    def read(level: IsolationLevel, started: Event) -> None:
        reader = store.read_only(level)
        while True:
            list(reader.all())
            reader.get(b"0001")
            reader.get(b"x0001")
            started.set()

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, level, event) for level, event in zip(IsolationLevel, begins, strict=True)]
        assert all(event.wait(600) for event in begins)
        store.close()
        for reader in readers:
            with pytest.raises(StoreClosedError):
                reader.result(timeout=600)


def test_a_store_may_be_closed_in_the_middle_of_a_long_lookup(store: KeyValueStore) -> None:
    """That ends with its answer or with the error that says so; an engine may not be closable as long as it lasts."""
    store.put(b"0", b"1")
    store.commit()
    keys = [b"%d" % number for number in range(50_000)]
    reader, begun = store.read_only(IsolationLevel.READ_COMMITTED), Event()

    def look() -> list[bytes | None]:
        begun.set()
        return reader.get_many(keys)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        assert begun.wait(600)
        sleep(0.02)
        store.close()
        with suppress(StoreClosedError):
            assert looking.result(timeout=600) == [b"1", *[None] * (len(keys) - 1)]


@pytest.mark.parametrize("count", [40, 5000])
def test_readers_of_uncommitted_data_see_each_list_whole_while_the_writer_goes_on(
    store: KeyValueStore, count: int
) -> None:
    """Source: KAFKA-20933."""
    keys = [b"%04d" % number for number in range(count)]
    store.put_all([(key, b"0") for key in keys])
    event = Event()

    def read() -> None:
        reader = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        while not event.is_set():
            assert len({value for _, value in reader.all()}) == 1
            assert len(set(reader.get_many(keys[::10]))) == 1

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(1, 25 if count == 40 else 3):
                store.put_all([(key, b"%d" % number) for key in keys])
                if number % 3 == 0:
                    store.commit()
        finally:
            event.set()
        for each in reading:
            each.result(60)


@pytest.mark.parametrize("level", IsolationLevel)
def test_get_many_shows_one_moment(store: KeyValueStore, level: IsolationLevel) -> None:
    """At READ_COMMITTED all keys are of one commit; at READ_UNCOMMITTED none is of a later put than one before it."""
    keys = [b"%02d" % number for number in range(20)]

    def read(view: KeyValueView) -> None:
        values = [int(value or b"0") for value in view.get_many(keys)]
        assert values == sorted(values, reverse=True)
        assert values[0] - values[-1] <= 1
        if level is IsolationLevel.READ_COMMITTED and carries(store, ISOLATED):
            assert values[0] == values[-1]

    read_beside_rounds(store, keys, level, read, readers=1)


def test_get_many_refuses_a_value_that_is_no_key(store: KeyValueStore) -> None:
    for level in IsolationLevel:
        wrong: Any = [b"a", "b"]
        with pytest.raises(TypeError):
            store.read_only(level).get_many(wrong)
        assert store.read_only(level).get_many([b"", b"x" * 600]) == [None, None]


ROUNDS = range(1, 25)


def read_beside_rounds(
    store: KeyValueStore,
    keys: Sequence[bytes],
    level: IsolationLevel,
    read: Callable[[KeyValueView], None],
    readers: int,
) -> None:
    """Each round puts its number under all ``keys``, in order, and commits; ``readers`` threads ``read`` meanwhile.

    Each has a view of its own, and reads at least once. Raises: what ``read`` raises.
    """
    event = Event()

    def read_on() -> None:
        view = store.read_only(level)
        read(view)
        while not event.is_set():
            read(view)

    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read_on) for _ in range(readers)]
        try:
            for number in ROUNDS:
                for key in keys:
                    store.put(key, b"%d" % number)
                store.commit()
        finally:
            event.set()
        for each in reading:
            each.result(60)
