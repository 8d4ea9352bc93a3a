"""The functions that count events by key with ``stores.spark.stateful``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stores.config import StoreConfig
from stores.records import INT64, STR, KeyValue
from stores.spark import Context, Rows

STORE = "counts"


def config(backend: str) -> StoreConfig:
    """Return the store of counts by key."""
    return StoreConfig(backend, records=KeyValue(key=STR, value=INT64))


def by_record(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
    """Read and write the count of each record's key; give out the last one of each key."""
    counts = context.store(STORE)
    touched: dict[str, int] = {}
    for row in rows:
        number = (counts.get(row.key) or 0) + 1
        counts.put(row.key, number)
        touched[row.key] = number
    yield from touched.items()


def in_arrow(rows: Rows, context: Context) -> Iterator[pa.RecordBatch]:
    """Count in Arrow first, and read and write the count of each key once."""
    table = rows.table()
    if table is None:
        return
    found = table.group_by("key").aggregate([([], "count_all")])
    keys = found.column("key").to_pylist()
    counts = context.store(STORE)
    before = counts.get_many(keys)
    new = found.column("count_all").to_pylist()
    after = [number + (old or 0) for number, old in zip(new, before, strict=True)]
    for key, number in zip(keys, after, strict=True):
        counts.put(key, number)
    yield pa.record_batch([pa.array(keys, pa.string()), pa.array(after, pa.int64())], names=["key", "count"])
