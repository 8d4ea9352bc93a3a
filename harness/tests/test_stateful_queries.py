"""The workloads of tasks as stateful queries: sink and state equal what Spark SQL computes from the same events."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from harness.spark.session import session
from harness.spark.stateful_queries import (
    WORKLOADS,
    in_batches,
    run_query,
    stateful_query,
    write_events,
    wrong_rows,
    wrong_state,
)
from stores.changelog.files import Retention

BATCHES, EVENTS = 3, 2_000
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(joined_jvm: object) -> Iterator[SparkSession]:
    with session("stateful queries", settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        yield spark


IN_BATCHES = {"process_batch": in_batches(WORKLOADS["aircraft_sessions"].process), "batch_max_records": 100}


@pytest.mark.parametrize(
    ("name", "changed"),
    [*((name, {}) for name in WORKLOADS), ("aircraft_sessions", {"backend": "lmdb", **IN_BATCHES})],
)
def test_sink_and_state_equal_spark_sql(
    spark: SparkSession, tmp_path: Path, name: str, changed: dict[str, Any]
) -> None:
    write_events(name, tmp_path / "events", batches=BATCHES, count=EVENTS)
    kept = Retention(snapshot_versions=2, keep_versions=1)
    run_query(stateful_query(spark, name, tmp_path, retention=kept, **changed), tmp_path)
    assert wrong_rows(spark, name, tmp_path) == []
    assert wrong_state(spark, name, tmp_path) == []


def test_a_lost_and_a_repeated_row_and_another_state_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    """The comparison itself: with one file of the sink twice, with one missing, and with events that no state has."""
    name = "count"
    write_events(name, tmp_path / "events", batches=2, count=200)
    run_query(stateful_query(spark, name, tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "sink/_spark_metadata")
    file = min((tmp_path / "sink").glob("*.parquet"))
    shutil.copy(file, tmp_path / "sink/again.parquet")
    rows = pyarrow.parquet.read_metadata(file).num_rows
    assert sum(row["surplus"] for row in wrong_rows(spark, name, tmp_path)) == rows > 0
    (tmp_path / "sink/again.parquet").unlink()
    file.unlink()
    assert sum(row["surplus"] for row in wrong_rows(spark, name, tmp_path)) == -rows
    assert wrong_state(spark, name, tmp_path) == []
    more = pa.table({"key": [b"more"], "value": [b""], "timestamp_ms": [0], "offset": [10**6]})
    pyarrow.parquet.write_table(more, tmp_path / "events/more.parquet")
    assert [row["key"] for row in wrong_state(spark, name, tmp_path)] == [b"more"]
