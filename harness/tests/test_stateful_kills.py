"""Stateful queries whose Python workers are killed at each failpoint."""

from __future__ import annotations

import datetime
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame

from harness.spark.session import session
from harness.tests.test_stateful import COUNTS, OUTPUT, as_table, count, latest, stream, to_files
from stores import failpoints
from stores.changelog.files import Retention
from stores.changelog.files.partition_log import FAILPOINTS
from stores.spark import Context, Rows, stateful
from stores.spark import local_state as states

KILLED_AT = (*FAILPOINTS, states.RESTORED, states.BETWEEN_STORES, states.COMMITTED)
ROWS = 60
QUICK = {"spark.sql.shuffle.partitions": "2"}
pytestmark = pytest.mark.spark


def make_events(folder: Path, batches: int) -> dict[str, int]:
    """Write a file for each batch; return the count of each plane."""
    counts: Counter[str] = Counter()
    for number in range(batches):
        planes = [f"N{(number * 7 + row * row) % 20}" for row in range(ROWS)]
        at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=number)
        times = pa.array([at + datetime.timedelta(seconds=row) for row in range(ROWS)], pa.timestamp("us", "UTC"))
        (folder / f"events/{number:02d}").mkdir(parents=True)
        pyarrow.parquet.write_table(
            pa.table({"plane": planes, "at": times}), folder / f"events/{number:02d}/part.parquet"
        )
        counts.update(planes)
    return dict(counts)


def counted(events: DataFrame, folder: Path, process: Any) -> DataFrame:
    return stateful(
        events,
        key="plane",
        process=process,
        output=OUTPUT,
        stores={"counts": COUNTS, "seen": "lmdb"},
        partitions=2,
        state=folder / "state",
        order_by="at",
        local=folder / "local",
        retention=Retention(snapshot_versions=2, keep_versions=2),
    )


def count_and_note(rows: Rows, context: Context) -> Iterator[Any]:
    context.store("seen").put(b"batch %d" % context.version, b"")
    yield from count(rows, context)


def test_a_worker_killed_at_any_failpoint_costs_no_row_and_no_state(joined_jvm: object, tmp_path: Path) -> None:
    """Each batch has one failpoint, at which the first attempt of a partition ends."""

    def killed(rows: Rows, context: Context) -> Iterator[Any]:
        at = context.version - 1
        marker = tmp_path / f"killed {at}"
        failpoints.disarm()
        if context.partition == at % 2 and 0 <= at < len(KILLED_AT) and not marker.exists():
            marker.touch()
            if KILLED_AT[at] == states.RESTORED:
                # It is passed before the function: the next attempt, in a new process, finds its own copy behind.
                os.kill(os.getpid(), signal.SIGKILL)
            failpoints.arm(KILLED_AT[at], lambda: os.kill(os.getpid(), signal.SIGKILL))
        yield from count_and_note(rows, context)

    batches = len(KILLED_AT) + 2
    answer = make_events(tmp_path, batches)
    with session("kills", settings=QUICK, max_failures=3) as spark:
        to_files(counted(stream(spark, tmp_path / "events"), tmp_path, killed), tmp_path)
        assert len(list(tmp_path.glob("killed *"))) == len(KILLED_AT)
        assert latest(spark, tmp_path / "sink") == answer
        assert as_table(spark, tmp_path, store="counts") == answer
        seen = spark.read.format("txstores").option("store", "seen").load(str(tmp_path / "state"))
        assert seen.count() == 2 * batches
