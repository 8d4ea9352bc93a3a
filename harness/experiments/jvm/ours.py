"""Our side: a store does the work of ``Beside.java``, in a process of its own."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from harness.experiments.jvm.load import JvmLoad
from stores import Durability, KeyValueStore, TopicPartition, open_store

STAGING_BYTES = 1 << 30
"""The memory for the largest commit, which must not spill: a batch in the JVM does not either."""
_CHANGELOG = TopicPartition("changelog", 0)
_FILLED_AT_ONCE = 10_000

Pairs = list[tuple[bytes, bytes]]


def measured(
    backend: str,
    distribution: str,
    records_per_commit: int,
    records: int,
    warm_up_rounds: int,
    rounds: int,
    keys: int,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Return the seconds and CPU seconds of the timed rounds together, and a checksum of the end state."""
    load, offset, missing = JvmLoad(seed), 0, 0
    seconds = cpu_seconds = 0.0
    options = {"staging_buffer_bytes": STAGING_BYTES}
    with open_store(backend, folder / "store", durability=Durability.CHANGELOG, options=options) as store:
        updated = [] if distribution == "fresh" else load.keys(0, keys)
        for batch in _batches(list(zip(updated, load.values(0, len(updated)), strict=True)), _FILLED_AT_ONCE):
            offset += 1
            _put(store, batch, offset)
        for number in range(warm_up_rounds + rounds):
            first = number * records
            chosen = (
                [updated[at] for at in load.drawn(first, records, keys, distribution)]
                if updated
                else load.keys(first, records)
            )
            work = list(
                _batches(list(zip(chosen, load.values(len(updated) + first, records), strict=True)), records_per_commit)
            )
            gc.collect()
            cpu_began, began = process_time(), perf_counter()
            for batch in work:
                offset += 1
                if updated:
                    missing += _update(store, batch, offset)
                else:
                    _put(store, batch, offset)
            if number >= warm_up_rounds:
                seconds += perf_counter() - began
                cpu_seconds += process_time() - cpu_began
        entries = checksum = 0
        for key, value in store.all():
            checksum = zlib.crc32(value, zlib.crc32(key, checksum))
            entries += 1
    return {
        "seconds": seconds,
        "cpu_s": cpu_seconds,
        "missing": missing,
        "entries": entries,
        "checksum": f"{checksum:08x}",
    }


def _put(store: KeyValueStore, batch: Pairs, offset: int) -> None:
    put = store.put
    for key, value in batch:
        put(key, value)
    store.commit({_CHANGELOG: offset})


def _update(store: KeyValueStore, batch: Pairs, offset: int) -> int:
    """Read each key, write its new value, and commit. Return the number of keys without a value."""
    get, put, missing = store.get, store.put, 0
    for key, value in batch:
        if get(key) is None:
            missing += 1
        put(key, value)
    store.commit({_CHANGELOG: offset})
    return missing


def _batches(pairs: Pairs, size: int) -> Iterator[Pairs]:
    return (pairs[at : at + size] for at in range(0, len(pairs), size))
