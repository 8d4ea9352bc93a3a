"""The query that counts events by key, in a typed store, and gives out each count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from harness.checkers.query import wrong_rows, wrong_state
from harness.spark.query_faults.faulty import FaultyRows
from harness.spark.query_faults.named_events import SCHEMA, write_batches
from harness.spark.query_faults.workload import Found, Given, Workload, answer_rows, state_rows
from stores.config import StoreConfig
from stores.interface import Durability
from stores.records import INT64, STR, TimestampedKeyValue
from stores.spark import Context, Rows, stateful

OUTPUT = "name string not null, value long, batch long"
ANSWER = """
    select name, batch, sum(count(*)) over (partition by name order by batch) as value
    from events group by name, batch
"""
"""The rows that the sink must have, and the state: the count of each name after each of its batches, by Spark SQL."""


class Counting(Workload):
    """Counts in the store ``counts``. The store ``batches`` has the number of batches of each partition."""

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        write_batches(folder, batches, seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        stores = stores_of(given.backend, given.durability)
        return stateful(
            given.events(spark, SCHEMA),
            **given.arguments(FaultyRows, count),
            key="name",
            output=OUTPUT,
            stores=stores,
            order_by="at",
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Found:
        spark.read.schema(SCHEMA).parquet(str(folder / "events")).createOrReplaceTempView("events")
        answer = answer_rows(spark.sql(ANSWER))
        found = [wrong_rows(answer, answer_rows(spark.read.parquet(str(folder / "sink"))))]
        for version in versions:
            found.append(wrong_state(answer, *state_rows(spark, folder, version), version))
        return Found(len(answer), found)


def stores_of(backend: str, durability: str) -> Mapping[str, StoreConfig]:
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
