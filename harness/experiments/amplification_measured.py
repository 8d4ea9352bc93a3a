"""Read and write amplification: the engine operations of a strategy for one get and for one byte put.

They are counted, not timed, so every run gives the same result. A lookup is one ``get`` of an engine. It may still cost
several reads of files, or none (Bloom filters, caches). The bytes that engines add in WALs and compactions are part of
what whole tasks write. Counting changes the engine's class, so each backend has its own process.

Source: KIP-844, the disadvantages of its secondary store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.experiments.recent_writes import forget_recent_writes
from harness.workloads.ycsb import Values, keys_of
from stores.engines.engine import Engine, Transaction, TransactionalEngine, Writes
from stores.interface import Durability, KeyValueStore
from stores.registry import backend_named, open_store

KEYS = 1_000
"""The number of keys that are looked up in each place."""
STAGED = (KEYS, 10 * KEYS)
"""The records of a transaction that fits into ``SMALL_BUFFER``, and of one that does not."""
SMALL_BUFFER: Mapping[str, int] = {"staging_buffer_bytes": 256 << 10}
"""Options that bound the memory of a transaction, for strategies that have them."""
DEADLINE_S = 60


class Counter:
    """Counts the operations of every engine of a class, and of its transactions, from its creation on."""

    def __init__(self, engine: type[Engine]) -> None:
        self.lookups = 0
        self.bytes_written = 0
        write = engine.write

        def counted_write(opened: Engine, layers: Sequence[Writes], *arguments: Any, **settings: Any) -> None:
            self.bytes_written += sum(
                len(key) + len(value or b"") for layer in layers for key, value in layer.writes.items()
            )
            write(opened, layers, *arguments, **settings)

        setattr(engine, "write", counted_write)  # noqa: B010
        self._count_single(engine, engine.get, engine.put)
        if issubclass(engine, TransactionalEngine):
            begin = engine.begin

            def counted_begin(opened: TransactionalEngine) -> Transaction:
                transaction = begin(opened)
                self._count_single(transaction, transaction.get, transaction.put)
                return transaction

            setattr(engine, "begin", counted_begin)  # noqa: B010

    def _count_single(self, owner: object, get: Callable[..., bytes | None], put: Callable[..., None]) -> None:
        """Count the lookups and the writes of one entry through ``owner``, a class or an object."""

        def counted_get(*asked: Any) -> bytes | None:
            self.lookups += 1
            return get(*asked)

        def counted_put(*asked: Any) -> None:
            key, value = asked[-2:]
            self.bytes_written += len(key) + len(value or b"")
            put(*asked)

        setattr(owner, "get", counted_get)  # noqa: B010
        setattr(owner, "put", counted_put)  # noqa: B010

    def lookups_per_get(self, get: Callable[[bytes], bytes | None], keys: Sequence[bytes]) -> float:
        """Return the mean number of lookups over ``keys``."""
        before = self.lookups
        for key in keys:
            get(key)
        return (self.lookups - before) / len(keys)


def measured(backend: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return a row for a small transaction and one for a large one, each with its own store in ``folder``.

    They are at level CHANGELOG. ``lookups_...`` are per get, by the place of the key.
    """
    candidate = backend_named(backend)
    options = {name: value for name, value in SMALL_BUFFER.items() if name in candidate.options}
    counter = Counter(candidate.load_engine())
    rows = []
    for staged in STAGED:
        with open_store(
            candidate.name, folder / str(staged), durability=Durability.CHANGELOG, options=options
        ) as store:
            counts = _counted(store, counter, staged, seed)
        rows.append(
            {"backend": candidate.name, "durability": "CHANGELOG", "staged_records": staged, "seed": seed, **counts}
        )
    return {"rows": rows}


def _counted(store: KeyValueStore, counter: Counter, staged: int, seed: int) -> dict[str, float]:
    keys, values = keys_of(np.arange(3 * KEYS + staged)), Values(seed)
    pairs = [(key, values.value(key, number)) for number, key in enumerate(keys)]
    for first in (0, KEYS):
        forget_recent_writes(store)
        store.put_all(pairs[first : first + KEYS])
        store.commit()
    bytes_before = counter.bytes_written
    store.put_all(pairs[3 * KEYS :])
    keys_by_place = {
        # Every n-th key, so that none is chosen because it was written last.
        "lookups_staged": keys[3 * KEYS :: staged // KEYS],
        "lookups_just_committed": keys[KEYS : 2 * KEYS],
        "lookups_committed": keys[:KEYS],
        "lookups_absent": keys[2 * KEYS : 3 * KEYS],
    }
    lookups = {place: counter.lookups_per_get(store.get, some) for place, some in keys_by_place.items()}
    store.commit()
    return {
        **lookups,
        "bytes_put": sum(len(key) + len(value) for key, value in pairs[3 * KEYS :]),
        "bytes_written": counter.bytes_written - bytes_before,
    }
