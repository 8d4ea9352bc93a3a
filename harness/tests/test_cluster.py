"""A cluster of one machine runs our code on its executors, loses some of them, and is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from harness.spark.session import session
from harness.tests.cluster import Cluster

SCHEMA = "id long, parent string, code string"


def who_runs_it(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row per number: the command line of the JVM above this worker, and where it imports the harness from."""
    import harness
    from harness.spark.session import code_path

    assert harness.__file__ is not None
    executor = psutil.Process(os.getpid()).parents()[1]
    for batch in batches:
        for number in batch.column("id").to_pylist():
            row = {"id": [number], "parent": [" ".join(executor.cmdline())], "code": [code_path()]}
            yield pa.RecordBatch.from_pydict(row)


def running_below(folder: Path) -> list[str]:
    return [
        " ".join(process.info["cmdline"] or [])
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


@pytest.mark.timeout(600)
def test_a_job_runs_on_executors_survives_the_loss_of_one_and_leaves_nothing_behind() -> None:
    with Cluster(workers=2) as cluster:
        folder = cluster.folder
        assert running_below(folder)
        with session("cluster test", cluster.master, max_failures=4) as spark:
            before = spark.range(0, 4, 1, 4).mapInArrow(who_runs_it, SCHEMA).collect()
            victim = cluster.kill_executor()
            after = spark.range(0, 4, 1, 4).mapInArrow(who_runs_it, SCHEMA).collect()
            assert victim not in [executor.pid for executor in cluster.executors()]
        for rows in (before, after):
            assert sorted(row["id"] for row in rows) == [0, 1, 2, 3]
            assert all("CoarseGrainedExecutorBackend" in row["parent"] for row in rows)
            assert all(row["code"].endswith(".zip") and str(folder) in row["code"] for row in rows)
        assert cluster.alive_workers() == 2
        cluster.kill_worker(0)
    assert running_below(folder) == []
    assert not folder.exists()
