"""The workloads of tasks as stateful streaming queries, and Spark SQL's answers over the same events.

A query reads ``FOLDER/events``, one file for each batch, keeps its state in ``FOLDER/state``, and writes files to
``FOLDER/sink``. Its function is the one that a ``StreamTask`` runs, of records or of batches of them. Each event gives
out one row, so the sink is compared row by row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.spark.expected import differences, expected_rows, expected_state
from harness.workloads.tasks import AircraftSessions, Count, FlightsByHour
from harness.workloads.workload import TypedWorkload
from stores.changelog import Record
from stores.changelog.files import VersionLog
from stores.config import StoreConfig
from stores.spark import stateful
from stores.tasks import Batch

WORKLOADS: dict[str, Any] = {
    "count": Count(keys=500),
    "flights_by_hour": FlightsByHour(),
    "aircraft_sessions": AircraftSessions(),
}
"""The workloads by name."""
PARTITIONS = 3
_SCHEMA = "key binary, value binary, timestamp_ms long, offset long"
_FIRST_FILE_S = 1_700_000_000

_TABLE = """
    select partition, store, if(kind = 'bytes', unhex(key), encode(concat(key, within), 'UTF-8')) as key,
           if(kind = 'bytes', unhex(value), encode(concat(replace(value, ', ', ','), at), 'UTF-8')) as value
    from (select *, coalesce(concat('@', unix_millis(window_start), '-', unix_millis(window_end)), '') as within,
                 coalesce(concat('@', unix_millis(timestamp)), '') as at from {table})
    where store <> '_times'
"""


def write_events(name: str, folder: Path, *, batches: int, count: int, seed: int = 1) -> None:
    """Write the first ``count`` events of a workload to ``folder``, which is new, in files of one batch each."""
    events = list(WORKLOADS[name].events(seed, count))
    folder.mkdir(parents=True)
    for number in range(batches):
        places = range(number * count // batches, (number + 1) * count // batches)
        part = [events[place] for place in places]
        table = pa.table(
            {
                "key": pa.array([event.key for event in part], pa.binary()),
                "value": pa.array([event.value for event in part], pa.binary()),
                "timestamp_ms": pa.array([event.timestamp_ms for event in part], pa.int64()),
                "offset": pa.array(places, pa.int64()),
            }
        )
        file = folder / f"{number:04d}.parquet"
        pyarrow.parquet.write_table(table, file)
        # Spark reads files in the order of their times.
        os.utime(file, (_FIRST_FILE_S + number, _FIRST_FILE_S + number))


def in_batches(process: Callable[[Record, Any], None]) -> Callable[[Batch[Any, Any], Any], None]:
    """Return a function of batches that calls ``process`` for each record, as the current one."""

    def process_batch(batch: Batch[Any, Any], context: Any) -> None:
        whole = context.record
        for record in batch:
            context.record = record
            process(record, context)
        context.record = whole

    return process_batch


def stateful_query(
    spark: SparkSession, name: str, folder: Path, *, backend: str = "rocksdb", **changed: Any
) -> DataFrame:
    """Return the query of a workload over ``folder``/events. ``changed`` are arguments of ``stateful``."""
    workload = WORKLOADS[name]
    kinds = workload.records if isinstance(workload, TypedWorkload) else {}
    events = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "events"))
    arguments: dict[str, Any] = {
        "key": "key",
        **({} if "process_batch" in changed else {"process_record": workload.process}),
        "stores": {store: StoreConfig(backend, records=kinds.get(store)) for store in workload.store_names},
        "partitions": PARTITIONS,
        "state": folder / "state",
    }
    return stateful(events, **{**arguments, **changed})


def run_query(frame: DataFrame, folder: Path) -> None:
    """Run the query until it has read all files. Raises: StreamingQueryException."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.option("path", f"{folder}/sink").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def wrong_rows(spark: SparkSession, name: str, folder: Path) -> list[Any]:
    """Return the rows of the sink that Spark SQL does not have, and those that the sink lacks, with their number."""
    columns = ("key", "value", "timestamp_ms")
    sink = spark.read.parquet(f"{folder}/sink").withColumn("timestamp_ms", F.unix_millis("timestamp"))
    events = _events(spark, folder, VersionLog.open(folder / "state").partitions)
    answer = expected_rows(name, events).select(*columns, F.lit(-1).alias("sign"))
    both = sink.select(*columns, F.lit(1).alias("sign")).unionByName(answer)
    return both.groupBy(*columns).agg(F.sum("sign").alias("surplus")).where("surplus <> 0").collect()


def wrong_state(spark: SparkSession, name: str, folder: Path, version: int | None = None) -> list[Any]:
    """Return the differences of the state, read as a table, from Spark SQL's answer.

    The state is that after the batch ``version``, by default after the last one. Batches are files of events, in order.
    """
    log = VersionLog.open(folder / "state")
    reader = spark.read.format("txstores")
    table = (reader if version is None else reader.option("version", version)).load(str(folder / "state"))
    stores: Any = log.description["stores"]
    kinds = F.create_map(*(F.lit(text) for store, kind in stores.items() for text in (store, kind["kind"])))
    actual = spark.sql(_TABLE, table=table.withColumn("kind", kinds[F.col("store")]))
    events = _events(spark, folder, log.partitions, None if version is None else version + 1)
    return differences(actual, expected_state(name, events)).collect()


def _events(spark: SparkSession, folder: Path, partitions: int, batches: int | None = None) -> DataFrame:
    """Return the events of the first ``batches``, None for all, with the partition of the query that has them."""
    files = sorted((folder / "events").glob("*.parquet"))[:batches]
    events = spark.read.schema(_SCHEMA).parquet(*map(str, files)).withColumnRenamed("offset", "seq")
    return events.withColumn("partition", F.pmod(F.hash("key"), F.lit(partitions)))
