"""A transaction many times larger than what the store keeps in memory is read, undone and committed as any other.

Source: KIP-844, "Transactions via Secondary State Store"; KIP-892, "In-memory Transaction Buffers", for the bound.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, KeyValueView, TopicPartition
from stores.tests.conformance.cases import Case
from stores.tests.conformance.gaps import BOUNDED, SPILLED, carries
from stores.tests.model import Model
from stores.tests.store_process import StoreProcess

Reopen = Callable[[], KeyValueStore]
LOG = TopicPartition("changelog", 0)
MIB = 1 << 20
BOUND_BYTES = MIB
_BUFFERS = ("staging_buffer_bytes", "copy_part_bytes", "write_buffer_size_bytes")
_CACHES = ("block_cache_size_bytes", "cache_size_bytes")
SMALL = dict.fromkeys((*_BUFFERS, *_CACHES), BOUND_BYTES)
"""The limits for the options of these names: on staged writes, and on the engine's memory."""


def bounded(case: Case) -> Case:
    return replace(case, options={name: size for name, size in SMALL.items() if name in case.backend.options})


def put(store: KeyValueStore, model: Model, key: bytes, value: bytes | None) -> None:
    store.put(key, value)
    model.put(key, value)


def delete_range(store: KeyValueStore, model: Model, start: bytes | None, end: bytes | None) -> None:
    store.delete_range(start, end)
    model.delete_range(start, end)


def stage(store: KeyValueStore, model: Model, seed: int) -> None:
    """Puts, overwrites, deletes; ranges over what has just been put, what was long before, and what is committed."""
    choose = Random(seed)
    for number in range(600):
        put(store, model, b"%04d" % choose.randrange(1000), choose.randbytes(choose.randrange(60)))
        if number % 7 == 0:
            put(store, model, b"%04d" % choose.randrange(1000), None)
        if number % 150 == 149:
            first = choose.randrange(900)
            delete_range(store, model, b"%04d" % first, b"%04d" % (first + 60))
            put(store, model, b"%04d" % (first + 30), b"over a range")
            delete_range(store, model, b"%04d" % (first + 29), b"%04d" % (first + 31))
    delete_range(store, model, b"0990", None)


def everything(view: KeyValueView | KeyValueStore) -> list[Any]:
    """All kinds of reads."""
    keys = [b"%04d" % number for number in range(0, 1000, 3)]
    return [
        [view.get(key) for key in keys],
        list(view.get_many(keys)),
        list(view.range(None, None)),
        list(view.range(b"0100", b"0500")),
        list(view.reverse_range(b"0200", None)),
        list(view.reverse_range(None, b"0700")),
        list(view.prefix_scan(b"05")),
        list(view.reverse_prefix_scan(b"06")),
    ]


def expected(pairs: list[tuple[bytes, bytes]]) -> list[Any]:
    """Return what ``everything`` shows of ``pairs``."""
    contents = dict(pairs)
    keys = [b"%04d" % number for number in range(0, 1000, 3)]
    return [
        [contents.get(key) for key in keys],
        [contents.get(key) for key in keys],
        pairs,
        [pair for pair in pairs if b"0100" <= pair[0] <= b"0500"],
        [pair for pair in reversed(pairs) if pair[0] >= b"0200"],
        [pair for pair in reversed(pairs) if pair[0] <= b"0700"],
        [pair for pair in pairs if pair[0].startswith(b"05")],
        [pair for pair in reversed(pairs) if pair[0].startswith(b"06")],
    ]


@pytest.mark.every_durability
def test_a_large_transaction_is_read_undone_and_committed_as_any_other(store: KeyValueStore, reopen: Reopen) -> None:
    model = Model(transactional=store.transactional)
    for number in range(0, 1000, 2):
        put(store, model, b"%04d" % number, b"committed")
    store.commit({LOG: 0})
    model.commit({LOG: 0})
    for ending in ("rollback", "commit", "commit"):
        stage(store, model, seed=7)
        stage(store, model, seed=8)
        assert everything(store) == expected(model.scan(None, None))
        assert everything(store.read_only(IsolationLevel.READ_UNCOMMITTED)) == expected(model.scan(None, None))
        assert everything(store.read_only(IsolationLevel.READ_COMMITTED)) == expected(model.committed_pairs())
        least, _ = model.uncommitted_bytes()
        assert least <= store.approximate_num_uncommitted_bytes()
        if ending == "rollback":
            store.rollback()
            model.rollback()
        else:
            store.commit({LOG: 1})
            model.commit({LOG: 1})
        assert everything(store) == expected(model.scan(None, None))
        assert everything(store.read_only(IsolationLevel.READ_COMMITTED)) == expected(model.committed_pairs())
        assert store.approximate_num_uncommitted_bytes() == 0
    again = reopen()
    if again.persistent:
        assert everything(again) == expected(model.scan(None, None))
        assert again.committed_offset(LOG) == (1 if again.manages_offsets else None)


@pytest.mark.as_is
def test_what_is_staged_beyond_the_bound_is_not_in_memory(case: Case, path: Path) -> None:
    """Ten times the bound; what has no disk keeps it all."""
    with bounded(case).open(path) as store:
        tracemalloc.start()
        try:
            for number in range(1000):
                store.put(b"%08d" % number, b"%010000d" % number)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (taken < 3 * BOUND_BYTES) is carries(store, SPILLED)
        assert store.approximate_num_uncommitted_bytes() == (1000 * 10_008 if store.transactional else 0)
        store.commit()
        assert store.get(b"%08d" % 999) == b"%010000d" % 999


@pytest.mark.as_is
@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process has is asked of Linux")
def test_a_step_of_many_times_the_bound_takes_no_memory_of_its_size(case: Case, path: Path) -> None:
    """The most of its own that a process ever had from before the transaction to after its commit, looked at often."""
    records, value = 3000, b"v" * 10_000
    with StoreProcess() as process:
        limited = bounded(case)
        process.call("open", limited.backend.name, path, limited.durability, limited.options)
        process.call("put_many", 0, 500, value)
        process.call("commit", {LOG: 1})
        before = anonymous_bytes(process)
        with ThreadPoolExecutor(1) as pool:
            event = Event()
            peak = pool.submit(most_until, event, process)
            process.call("put_many", 0, records, value)
            # Looked at here in any case: on a busy machine the other thread may get no turn before the commit ends.
            staged_bytes = anonymous_bytes(process)
            process.call("commit", {LOG: 2})
            event.set()
            grown = max(staged_bytes, peak.result()) - before
    assert (grown < records * len(value) // 2) is carries(case.backend, BOUNDED)


def anonymous_bytes(process: StoreProcess) -> int:
    """Return the process's own memory, without pages of mapped files, which the system may drop."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def most_until(done: Event, process: StoreProcess) -> int:
    most = anonymous_bytes(process)
    while not done.wait(0.002):
        most = max(most, anonymous_bytes(process))
    return most
