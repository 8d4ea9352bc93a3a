"""All RocksDB stores of a process keep to one budget of memory.

Source: Kafka Streams, "Memory Management", RocksDB, ``BoundedMemoryRocksDBConfig``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest

from stores import KeyValueStore, open_store
from stores.engines.rocksdb import RocksDBEngine
from stores.engines.rocksdb.flushes import SharedMemory, shared_memory
from stores.strategies.store import Store

INDEXED = "rocksdb-indexed-batch"
MIB = 1 << 20


def fill(store: KeyValueStore, num_bytes: int, first: int = 0) -> None:
    for number in range(first, first + num_bytes // 1_000):
        store.put(b"%06d" % number, bytes(994))
    store.commit()


def engine_of(store: KeyValueStore) -> RocksDBEngine:
    assert isinstance(store, Store)
    assert isinstance(store.staging.engine, RocksDBEngine)
    return store.staging.engine


def settle(stores: list[KeyValueStore]) -> None:
    for store in stores:
        engine_of(store)._flushes.wait()


def flushed(store: KeyValueStore) -> bool:
    return store.engine_metrics()["total_sst_files_size_bytes"] > 0


def test_the_store_that_holds_most_is_flushed_although_another_is_written(tmp_path: Path) -> None:
    """RocksDB's own manager would flush only the store that is written, again and again."""
    options = {"shared_memory_bytes": 16 * MIB + 1}
    stores = [open_store(INDEXED, tmp_path / str(number), options=options) for number in range(3)]
    large, small, written = stores
    try:
        fill(large, 3 * MIB)
        fill(small, MIB)
        assert not any(map(flushed, stores))
        for round_number in range(2):
            fill(written, MIB, round_number * 2_000)
            settle(stores)
        assert [flushed(store) for store in stores] == [True, False, False]
        assert shared_memory(options["shared_memory_bytes"]).write_buffers.get_usage() <= 8 * MIB
    finally:
        for store in stores:
            store.close()


def test_a_commit_is_made_although_no_thread_can_be_started_for_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    options = {"shared_memory_bytes": 16 * MIB + 4}
    write_buffers = shared_memory(options["shared_memory_bytes"]).write_buffers
    # Two, because RocksDB itself flushes a write buffer of 4 MiB.
    stores = [open_store(INDEXED, tmp_path / str(number), options=options) for number in range(2)]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Thread, "start", refused)
            first = 0
            # The last commit of this loop asks for a flush. For all stores, RocksDB begins one at 7 MiB.
            while write_buffers.get_usage() <= 6 * MIB:
                fill(stores[first % 200 // 100], 100_000, first)
                first += 100
        settle(stores)
        assert not any(map(flushed, stores))
        fill(stores[0], 100_000, first)
        settle(stores)
        assert any(map(flushed, stores))
        assert sum(1 for store in stores for _ in store.all()) == first + 100
    finally:
        for store in stores:
            store.close()


def test_a_store_that_is_closed_is_out_of_the_budget(tmp_path: Path) -> None:
    options = {"shared_memory_bytes": 16 * MIB + 2}
    memory = shared_memory(options["shared_memory_bytes"])
    with open_store(INDEXED, tmp_path / "one", options=options) as store:
        fill(store, 2 * MIB)
        still_referred_to = engine_of(store)._flushes
        assert (len(memory._stores), memory.write_buffers.get_usage() > 2 * MIB) == (1, True)
    assert (len(memory._stores), memory.write_buffers.get_usage()) == (0, 0)
    assert not still_referred_to.is_running()


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, True),
        ({"shared_memory_bytes": 16 * MIB + 3}, True),
        ({"block_cache_size_bytes": MIB}, False),
        ({"shared_memory_bytes": 0}, False),
    ],
)
def test_stores_share_memory_unless_they_are_given_their_own(
    tmp_path: Path, options: dict[str, object], shares: bool
) -> None:
    with (
        open_store(INDEXED, tmp_path / "one", options=options) as one,
        open_store(INDEXED, tmp_path / "other", options=options) as other,
    ):
        memories = [engine_of(store)._memory for store in (one, other)]
        assert isinstance(memories[0], SharedMemory) is shares
        assert memories[0] is memories[1]
        for store in (one, other):
            fill(store, 20_000)
            assert store.get(b"000001") == bytes(994)


def test_an_opening_makes_no_memory_where_the_process_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make(num_bytes: int) -> int:
        made.append(num_bytes)
        return num_bytes

    module = "stores.engines.rocksdb.flushes"
    monkeypatch.setattr(sys.modules[module], "SharedMemory", make)
    monkeypatch.setattr(sys.modules[module], "_memories", {})
    for num_bytes in (MIB, MIB, 2 * MIB):
        shared_memory(num_bytes)
    assert made == [MIB, 2 * MIB]
