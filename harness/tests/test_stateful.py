"""Stateful queries on Spark: state and rows count once, and equal what Spark SQL computes from the same events."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from harness.spark.session import session
from stores.changelog import Record
from stores.changelog.files import Retention, VersionLog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError, StoreIncompatibleError
from stores.records import INT64, STR, KeyValue, TimestampedKeyValue
from stores.records.serdes import MsgspecJson
from stores.spark import Context, Rows, stateful
from stores.spark.sources import StateTable
from stores.tasks import Batch, TaskContext, Topic

COUNTS = StoreConfig("rocksdb", records=TimestampedKeyValue(key=STR, value=INT64))
SCHEMA = "plane string, at timestamp"
OUTPUT = "plane string not null, count long, batch long"
FILES, ROWS = 3, 400


@pytest.fixture(scope="module")
def spark(joined_jvm: object) -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stopTimeout": "20s"}
    with session("stateful", settings=settings, max_failures=2) as spark:
        yield spark


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some files of events, one for each batch."""
    folder = tmp_path_factory.mktemp("events")
    for number in range(FILES):
        frame = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr(
            "concat('N', pmod(hash(id), 50)) as plane", "timestamp_seconds(1700000000 + id) as at"
        )
        frame.write.parquet(f"{folder}/{number}")
    return folder


def count(rows: Rows, context: Context) -> Iterator[tuple[str, int, int | None]]:
    counts = context.store("counts")
    latest: dict[str, tuple[int, datetime.datetime]] = {}
    for row in rows:
        before = counts.get(row.plane) if row.plane not in latest else None
        number = latest[row.plane][0] if row.plane in latest else before.value if before is not None else 0
        latest[row.plane] = (number + 1, row.at)
    for plane, (number, at) in latest.items():
        counts.put(plane, number, int(at.timestamp() * 1000))
        yield plane, number, context.batch_id


def counted(events: DataFrame, folder: Path, **changed: Any) -> DataFrame:
    given: dict[str, Any] = {
        "key": "plane",
        "process": count,
        "output": OUTPUT,
        "stores": {"counts": COUNTS},
        "partitions": 3,
        "state": folder / "state",
        "order_by": "at",
    }
    return stateful(events, **{**given, **changed})


def stream(spark: SparkSession, events: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{events}/*")


def by_sql(spark: SparkSession, events: Path) -> dict[str, int]:
    """The answer of Spark SQL."""
    rows = spark.read.schema(SCHEMA).parquet(f"{events}/*").groupBy("plane").count().collect()
    return {row["plane"]: row["count"] for row in rows}


def latest(spark: SparkSession, sink: Path) -> dict[str, int]:
    """The last count of each plane in a sink; each batch has a plane once at most."""
    frame = spark.read.parquet(str(sink))
    assert frame.groupBy("plane", "batch").count().where("count > 1").count() == 0
    rows = frame.groupBy("plane").agg(F.max_by("count", "batch").alias("count")).collect()
    return {row["plane"]: row["count"] for row in rows}


def as_table(spark: SparkSession, folder: Path, **options: Any) -> dict[str, int]:
    """The counts in the state, read as a table."""
    spark.dataSource.register(StateTable)
    rows = spark.read.format("txstores").options(**options).load(str(folder / "state")).collect()
    assert {row["store"] for row in rows} == {"counts"}
    assert all(row["timestamp"] is not None and row["window_start"] is None for row in rows)
    return {row["key"]: int(row["value"]) for row in rows}


def to_files(frame: DataFrame, folder: Path) -> list[dict[str, int]]:
    """Run the query until it has read all files; return the figures of each batch as its progress shows them."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.option("path", f"{folder}/sink").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        return figures_in(query, folder)
    finally:
        query.stop()


def figures_in(query: StreamingQuery, folder: Path) -> list[dict[str, int]]:
    return [progress.observedMetrics[f"txstores:{folder}/state"].asDict() for progress in query.recentProgress]


def expected_figures(spark: SparkSession, events: Path, batch: int) -> dict[str, int]:
    """The count of Spark SQL: the planes of a batch, and of it and all before, whose keys and values are kept."""
    own = spark.read.schema(SCHEMA).parquet(f"{events}/{batch}").select("plane").distinct()
    paths = [f"{events}/{number}" for number in range(batch + 1)]
    names = [row["plane"] for row in spark.read.schema(SCHEMA).parquet(*paths).select("plane").distinct().collect()]
    return {
        "partitions": 3,
        "rows_updated": own.count(),
        "rows_removed": 0,
        "keys": len(names),
        # A value is the count and its timestamp, of 8 bytes each.
        "state_bytes": sum(len(name) + 16 for name in names),
    }


def without_times(figures: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in figures.items() if name not in ("restored_versions", "commit_ms")}


def test_a_query_with_a_file_sink_equals_spark_sql(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    figures = to_files(counted(stream(spark, events), tmp_path), tmp_path)
    assert [without_times(each) for each in figures] == [expected_figures(spark, events, n) for n in range(FILES)]
    log = VersionLog.open(tmp_path / "state")
    restored = [sum(log.partition(number).header(version).restored for number in range(3)) for version in range(FILES)]
    assert [each["restored_versions"] for each in figures] == restored
    assert all(each["commit_ms"] > 0 for each in figures)
    assert latest(spark, tmp_path / "sink") == by_sql(spark, events)
    assert VersionLog.open(tmp_path / "state").newest_complete() == FILES - 1
    assert as_table(spark, tmp_path) == by_sql(spark, events)
    first = spark.read.schema(SCHEMA).parquet(f"{events}/0").groupBy("plane").count().collect()
    assert as_table(spark, tmp_path, version=0) == {row["plane"]: row["count"] for row in first}


@pytest.mark.spark
def test_each_action_of_foreach_batch_sees_the_same_rows_and_counts_once(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def both(frame: DataFrame, number: int) -> None:
        seen.append((frame.count(), frame.count()))
        frame.write.mode("append").parquet(f"{tmp_path}/sink")

    query: Any = counted(stream(spark, events), tmp_path).writeStream.foreachBatch(both).trigger(availableNow=True)
    query = query.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    query.awaitTermination()
    assert [without_times(each) for each in figures_in(query, tmp_path)] == [
        expected_figures(spark, events, number) for number in range(FILES)
    ]
    assert len(seen) == FILES
    assert all(one == other for one, other in seen)
    assert latest(spark, tmp_path / "sink") == by_sql(spark, events)


@pytest.mark.spark
def test_a_state_made_within_foreach_batch_follows_its_batches(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    def each(frame: DataFrame, number: int) -> None:
        for _ in range(2):  # as a batch that is given again after a crash
            counted(frame, tmp_path).write.mode("overwrite").parquet(f"{tmp_path}/sink/{number}")

    query = stream(spark, events).writeStream.foreachBatch(each).trigger(availableNow=True)
    query.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
    assert latest(spark, tmp_path / "sink" / "*") == by_sql(spark, events)


@pytest.mark.spark
def test_batch_jobs_make_versions_that_a_query_continues(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    first = counted(spark.read.schema(SCHEMA).parquet(f"{events}/0"), tmp_path)
    rows = sorted(first.collect())
    assert sorted(first.collect()) == rows
    second = counted(spark.read.schema(SCHEMA).parquet(f"{events}/1"), tmp_path)
    second.write.parquet(f"{tmp_path}/job")
    query = counted(spark.readStream.schema(SCHEMA).parquet(f"{events}/2"), tmp_path)
    to_files(query, tmp_path)
    answer = by_sql(spark, events)
    found = {row["plane"]: row["count"] for row in spark.read.parquet(f"{tmp_path}/sink").collect()}
    assert found == {plane: answer[plane] for plane in found}
    assert VersionLog.open(tmp_path / "state").newest_complete() == 2


@pytest.mark.parametrize("form", ["process_record", "process_batch"])
def test_a_function_of_records_or_of_batches_reads_and_writes_topics_with_serdes(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Their serdes go to the executors with the function."""
    orders, totals = Topic("orders", key=STR, value=MsgspecJson(list[int])), Topic("totals", key=STR, value=INT64)

    def add_up(record: Record[str, list[int]], context: TaskContext) -> None:
        before = context.store("sums").get(record.key) or 0
        context.store("sums").put(record.key, before + sum(record.value or ()))
        context.forward(totals, record.key, before + sum(record.value or ()))

    def add_up_all(batch: Batch[str, list[int]], context: TaskContext) -> None:
        sums = context.store("sums")
        for key, numbers in zip(batch.keys, batch.values, strict=True):
            sums.put(key, (sums.get(key) or 0) + sum(numbers or ()))
            context.forward_many(totals, pa.array([key]), pa.array([sums.get(key)]))

    rows = [("orders", "a", b"[1, 2]", 0), ("orders", "b", None, 1), ("orders", "a", b"[4]", 2)]
    frame = spark.createDataFrame(rows, "topic string, key string, value binary, offset long")
    given: dict[str, Any] = {"key": "key", "stores": {"sums": KeyValue(key=STR, value=INT64)}, "partitions": 1}
    output = "topic string not null, key binary, value binary"
    function: dict[str, Any] = {form: add_up if form == "process_record" else add_up_all}
    made = stateful(frame, **function, topics=[orders], output=output, state=tmp_path / "state", **given).collect()
    assert [(row.topic, totals.decoded(Record(0, bytes(row.key), bytes(row.value)))[1:3]) for row in made] == [
        ("totals", ("a", 3)),
        ("totals", ("b", 0)),
        ("totals", ("a", 7)),
    ]


def test_a_job_that_reached_some_partitions_only_must_be_repeated(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    assert counted(job, tmp_path).take(1)
    with pytest.raises(StoreError):
        counted(job, tmp_path)
    rows = counted(job, tmp_path, version=0).collect()
    assert {row["plane"]: row["count"] for row in rows} == {
        row["plane"]: row["count"] for row in job.groupBy("plane").count().collect()
    }


@pytest.mark.spark
def test_a_restarted_query_gives_the_batch_again_that_its_sink_lacks(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    """The checkpoint forgets that the last batch is done, as after a crash of the driver before it could say so."""
    to_files(counted(stream(spark, events), tmp_path), tmp_path)
    for file in (f"checkpoint/commits/{FILES - 1}", f"checkpoint/commits/.{FILES - 1}.crc"):
        (tmp_path / file).unlink(missing_ok=True)
    log = tmp_path / "sink" / "_spark_metadata"
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (log / name).unlink(missing_ok=True)
    [figures] = to_files(counted(stream(spark, events), tmp_path), tmp_path)
    assert without_times(figures) == expected_figures(spark, events, FILES - 1)
    assert figures["commit_ms"] == 0
    assert latest(spark, tmp_path / "sink") == by_sql(spark, events)


@pytest.mark.spark
def test_a_failed_task_is_tried_again_and_counts_once(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fails_once(rows: Rows, context: Context) -> Iterator[Any]:
        yield from count(rows, context)
        if context.partition == 1 and not failed.exists():
            failed.touch()
            raise ZeroDivisionError

    figures = to_files(counted(stream(spark, events), tmp_path, process=fails_once), tmp_path)
    assert failed.exists()
    assert [without_times(each) for each in figures] == [expected_figures(spark, events, n) for n in range(FILES)]
    assert latest(spark, tmp_path / "sink") == by_sql(spark, events)


def test_a_state_is_used_only_as_it_was_created(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0").withColumn("other", F.lit("x"))
    counted(job, tmp_path)
    other_kind = StoreConfig("lmdb", records=TimestampedKeyValue(key=STR, value=STR))
    for changed in ({"partitions": 4}, {"key": ["plane", "other"]}, {"stores": {"counts": other_kind}}):
        with pytest.raises(StoreIncompatibleError):
            counted(job, tmp_path, **changed)
    counted(job, tmp_path, stores={"counts": StoreConfig("lmdb", records=COUNTS.records)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "pilot"},
        {"key": []},
        {"order_by": "pilot"},
        {"partitions": 0},
        {"output": "plane"},
        {"output": "long"},
        {"output": "plane string, n long, n long"},
        {"stores": {}},
        {"stores": {"../x": "rocksdb"}},
        {"stores": {"counts": "rocks"}},
        {"stores": {"counts": "rocksdb-direct"}},
        {"stores": {"_times": "rocksdb"}},
        {"process": None},
        {"process_record": count},
        {"process_batch": count},
        {"topics": [Topic("orders", key=STR, value=STR)]},
        {"process": None, "process_record": count, "output": None},
        {"process": None, "process_batch": count, "output": None},
        {"null_keys": "drop"},
        {"version": 3},
    ],
)
def test_a_wrong_argument_is_refused(spark: SparkSession, events: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        counted(spark.read.schema(SCHEMA).parquet(f"{events}/0"), tmp_path, **wrong)


def test_a_key_in_whose_collation_different_texts_are_equal_is_refused(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    with pytest.raises(ConfigError, match="collate UTF8_LCASE"):
        counted(job.withColumn("plane", F.collate("plane", "UTF8_LCASE")), tmp_path)
    plain = job.withColumn("plane", F.collate(F.collate("plane", "UTF8_LCASE"), "UTF8_BINARY"))
    assert sorted(counted(plain, tmp_path).collect()) == sorted(counted(job, tmp_path / "other").collect())


@pytest.mark.spark
def test_of_two_jobs_that_are_given_the_same_new_version_one_is_refused(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    one = counted(spark.read.schema(SCHEMA).parquet(f"{events}/0"), tmp_path, version=0)
    other = counted(spark.read.schema(SCHEMA).parquet(f"{events}/1"), tmp_path, version=0)
    rows = sorted(one.collect())
    assert sorted(one.collect()) == rows
    with pytest.raises(Exception, match=StoreIncompatibleError.__name__):
        other.collect()
    repeated = counted(spark.read.schema(SCHEMA).parquet(f"{events}/0"), tmp_path, version=0)
    assert sorted(repeated.collect()) == rows


def test_spark_before_the_oldest_that_works_is_refused(
    spark: SparkSession, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    for given in ("4.0.1", "3.5.6"):
        monkeypatch.setattr(job.sparkSession, "version", given)
        with pytest.raises(ConfigError, match=given):
            counted(job, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_application_is_refused_and_left_alone(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    (tmp_path / "state").mkdir()
    (tmp_path / "state/part-0.parquet").write_text("theirs")
    with pytest.raises(StoreIncompatibleError, match="part-0"):
        counted(job, tmp_path)
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["part-0.parquet"]


def test_a_state_keeps_its_number_of_partitions(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    counted(job, tmp_path)
    assert counted(job, tmp_path, partitions=None, version=0).rdd.getNumPartitions() == 3
    other = counted(job, tmp_path / "other", partitions=None)
    assert other.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism


@pytest.mark.spark
def test_an_error_of_the_function_reaches_the_driver_with_its_row(
    spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    def fails(rows: Rows, context: Context) -> Iterator[Any]:
        for row in rows:
            yield row.plane, 1 // (row.plane != "N7"), 0

    with pytest.raises(StreamingQueryException) as raised:
        to_files(counted(stream(spark, events), tmp_path, process=fails), tmp_path)
    assert "'N7'" in str(raised.value)
    assert VersionLog.open(tmp_path / "state", retention=Retention()).newest_complete() is None


def test_a_plan_that_changes_the_tasks_is_refused(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    job = spark.read.schema(SCHEMA).parquet(f"{events}/0")
    with pytest.raises(Exception, match="repartition"):
        counted(job, tmp_path).coalesce(1).collect()
