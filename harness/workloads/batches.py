"""The parts that workloads share to take many records at a time: each key is read once and written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from harness.workloads.workload import keyed
from stores.tasks import Batch

SUFFIX = "_batches"
"""The end of the name of a workload that takes batches. The rest is the name of its record form."""
Key = TypeVar("Key")
Row = TypeVar("Row")


class BatchContext(Protocol):
    """The methods of a task that a workload uses for a batch."""

    def store(self, name: str) -> Any: ...

    def forward_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int] | None = None,
    ) -> None: ...


def record_form(name: str) -> str:
    """Return the name of the workload that processes record by record, which may be ``name`` itself."""
    return name.removesuffix(SUFFIX)


def keyed_columns(batch: Batch[bytes, bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the keys and the values of a batch. Raises: ValueError if one is missing."""
    keys, values = [key for key in batch.keys if key is not None], [each for each in batch.values if each is not None]
    if len(keys) < len(batch) or len(values) < len(batch):
        for record in batch:
            keyed(record)
    return keys, values


def updated(store: Any, keys: Sequence[Key], rows: Sequence[Row], step: Callable[[Any, Row], Any]) -> list[Any]:
    """Apply ``step`` to the value of each key and its row, in order, and put the last values. Return all results."""
    values = dict.fromkeys(keys)
    values = dict(zip(values, store.get_many(list(values)), strict=True))
    results = []
    for key, row in zip(keys, rows, strict=True):
        values[key] = result = step(values[key], row)
        results.append(result)
    store.put_many(values)
    return results
