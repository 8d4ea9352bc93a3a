"""The query whose rows come from timers: each event registers one, which is due an hour and a half later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from harness.checkers.query import wrong_rows, wrong_timers
from harness.spark.query_faults.faulty import FaultyRows
from harness.spark.query_faults.named_events import SCHEMA, write_batches
from harness.spark.query_faults.workload import Found, Given, Workload, answer_rows, state_rows
from stores.config import StoreConfig
from stores.interface import Durability
from stores.records import INT64, STR, KeyValue
from stores.spark import Context, Rows, stateful

OUTPUT = "name string, value long, batch long"
DUE_MS, LATE_MS = 90 * 60_000, 10 * 60_000
REGISTERED = f"select name, batch, unix_millis(at) + {DUE_MS} as value from events"
"""The timers, with the batch that registers each."""
ANSWER = f"""
    with latest as (select batch, max(unix_millis(at)) as latest from events group by batch),
         marks as (select batch, coalesce(max(latest) over (order by batch rows between unbounded preceding
                                                            and 1 preceding) - {LATE_MS}, 0) as watermark from latest)
    select name, min(marks.batch) as batch, value
    from ({REGISTERED}) as timers join marks on marks.batch >= timers.batch and marks.watermark >= value
    group by name, value
"""
"""The rows that the sink must have: each timer, with the first batch whose watermark has reached it, by Spark SQL. The
watermark of a batch is the latest time in the batches before it, less the delay."""


class Timing(Workload):
    """Counts in the store ``fired`` how many timers of a name have fired."""

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        write_batches(folder, batches, seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        fired = KeyValue(key=STR, value=INT64)
        return stateful(
            given.events(spark, SCHEMA).withWatermark("at", f"{LATE_MS} milliseconds"),
            **given.arguments(FaultyRows, register),
            key="name",
            output=OUTPUT,
            stores={"fired": StoreConfig(given.backend, durability=Durability(given.durability), records=fired)},
            on_timer=fire,
            checkpoint=given.folder / "checkpoint",
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Found:
        spark.read.schema(SCHEMA).parquet(str(folder / "events")).createOrReplaceTempView("events")
        answer, registered = answer_rows(spark.sql(ANSWER)), answer_rows(spark.sql(REGISTERED))
        found = [wrong_rows(answer, answer_rows(spark.read.parquet(str(folder / "sink"))))]
        for version in versions:
            rows, _ = state_rows(spark, folder, version)
            found.append(wrong_timers(answer, registered, rows, version))
        return Found(len(answer), found)


def register(rows: Rows, context: Context) -> None:
    """Register a timer for each event."""
    for row in rows:
        context.timers.register(row.name, int(row.at.timestamp() * 1000) + DUE_MS)


def fire(name: str, time_ms: int, context: Context) -> Iterator[tuple[str, int, int | None]]:
    """Count a timer, and give it out with the batch in which it fires."""
    fired = context.store("fired")
    fired.put(name, (fired.get(name) or 0) + 1)
    yield name, time_ms, context.batch_id
