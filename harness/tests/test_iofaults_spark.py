"""As a Spark job, subsets come back as the rows they have without Spark, whatever happens to the processes."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from harness.budget import end_of
from harness.cli import main
from harness.experiment import Claim
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.experiment import IoFaults
from harness.experiments.iofaults.fault import IO_FAULTS, Row
from harness.experiments.iofaults.plan import PlannedCase, PlannedMutant
from harness.experiments.iofaults.subjects import CHECKPOINT
from harness.experiments.iofaults.subsets import RecordedWriter
from harness.io_trace import recorder
from harness.spark import runner
from harness.spark.runner import finished_trials, run_trials
from harness.spark.session import SHIPPED_SUFFIXES, session
from harness.tests.exploring import points_of, rows_of
from harness.tests.shared_jvm import SharedJvm
from stores.errors import ConfigError

SEED = 3
KILLS = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=3), SEED)
POWER = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "power", commits=3), SEED)


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm) -> Iterator[SparkSession]:
    with session("I/O faults test", "local[2]", max_failures=3) as started:
        yield started


def run_cases(
    spark: SparkSession,
    planned: Sequence[PlannedCase | PlannedMutant],
    folder: Path,
    *,
    points_per_subset: int | None = None,
) -> list[Row]:
    experiment = IoFaults()
    with pytest.MonkeyPatch.context() as patch:
        if points_per_subset is not None:
            for fault in ("kill", "power"):
                patch.setattr(IO_FAULTS[fault], "points_per_subset", points_per_subset)
        return experiment.finish(planned, run_trials(spark, experiment, planned, folder).rows, Claim(""))


def of_kind(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def verdicts(rows: list[Row]) -> list[tuple[object, ...]]:
    names = ("fault", "point", "only", "result", "acknowledged", "state", "attempted", "expected")
    return [tuple(row[name] for name in names) for row in rows if row.get("kind", "operation") == "operation"]


@pytest.mark.long
def test_rows_do_not_depend_on_how_points_are_cut_into_slices(spark: SparkSession, tmp_path: Path) -> None:
    whole = run_cases(spark, [KILLS, POWER], tmp_path / "one", points_per_subset=8 * 1000)
    parts = run_cases(spark, [KILLS, POWER], tmp_path / "many", points_per_subset=3)
    # Of each case, one point of each class comes first, and then the others.
    assert len(of_kind(whole, "operation_slice")) == 4
    assert len(of_kind(parts, "operation_slice")) >= 10
    for of_run in (whole, parts):
        kills_told = [row for row in of_kind(of_run, "operation_slice") if row["fault"] == "kill"]
        in_all = len(points_of(KILLS.case, SEED))
        assert {row["points_in_all"] for row in kills_told} == {in_all}
        assert sum(row["points"] for row in kills_told) == in_all
    kills = [verdicts([row for row in rows if row["fault"] == "kill"]) for rows in (whole, parts)]
    assert kills[0] == kills[1] == verdicts(list(rows_of(KILLS.case, points_of(KILLS.case, SEED), SEED)))
    # A state that is met in several subsets is checked in each against the promises there, with the same result.
    trials = [[row for row in of_kind(rows, "operation") if row["fault"] == "power"] for rows in (whole, parts)]
    found = [{(row["digest"], row["state"], row["result"]) for row in rows} for rows in trials]
    assert found[0] == found[1] != set()
    counts = [sum(row["states"] for row in of_kind(rows, "operation_slice")) for rows in (whole, parts)]
    assert counts[0] == counts[1] > len(of_kind(whole, "operation"))
    assert not [row for row in (*whole, *parts) if row["kind"] == "operation" and not row["expected"]]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["trials.parquet"]


def test_what_is_not_as_expected_keeps_its_recording_and_can_be_repeated(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "power", commits=3, mutant="unsynced-rename"), SEED)
    rows = of_kind(run_cases(spark, [broken, POWER], tmp_path), "operation")
    lost = [row for row in rows if not row["expected"]]
    assert {row["result"] for row in lost} == {"lost"}
    assert [path.name for path in (tmp_path / "recordings").iterdir()] == [
        f"{CHECKPOINT}-DISK-3-{SEED}-unsynced-rename"
    ]
    assert main(shlex.split(lost[0]["repeat"])[3:]) == 1
    assert lost[0]["description"] in capsys.readouterr().out


def test_a_mutant_is_detected_and_the_number_of_states_reported(spark: SparkSession, tmp_path: Path) -> None:
    wanted = [
        PlannedMutant("unsynced-rename", CHECKPOINT, "power", SEED),
        PlannedMutant("unsynced-rename", CHECKPOINT, "kill", SEED, found=False, points_max=4),
    ]
    seen, unseen = run_cases(spark, wanted, tmp_path)
    assert (seen["result"], seen["expected"]) == ("lost", True)
    assert (unseen["result"], unseen["states"], unseen["expected"]) == ("", 4, True)


def test_what_the_recorder_is_built_from_goes_to_executors_that_have_never_heard_of_it() -> None:
    assert Path(recorder.__file__).with_name("recorder.c").suffix in SHIPPED_SUFFIXES


def test_a_folder_is_for_one_run_and_nothing_planned_is_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert run_cases(spark, [], tmp_path) == []
    (tmp_path / "trials.parquet").mkdir()
    with pytest.raises(ConfigError):
        run_cases(spark, [KILLS], tmp_path)


def test_what_can_not_be_recorded_in_its_part_of_the_time_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[tuple[int, int]] = []
    run = runner._run

    def noted(*arguments: Any) -> None:
        totals.append(finished_trials(tmp_path / "late"))
        run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("harness.experiments.iofaults.experiment.RECORDING_PART", 0.0)
        patch.setattr(runner, "_run", noted)
        outcome = run_trials(spark, IoFaults(), [KILLS, POWER], tmp_path / "late", deadline=end_of(600))
    assert (outcome.rows, outcome.extent, outcome.problems, totals) == ([], {"cases": (0, 2)}, [], [(0, 0)])
    outcome = run_trials(spark, IoFaults(), [KILLS], tmp_path / "unbounded")
    assert [(unit, tried > 0) for unit, (tried, _) in outcome.extent.items()] == [("points", True)]


def test_what_a_killed_driver_has_left_is_not_taken_for_this_run(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "0.json").write_text("[]")
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / RecordedWriter.of(POWER).name).write_bytes(b"operations1")
    rows = run_cases(spark, [POWER], tmp_path, points_per_subset=8 * 1000)
    assert len(of_kind(rows, "operation")) > 10
    assert [row for row in of_kind(rows, "operation") if not row["expected"]] == []


def test_a_killed_worker_neither_loses_nor_doubles_a_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = run_while(kill_a_worker, spark, tmp_path)
    whole = run_cases(spark, [KILLS], tmp_path / "undisturbed")
    assert verdicts(rows) == verdicts(whole) != []
    assert left_of_fork_servers() == []


def run_while(strike: Callable[[], object], spark: SparkSession, folder: Path) -> list[Row]:
    """Run small subsets, and call ``strike`` once the first of them are done, until it finds a process."""

    def wait_and_strike() -> None:
        while finished_trials(folder)[0] < 2 and not over.wait(0.02):
            pass
        while not over.wait(0.01):
            if strike():
                struck.append(True)
                return

    struck: list[bool] = []
    over = threading.Event()
    striker = threading.Thread(target=wait_and_strike)
    striker.start()
    try:
        rows = run_cases(spark, [KILLS], folder, points_per_subset=2)
    finally:
        over.set()
        striker.join()
    assert struck == [True]
    return rows


def left_of_fork_servers() -> list[psutil.Process]:
    """The fork servers that have not ended in some seconds."""
    gone = time.monotonic() + 600
    while warm_parents() and time.monotonic() < gone:
        time.sleep(0.05)
    return warm_parents()


def kill_a_worker() -> bool:
    """Kill a Python process of Spark's that has a fork server; whether there was one."""
    for process in warm_parents():
        with contextlib.suppress(psutil.Error):
            worker = process.parent()
            if worker is not None and "pyspark.daemon" in " ".join(worker.cmdline()):
                worker.kill()
                return True
    return False


def warm_parents() -> list[psutil.Process]:
    """The fork servers below this process, and those that have lost their worker."""
    found = []
    own = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        if "harness.processes.fork_server_main" in (process.info["cmdline"] or []) and (
            process.pid in own or process.info["ppid"] == 1
        ):
            found.append(process)
    return found
