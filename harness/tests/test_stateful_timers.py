"""Timers on Spark: each fires once, with the query's watermark, also in partitions without rows and after restarts."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.spark.session import session
from stores.changelog.files import VersionLog
from stores.errors import ConfigError, StoreIncompatibleError
from stores.records import INT64, STR, KeyValue
from stores.spark import Context, Rows, stateful

SCHEMA = "plane string, at timestamp"
START = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
GAP_MS, LATE_MS = 30 * 60_000, 10 * 60_000
HALF, BATCHES, PLANES, PARTITIONS = 3, 6, 8, 4
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(joined_jvm: object) -> Iterator[SparkSession]:
    with session("timers", settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        yield spark


def write_events(folder: Path, batches: range) -> None:
    """Write an hour of events for each batch; from the third on they have one plane, so most partitions get no row."""
    (folder / "events").mkdir(exist_ok=True)
    for number in batches:
        at = [START + datetime.timedelta(hours=number, minutes=(row * 7) % 65) for row in range(24)]
        planes = [f"N{row % PLANES if number < 2 else 0}" for row in range(24)]
        file = folder / f"events/{number}.parquet"
        pyarrow.parquet.write_table(pa.table({"plane": planes, "at": pa.array(at, pa.timestamp("us", "UTC"))}), file)
        os.utime(file, (1_700_000_000 + number,) * 2)


def registers(rows: Rows, context: Context) -> None:
    for row in rows:
        context.timers.register(row.plane, int(row.at.timestamp() * 1000) + GAP_MS)


def fires(key: str, time_ms: int, context: Context) -> Iterator[Any]:
    fired = context.store("fired")
    fired.put(key, (fired.get(key) or 0) + 1)
    yield key, time_ms, context.watermark_ms, context.batch_id


def timed(spark: SparkSession, folder: Path, **changed: Any) -> DataFrame:
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/events")
    given: dict[str, Any] = {
        "key": "plane",
        "process": registers,
        "on_timer": fires,
        "output": "plane string, time_ms long, watermark_ms long, batch long",
        "stores": {"fired": KeyValue(key=STR, value=INT64)},
        "partitions": PARTITIONS,
        "state": folder / "state",
        "checkpoint": folder / "checkpoint",
    }
    return stateful(events.withWatermark("at", f"{LATE_MS} milliseconds"), **{**given, **changed})


def run(frame: DataFrame, folder: Path) -> dict[int, str | None]:
    """Run the query over all files; return the watermark of each batch as Spark reports it."""
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query = writer.start(f"{folder}/sink", format="parquet")
    try:
        query.awaitTermination()
        return {each["batchId"]: each["eventTime"].get("watermark") for each in query.recentProgress}
    finally:
        query.stop()


def test_timers_fire_once_with_the_watermark_that_spark_reports(spark: SparkSession, tmp_path: Path) -> None:
    write_events(tmp_path, range(HALF))
    reported = run(timed(spark, tmp_path), tmp_path)
    write_events(tmp_path, range(HALF, BATCHES))
    reported |= run(timed(spark, tmp_path), tmp_path)
    rows = spark.read.parquet(f"{tmp_path}/sink").collect()
    for row in rows:
        told = datetime.datetime.fromisoformat(str(reported[row["batch"]]))
        assert int(told.timestamp() * 1000) == row["watermark_ms"] >= row["time_ms"]
    events = spark.read.schema(SCHEMA).parquet(f"{tmp_path}/events")
    due = events.select("plane", (F.unix_millis("at") + GAP_MS).alias("time_ms")).distinct()
    final_ms = max(row["watermark_ms"] for row in rows)
    wanted = {(row["plane"], row["time_ms"]) for row in due.where(f"time_ms <= {final_ms}").collect()}
    assert sorted((row["plane"], row["time_ms"]) for row in rows) == sorted(wanted)
    assert {plane for plane, _ in wanted} == {f"N{number}" for number in range(PLANES)}
    table = spark.read.format("txstores").load(str(tmp_path / "state"))
    left = due.where(f"time_ms > {final_ms}")
    pending = table.where("store = '_times'").select("key", F.unix_millis("timestamp")).collect()
    assert sorted(map(tuple, pending)) == sorted((f'"{row["plane"]}"', row["time_ms"]) for row in left.collect())
    assert pending
    counts = {row["key"]: int(row["value"]) for row in table.where("store = 'fired'").collect()}
    assert counts == {plane: sum(1 for each, _ in wanted if each == plane) for plane in counts}
    assert sum(counts.values()) == len(rows)


def test_timers_without_a_watermark_or_with_a_wrong_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_events(tmp_path, range(2))
    plain = spark.readStream.schema(SCHEMA).parquet(f"{tmp_path}/events")
    given: dict[str, Any] = {"key": "plane", "process": registers, "on_timer": fires, "stores": {"fired": "rocksdb"}}
    with pytest.raises(ConfigError, match="withWatermark"):
        stateful(plain, output="plane string", state=tmp_path / "state", checkpoint="any", **given)
    with pytest.raises(ConfigError, match="checkpoint"):
        timed(spark, tmp_path, checkpoint=None)
    (tmp_path / "another").mkdir()
    run(timed(spark, tmp_path), tmp_path)
    with pytest.raises(StreamingQueryException, match=StoreIncompatibleError.__name__):
        other = timed(spark, tmp_path, state=tmp_path / "another/state")
        run_elsewhere = other.writeStream.option("checkpointLocation", f"{tmp_path}/another/checkpoint")
        run_elsewhere.trigger(availableNow=True).start(f"{tmp_path}/another/sink", format="parquet").awaitTermination()


def fired_timers(spark: SparkSession, folder: Path) -> list[tuple[str, int]]:
    rows = spark.read.parquet(f"{folder}/sink").collect()
    return sorted((row["plane"], row["time_ms"]) for row in rows)


def due_timers(spark: SparkSession, files: list[str], final_ms: int) -> list[tuple[str, int]]:
    """The timers of the events in the files that are due at a watermark."""
    events = spark.read.schema(SCHEMA).parquet(*files)
    due = events.select("plane", (F.unix_millis("at") + GAP_MS).alias("time_ms")).distinct()
    return sorted((row["plane"], row["time_ms"]) for row in due.where(f"time_ms <= {final_ms}").collect())


def test_timers_that_the_last_data_made_due_fire_without_more_data_if_that_is_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_events(tmp_path, range(HALF))
    run(timed(spark, tmp_path, fire_when_idle=True), tmp_path)
    events = spark.read.schema(SCHEMA).parquet(f"{tmp_path}/events")
    [latest] = events.select(F.unix_millis(F.max("at")).alias("ms")).collect()
    files = [f"{tmp_path}/events/{number}.parquet" for number in range(HALF)]
    fired = fired_timers(spark, tmp_path)
    assert fired == due_timers(spark, files, latest["ms"] - LATE_MS)
    assert spark.read.parquet(f"{tmp_path}/sink").where(f"batch >= {HALF}").count() > 0
    newest = VersionLog.open(tmp_path / "state").newest_complete()
    run(timed(spark, tmp_path, fire_when_idle=True), tmp_path)
    assert fired_timers(spark, tmp_path) == fired
    assert VersionLog.open(tmp_path / "state").newest_complete() == newest


def test_a_query_without_timers_takes_them_and_does_not_lose_them_again(spark: SparkSession, tmp_path: Path) -> None:
    def registers_none(rows: Rows, context: Context) -> None:
        context.store("fired").put("batches", context.version)

    write_events(tmp_path, range(HALF))
    run(timed(spark, tmp_path, process=registers_none, on_timer=None), tmp_path)
    write_events(tmp_path, range(HALF, BATCHES))
    run(timed(spark, tmp_path), tmp_path)
    files = [f"{tmp_path}/events/{number}.parquet" for number in range(HALF, BATCHES)]
    final_ms = max(row["watermark_ms"] for row in spark.read.parquet(f"{tmp_path}/sink").collect())
    fired = fired_timers(spark, tmp_path)
    assert fired == due_timers(spark, files, final_ms)
    assert fired
    with pytest.raises(StoreIncompatibleError) as raised:
        timed(spark, tmp_path, process=registers_none, on_timer=None)
    assert '_times {"kind": "times"} (given: none)' in str(raised.value)


@pytest.mark.parametrize("wrong", [{"on_timer": None, "fire_when_idle": True}, {"fire_when_idle": 1}])
def test_a_batch_without_rows_that_nothing_asks_for_is_refused(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    write_events(tmp_path, range(1))
    with pytest.raises((ConfigError, TypeError)):
        timed(spark, tmp_path, **wrong)
    assert not (tmp_path / "state").exists()
