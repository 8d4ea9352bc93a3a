"""On a cluster that loses executors, jobs and trials of all kinds complete; the tests share one cluster and session.

Workers of Spark that are killed, without a cluster, are in ``test_trials_spark`` and ``test_iofaults_spark``, which
``make test`` runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from harness.processes.spark_cluster import SparkCluster
from harness.spark.session import session
from harness.tests import test_iofaults_spark as spread
from harness.tests import test_trials_spark as trials
from harness.tests.exploring import points_of, rows_of
from harness.tests.shared_jvm import SharedJvm

SCHEMA = "id long, parent string, code string"
pytestmark = pytest.mark.long


def running_below(folder: Path) -> list[str]:
    return [
        " ".join(process.info["cmdline"] or [])
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the trials of every process that is started here work."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(work: Path) -> Iterator[SparkCluster]:
    """A cluster of two workers, of which nothing is left at the end, not even where a worker was killed."""
    with SparkCluster(workers=2) as running:
        folder = running.folder
        assert running_below(folder)
        yield running
        running.kill_worker(0)
    assert running_below(folder) == []
    assert not folder.exists()


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm, cluster: SparkCluster) -> Iterator[SparkSession]:
    with session("killed executors", cluster.master, max_failures=4) as started:
        yield started


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


def test_a_job_runs_on_executors_and_survives_the_loss_of_one(cluster: SparkCluster, spark: SparkSession) -> None:
    before = spark.range(0, 4, 1, 4).mapInArrow(who_runs_it, SCHEMA).collect()
    writer = cluster.kill_executor()
    after = spark.range(0, 4, 1, 4).mapInArrow(who_runs_it, SCHEMA).collect()
    assert writer not in [executor.pid for executor in cluster.executors()]
    for rows in (before, after):
        assert sorted(row["id"] for row in rows) == [0, 1, 2, 3]
        assert all("CoarseGrainedExecutorBackend" in row["parent"] for row in rows)
        assert all(row["code"].endswith(".zip") and str(cluster.folder) in row["code"] for row in rows)
    assert cluster.alive_workers() == 2


def test_a_killed_executor_neither_loses_nor_doubles_a_trial(
    cluster: SparkCluster, spark: SparkSession, tmp_path: Path, work: Path
) -> None:
    rows = trials.run_while(cluster.kill_executor, spark, tmp_path)
    trials.assert_one_valid_row_each(rows)
    assert trials.left_of_trials(work) == []


def test_a_killed_executor_neither_loses_nor_doubles_a_row_of_an_io_fault(
    cluster: SparkCluster, spark: SparkSession, tmp_path: Path
) -> None:
    rows = spread.run_while(cluster.kill_executor, spark, tmp_path)
    case = spread.KILLS.case
    assert spread.verdicts(rows) == spread.verdicts(list(rows_of(case, points_of(case, spread.SEED), spread.SEED)))
    slices = [row["slice"] for row in spread.of_kind(rows, "operation_slice")]
    assert slices == list(range(len(slices)))
    assert spread.left_of_fork_servers() == []
