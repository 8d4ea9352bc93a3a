"""As a Spark job, trials come back as exactly one row each, whatever happens to the processes that run them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from harness.experiments.crash.experiment import Crash, row
from harness.experiments.crash.operations import Mix
from harness.experiments.crash.run import examine
from harness.experiments.crash.trial import CrashTrial
from harness.experiments.readers import run as readers
from harness.experiments.readers.experiment import Readers
from harness.faults import Kill, KillAfter, Stop
from harness.report.rows import Row
from harness.spark import runner
from harness.spark.runner import finished_trials
from harness.spark.session import session
from harness.tests.comparison import comparable
from harness.tests.shared_jvm import SharedJvm
from stores.errors import ConfigError

BACKEND = "sqlite-indexed-batch"
SMALL = Mix(records=48)
TRIALS = [CrashTrial(BACKEND, KillAfter(number), mix=SMALL, commit_every=6, seed=number) for number in range(1, 25)]


def run_trials(spark: SparkSession, trials: list[CrashTrial], folder: Path) -> list[Row]:
    """The rows of crash trials, in the order of the trials' ids."""
    return sorted(runner.run_trials(spark, Crash(), trials, folder).rows, key=lambda row: str(row["trial"]))


@pytest.fixture(scope="module", autouse=True)
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the trials of every process that is started here work."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm, work: Path) -> Iterator[SparkSession]:
    settings = {"spark.executorEnv.TMPDIR": str(work)}
    with session("trials test", "local[2]", max_failures=3, settings=settings) as started:
        yield started


def test_every_trial_comes_back_once_with_the_verdicts_that_it_has_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    trials = [
        CrashTrial(BACKEND, Stop(10), mix=SMALL),
        CrashTrial(BACKEND, Kill("no.such_failpoint"), mix=SMALL),
        CrashTrial(BACKEND, Kill("mutant.half_written", hit=5), mix=SMALL, commit_every=6, mutant="torn-commit"),
    ]
    rows = run_trials(spark, [*trials, trials[0]], tmp_path)
    assert [found["result"] for found in rows] == [str(examine(trial).result) for trial in by_id(trials)]
    assert comparable(rows) == comparable(row(examine(trial)) for trial in trials)
    assert [path.name for path in tmp_path.iterdir()] == ["trials.parquet"]


def test_a_folder_is_for_one_run(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "trials.parquet").mkdir()
    with pytest.raises(ConfigError):
        run_trials(spark, TRIALS, tmp_path)


def test_no_trials_are_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert run_trials(spark, [], tmp_path) == []


def test_a_killed_worker_neither_loses_nor_doubles_a_trial(spark: SparkSession, tmp_path: Path, work: Path) -> None:
    rows = run_while(lambda: kill_a_worker_process(work), spark, tmp_path)
    assert_one_valid_row_each(rows)
    assert left_of_trials(work) == []


def run_while(strike: Callable[[], object], spark: SparkSession, folder: Path) -> list[Row]:
    """Run the trials, and strike once when the first of them are done."""

    def wait_and_strike() -> None:
        while finished_trials(folder)[0] < 2:
            if over.wait(0.05):
                return
        struck.append(strike())

    struck: list[object] = []
    over = threading.Event()
    striker = threading.Thread(target=wait_and_strike)
    striker.start()
    try:
        rows = run_trials(spark, TRIALS, folder)
    finally:
        over.set()
        striker.join()
    assert len(struck) == 1
    return rows


def kill_a_worker_process(folder: Path) -> None:
    """Kill a Python process of Spark's that is at work on a trial."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        for process in processes_of_trials(folder):
            with contextlib.suppress(psutil.Error):
                # The nearest one: Spark's daemon, which it was forked from, has the same name.
                for ancestor in process.parents():
                    if "pyspark.daemon" in ancestor.cmdline():
                        ancestor.kill()
                        return
        time.sleep(0.01)
    raise AssertionError("no worker was ever seen at work")


def processes_of_trials(folder: Path) -> list[psutil.Process]:
    """The processes of trials that work below ``folder``, started or forked."""
    found = []
    modules = {
        "harness.experiments.crash.writer",
        "harness.processes.fork_server_main",
    }
    for process in psutil.process_iter(["cmdline"]):
        if modules & set(process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                if process.cwd().startswith(str(folder)):
                    found.append(process)
    return found


def left_of_trials(folder: Path) -> list[object]:
    """Processes that have not ended in some seconds, and folders of trials."""
    _, alive = psutil.wait_procs(processes_of_trials(folder), timeout=600)
    return [*alive, *folder.glob("fork-server-*")]


def assert_one_valid_row_each(rows: list[Row]) -> None:
    assert [found["trial"] for found in rows] == [trial.id for trial in by_id(TRIALS)]
    assert {found["result"] for found in rows} == {"valid"}


def by_id(trials: list[CrashTrial]) -> list[CrashTrial]:
    return sorted(trials, key=lambda trial: trial.id)


def test_readers_beside_a_writer_come_back_as_one_row_each(spark: SparkSession, tmp_path: Path) -> None:
    trials = [
        readers.ReadersTrial("memory-indexed-batch", seconds=0.3, seed=2),
        readers.ReadersTrial("memory-indexed-batch", seconds=20, mutant="torn-commit"),
    ]
    rows = runner.run_trials(spark, Readers(), trials, tmp_path).rows
    assert [(row["trial"], row["result"]) for row in rows] == [(trials[0].id, "valid"), (trials[1].id, "anomaly")]
    assert Readers().failures({"isolation": rows}, {}) == []
    assert rows[0]["committed_answers"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["trials.parquet"]
    with pytest.raises(ConfigError):
        runner.run_trials(spark, Readers(), trials, tmp_path)
