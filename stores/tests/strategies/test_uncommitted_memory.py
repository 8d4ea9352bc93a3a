"""``uncommitted_memory_bytes`` against what Python says that it has allocated."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from stores import IsolationLevel, KeyValueStore, open_store

COUNT = 8_000
WITHIN = 1.5

WORK: dict[str, Callable[[KeyValueStore], None]] = {}


def work(function: Callable[[KeyValueStore], None]) -> Callable[[KeyValueStore], None]:
    WORK[function.__name__] = function
    return function


def put(store: KeyValueStore, key_bytes: int, value_bytes: int) -> None:
    for number in range(COUNT):
        # Of this call's own: a store keeps the objects that it is given.
        store.put(number.to_bytes(key_bytes, "little"), number.to_bytes(value_bytes, "big") if value_bytes else b"")


@work
def pairs_of_4_and_0_bytes(store: KeyValueStore) -> None:
    put(store, 4, 0)


@work
def pairs_of_8_and_8_bytes(store: KeyValueStore) -> None:
    put(store, 8, 8)


@work
def pairs_of_16_and_100_bytes(store: KeyValueStore) -> None:
    put(store, 16, 100)


@work
def pairs_of_16_and_1000_bytes(store: KeyValueStore) -> None:
    put(store, 16, 1000)


@work
def overwritten_pairs(store: KeyValueStore) -> None:
    for _ in range(3):
        put(store, 16, 100)


@work
def pairs_that_were_scanned(store: KeyValueStore) -> None:
    put(store, 16, 100)
    for _ in store.all():
        pass


@work
def a_list(store: KeyValueStore) -> None:
    store.put_all([(number.to_bytes(16, "big"), number.to_bytes(100, "big")) for number in range(COUNT)])


@work
def range_deletes(store: KeyValueStore) -> None:
    for number in range(COUNT):
        store.delete_range(number.to_bytes(16, "big"), number.to_bytes(16, "big") + b"\x00")


def measured(store: KeyValueStore, staging: Callable[[KeyValueStore], None]) -> float:
    """Return the counted bytes over the allocated ones."""
    gc.collect()
    tracemalloc.start()
    try:
        staging(store)
        gc.collect()
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return store.uncommitted_memory_bytes() / allocated


@pytest.mark.parametrize("staging", WORK.values(), ids=WORK)
def test_uncommitted_bytes_are_the_bytes_of_the_transaction(
    path: Path, staging: Callable[[KeyValueStore], None]
) -> None:
    with open_store("rocksdb-indexed-batch", path) as store:
        assert 1 / WITHIN <= measured(store, staging) <= WITHIN
        assert store.metrics.uncommitted_memory_bytes == store.uncommitted_memory_bytes()
        store.rollback()
        assert store.uncommitted_memory_bytes() == 0


@pytest.mark.parametrize("staging", [pairs_of_4_and_0_bytes, pairs_of_16_and_1000_bytes])
def test_a_transaction_of_the_engine_s_own_counts_what_is_kept_of_its_keys(
    path: Path, staging: Callable[[KeyValueStore], None]
) -> None:
    with open_store("lmdb-native", path) as store:
        assert 1 / WITHIN <= measured(store, staging) <= WITHIN
        store.commit()
        assert store.uncommitted_memory_bytes() == 0


def test_what_was_spilled_is_staged_and_takes_no_memory(path: Path) -> None:
    with open_store("rocksdb-indexed-batch", path, options={"staging_buffer_bytes": 10_000}) as store:
        put(store, 16, 100)
        assert store.approximate_num_uncommitted_bytes() == 116 * COUNT
        assert store.uncommitted_memory_bytes() < 30_000
        assert store.read_only(IsolationLevel.READ_UNCOMMITTED).get((0).to_bytes(16, "little")) is not None
