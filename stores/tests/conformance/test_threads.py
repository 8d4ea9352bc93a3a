"""The thread that opened writes; any number read through ``read_only``. Source: KIP-892, "Proposed Changes"."""

from __future__ import annotations

from collections.abc import Callable
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
    TopicPartition,
    WrongThreadError,
)
from stores.interface import KeyValueView
from stores.tests.conformance.cases import Case
from stores.tests.conformance.rounds import read_beside_rounds

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
}


def elsewhere(action: Callable[[], Any]) -> Any:
    """The action's result, or its error, from another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(timeout=60)


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


def test_the_thread_that_opened_it_is_the_writer(case: Case, path: Path) -> None:
    opened: list[KeyValueStore] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: opened.append(case.open(path))).result(timeout=60)
        try:
            with pytest.raises(WrongThreadError):
                opened[0].put(b"key", b"value")
            pool.submit(opened[0].put, b"key", b"value").result(timeout=60)
            pool.submit(opened[0].commit).result(timeout=60)
            assert opened[0].read_only().get(b"key") == b"value"
        finally:
            pool.submit(opened[0].close).result(timeout=60)


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_reader_on_another_thread_sees_what_its_level_shows(store: KeyValueStore, level: IsolationLevel) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    store.commit()
    store.put(b"b", b"2")
    store.delete(b"c")
    reader = store.read_only(level)
    staged = level is IsolationLevel.READ_UNCOMMITTED or not store.transactional
    expected = [(b"a", b"1"), (b"b", b"2")] if staged else [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
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
    begun = [Event(), Event()]

    def read(level: IsolationLevel, started: Event) -> None:
        reader = store.read_only(level)
        while True:
            list(reader.all())
            reader.get(b"0001")
            reader.get(b"x0001")
            started.set()

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, level, event) for level, event in zip(IsolationLevel, begun, strict=True)]
        assert all(event.wait(30) for event in begun)
        store.close()
        for reader in readers:
            with pytest.raises(StoreClosedError):
                reader.result(timeout=30)


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
        assert begun.wait(30)
        sleep(0.02)
        store.close()
        with suppress(StoreClosedError):
            assert looking.result(timeout=30) == [b"1", *[None] * (len(keys) - 1)]


@pytest.mark.parametrize("count", [40, 5000])
def test_readers_of_uncommitted_data_see_each_list_whole_while_the_writer_goes_on(
    store: KeyValueStore, count: int
) -> None:
    """Source: KAFKA-20933."""
    keys = [b"%04d" % number for number in range(count)]
    store.put_all([(key, b"0") for key in keys])
    done = Event()

    def read() -> None:
        reader = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        while not done.is_set():
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
            done.set()
        for each in reading:
            each.result(60)
