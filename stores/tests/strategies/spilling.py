"""Transactions that outgrow an indexed batch: how their stores are opened, and what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import (
    Durability,
    RecoveryOutcome,
    TopicPartition,
    open_store,
)
from stores.registry import backends
from stores.strategies import indexed_batch
from stores.strategies.batch_staging import BatchStaging
from stores.strategies.store import Store

BACKENDS = [name for name, backend in backends().items() if indexed_batch.DECIDED in backend.failpoints]
LOG = TopicPartition("changelog", 0)
TINY: dict[str, object] = {"staging_buffer_bytes": 500, "copy_part_bytes": 2000}
FIRST = {b"%08d" % number: b"old" for number in range(100)}
SECOND = {b"%08d" % number: b"old" if number < 50 else b"n" * 50 for number in (*range(50), *range(60, 200))}
"""After the second transaction, which removes 50 to 99 and writes 60 to 199."""

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def opened(backend: str, path: Path, **options: object) -> Store:
    store = open_store(backend, path, durability=Durability.PROCESS, options={**TINY, **options})
    assert isinstance(store, Store)
    return store


def batch_of(store: Store) -> BatchStaging:
    assert isinstance(store.staging, BatchStaging)
    return store.staging


def assert_recovered(backend: str, path: Path, *, committed: int) -> RecoveryOutcome:
    """The store is whole at the offset, nothing of the transaction is left beside it, and it goes on."""
    with opened(backend, path) as store:
        outcome = store.recover().outcome
        assert store.committed_offset(LOG) == committed
        assert dict(store.all()) == (FIRST if committed == 1 else SECOND)
        assert not (path / "data.tmp").exists()
        store.put_all([(b"next%d" % number, b"v" * 100) for number in range(10)])
        store.commit({LOG: committed + 1})
    with opened(backend, path) as store:
        assert store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO
        assert store.committed_offset(LOG) == committed + 1
    return outcome


def stage_second(store: Store) -> None:
    """All of the second transaction, over the committed first."""
    store.put_all(FIRST.items())
    store.commit({LOG: 1})
    store.delete_range(b"%08d" % 50, b"%08d" % 99)
    store.put_all((key, value) for key, value in SECOND.items() if key >= b"%08d" % 60)
