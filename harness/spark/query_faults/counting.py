"""The query whose faults are tried: it counts events by key, in a typed store, and gives out each count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stores.config import StoreConfig
from stores.interface import Durability
from stores.records import INT64, STR, TimestampedKeyValue
from stores.spark import Context, Rows

SCHEMA = "name string, at timestamp, batch long"
OUTPUT = "name string not null, value long, batch long"
KEY, ORDER = "name", "at"
ANSWER = """
    select name, batch, sum(count(*)) over (partition by name order by batch) as value
    from events group by name, batch
"""
"""The rows that the sink must have, and the state: the count of each name after each of its batches, by Spark SQL."""


def stores(backend: str, durability: str) -> Mapping[str, StoreConfig]:
    """Return the stores of the query: the counts, and one that has the number of batches of the partition."""
    counts = TimestampedKeyValue(key=STR, value=INT64)
    level = Durability(durability)
    return {
        "counts": StoreConfig(backend, durability=level, records=counts),
        "batches": StoreConfig(backend, durability=level),
    }


def count(rows: Rows, context: Context) -> Iterator[tuple[str, int, int]]:
    """Count the events of each name, and give out its new count."""
    batches = context.store("batches")
    batches.put(b"number", b"%d" % (int(batches.get(b"number") or 0) + 1))
    latest: dict[str, Any] = {}
    counted: dict[str, int] = {}
    batch = 0
    for row in rows:
        latest[row.name] = row.at
        counted[row.name] = counted.get(row.name, 0) + 1
        batch = row.batch
    counts = context.store("counts")
    for name, number in counted.items():
        before = counts.get(name)
        total = number + (0 if before is None else before.value)
        counts.put(name, total, int(latest[name].timestamp() * 1000))
        yield name, total, batch
