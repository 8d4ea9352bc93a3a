"""A store with the operations of a yardstick, and a commit after each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.experiments.microbench.case import Case
from harness.experiments.microbench.yardstick import YARDSTICKS, Pairs, Yardstick
from harness.workloads.ycsb import YcsbOperation, apply
from stores import Durability, KeyValueStore, TopicPartition, open_store
from stores.registry import backend_named

_CHANGELOG, _INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)


STAGING_BYTES = 1 << 30
"""The memory for the largest cases: a commit of 500,000 pairs and 1,000,000 staged ones must not spill."""


class TimedStore(Yardstick):
    """A backend with the same operations. Every batch is one transaction with an offset."""

    def __init__(
        self,
        path: Path,
        durability: Durability,
        backend: str = "rocksdb-indexed-batch",
        options: Mapping[str, object] | None = None,
    ) -> None:
        found = backend_named(backend)
        if found.persistent and backend.endswith("-indexed-batch"):
            options = {"staging_buffer_bytes": STAGING_BYTES, **(options or {})}
        self.store: KeyValueStore = open_store(backend, path, durability=durability, options=options)
        self._offset = 0

    def _commit(self) -> None:
        self._offset += 1
        self.store.commit({_CHANGELOG: self._offset})

    def write(self, batch: Pairs) -> None:
        put = self.store.put
        for key, value in batch:
            put(key, value)
        self._commit()

    def step(self, batch: Pairs, number: int) -> None:
        put = self.store.put
        for key, value in batch:
            put(key, value)
        self.store.advance_position(_INPUT, number)
        self.store.commit({_CHANGELOG: number})

    def update(self, batch: Pairs) -> None:
        get, put = self.store.get, self.store.put
        for key, value in batch:
            get(key)
            put(key, value)
        self._commit()

    def operate(self, batch: Sequence[YcsbOperation]) -> None:
        """Perform operations of YCSB, then commit."""
        store = self.store
        for operation in batch:
            apply(operation, store)
        self._commit()

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.store.all())

    def close(self) -> None:
        self.store.close()


def open_subject(case: Case, folder: Path) -> Yardstick:
    """Open the case's backend or yardstick, new, in ``folder``."""
    path = folder / "subject"
    if case.subject in YARDSTICKS:
        return YARDSTICKS[case.subject](path, case.durability)
    given = {"checksums": case.checksums, "scan_checksums": case.scan_checksums}
    return TimedStore(path, case.durability, case.subject, {name: False for name in given if not given[name]})
