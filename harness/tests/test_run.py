"""The steps of a bench: a failed measurement is a problem, and a problem fails the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness import run
from harness.answer.write import publish
from harness.budget import TimeOverError
from harness.experiment import Claim, Experiment, Failure, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.cold_cache import ColdCache, ColdCacheTrial
from harness.experiments.microbench import run as timing
from harness.experiments.microbench.claim import claims
from harness.experiments.microbench.experiment import MicrobenchTrial
from harness.experiments.registry import experiments, kinds, stages
from harness.processes.child import MeasurementFailedError
from harness.report.figures import Figure, Figures
from harness.report.ratios import ratio_of
from harness.report.rows import Row, read_rows
from harness.run import BenchRequest
from harness.scenario import AtLeast, Scenario, ScenarioFile
from harness.schedule import ExperimentRun
from harness.spark.runner import _once
from harness.tests.made_up_rows import made_up_rows
from harness.workloads.event_log import EventLog

MISSED = {
    "kind": "ratio",
    "claim": "a claim",
    "subject": "sqlite-native",
    "yardstick": "sqlite-indexed-batch",
    "durability": "CHANGELOG",
    "records_per_commit": 100,
    "at_least": 0.9,
    **ratio_of([0.5] * 5),
}


@dataclass(frozen=True)
class Trial:
    """One trial, which fails if it is asked to."""

    fails: bool = False


class Tried(Experiment[Trial]):
    """It notes each trial that it runs."""

    name = title = "tried"
    trial = Trial
    placement = TrialPlacement.SPREAD
    columns = MappingProxyType({"tried": MappingProxyType({"attempt": int})})

    def __init__(self) -> None:
        self.ran: list[Trial] = []

    def plan(self, request: Request) -> list[Trial]:
        return []

    def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
        self.ran.append(trial)
        worker.folder.mkdir()
        if trial.fails:
            raise MeasurementFailedError("its process failed")
        return [{"kind": "tried", "attempt": worker.attempt}]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        return {}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        return []


def quiet(line: str) -> None:
    """Discard reports of progress."""


def once(tried: Tried, trial: Trial, folder: Path, attempt: int) -> dict[str, Any]:
    made = tried_once(tried, trial, folder, attempt)
    assert made is not None
    return made


def tried_once(tried: Tried, trial: Trial, folder: Path, attempt: int) -> dict[str, Any] | None:
    (folder / "finished").mkdir(exist_ok=True)
    (folder / "progress").touch()
    worker = TrialWorker(folder / f"0-{attempt}", attempt=attempt)
    return _once(tried, trial, 0, worker, folder / "finished", folder / "progress")


@pytest.mark.parametrize("fails", [False, True])
def test_a_finished_trial_is_not_run_again_by_a_task_that_is_repeated(tmp_path: Path, fails: bool) -> None:
    tried = Tried()
    first = once(tried, Trial(fails), tmp_path, 0)
    assert once(tried, Trial(fails), tmp_path, 1) == first
    assert tried.ran == [Trial(fails)]
    assert first["attempt"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finished", "progress"]


def test_a_failed_trial_has_no_rows_and_reports_its_failure(tmp_path: Path) -> None:
    made = once(Tried(), Trial(fails=True), tmp_path, 0)
    assert (json.loads(made["rows"]), made["failure"]) == ([], "its process failed")
    assert "failed: its process failed" in (tmp_path / "progress").read_text()


def test_a_trial_whose_time_is_over_has_no_result_and_leaves_no_file(tmp_path: Path) -> None:
    class Late(Tried):
        def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
            raise TimeOverError

    assert tried_once(Late(), Trial(), tmp_path, 0) is None
    assert list((tmp_path / "finished").iterdir()) == []


def part(name: str, trials: Sequence[Any], folder: Path) -> ExperimentRun:
    return ExperimentRun(experiments()[name], trials, BenchRequest(), Claim(""), folder)


def test_rows_of_local_trials_are_written_when_each_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third trial finds the rows of two on disk. The run is then interrupted, and keeps them."""
    found: list[int] = []

    def measured(experiment: ColdCache, trial: ColdCacheTrial, worker: TrialWorker) -> Iterable[Row]:
        found.append(len(read_rows(tmp_path, "cold_opening", kinds())))
        if len(found) == 3:
            raise KeyboardInterrupt
        return [{"kind": "cold_opening", "backend": trial.backend}]

    monkeypatch.setattr(ColdCache, "run", measured)
    monkeypatch.setattr(ColdCache, "line", lambda self, trial, rows: "")
    trials = [ColdCacheTrial("lmdb-indexed-batch", seed) for seed in (1, 2, 3)]
    cold = part("cold_cache", trials, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cold.run(trials, None, quiet)
    assert found == [0, 1, 2]
    assert len(read_rows(tmp_path, "cold_opening", kinds())) == len(cold.rows) == 2


def test_rows_of_local_trials_are_written_once_with_those_that_are_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = next(claims())
    sides = (claim.subject.id, claim.yardstick.id)
    monkeypatch.setattr(
        timing, "measure", lambda names, *rest: {name: [timing.Round(0.5, 0.5, None)] for name in names}
    )
    trials = [MicrobenchTrial(sides, "default", seed) for seed in (1, 2)]
    micro = part("microbench", trials, tmp_path)
    micro.run(trials, None, quiet)
    micro.close()
    assert (micro.outcome.problems, micro.extents()) == ([], {"measurements": (4, 4)})
    written = {kind: len(read_rows(tmp_path, kind, kinds())) for kind in ("round", "benchmark", "ratio")}
    assert written == {"round": 4, "benchmark": 2, "ratio": 1}


def test_a_local_measurement_that_fails_is_a_problem_of_the_run(tmp_path: Path) -> None:
    trials = [ColdCacheTrial("no-such-backend", 1)]
    cold = part("cold_cache", trials, tmp_path)
    cold.run(trials, None, quiet)
    [problem] = cold.outcome.problems
    assert problem.startswith("a trial of openings with a cold page cache failed: ")
    assert not (tmp_path / "cold_opening").exists()


def test_a_problem_and_a_failure_fail_the_run_and_a_missed_ratio_only_a_strict_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run._conclude(BenchRequest(), {}, {}, []) == 0
    assert run._conclude(BenchRequest(), {}, {}, ["it was not measured"]) == 1
    assert "WRONG  it was not measured" in capsys.readouterr().out
    assert run._conclude(BenchRequest(), {"ratio": [MISSED]}, {}, []) == 0
    assert run._conclude(BenchRequest(strict=True), {"ratio": [MISSED]}, {}, []) == 1
    monkeypatch.setattr(run, "all_failures", lambda figures, rows: [Failure("a promise was broken", "the command")])
    capsys.readouterr()
    assert run._conclude(BenchRequest(), {}, {}, []) == 1
    assert "WRONG  a promise was broken\n  repeat it with: the command\n" in capsys.readouterr().out


@pytest.mark.parametrize(("ratio", "holds"), [(1e-6, True), (1e6, False)])
def test_a_scenario_holds_if_its_ratio_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, holds: bool
) -> None:
    @contextmanager
    def no_session(*given: object) -> Iterator[None]:
        yield None

    rows = [{"kind": "throughput", **row} for row in made_up_rows()["throughput"] if row["end_state"] == "equal"]
    subject, yardstick = sorted({str(row["backend"]) for row in rows})[:2]
    monkeypatch.setattr(run, "spark_session", no_session)
    monkeypatch.setattr(ExperimentRun, "run", lambda given, *_: given.rows.extend(rows))
    scenario = Scenario("throughput", workload="count", events=10, at_least=(AtLeast(subject, yardstick, ratio),))
    file = ScenarioFile("fast", "It is fast.", scenario)
    assert run.prove(file, seed=1, master="local[1]", runs=tmp_path) is holds
    (folder,) = tmp_path.iterdir()
    report = publish(folder)
    assert report == folder / "report" / "report.md"
    assert "scenario fast, default, seed 1" in report.read_text()


def test_a_run_is_whole_if_nothing_was_left_out() -> None:
    whole = BenchRequest()
    assert whole.is_whole
    assert replace(whole, only=stages()).is_whole
    for less in (
        replace(whole, profile="smoke"),
        replace(whole, only=stages()[1:]),
        replace(whole, backends=("lmdb-native",)),
        replace(whole, log=EventLog("events.csv", "key")),
    ):
        assert not less.is_whole


def test_a_backend_that_is_named_twice_is_measured_once() -> None:
    assert BenchRequest(backends=("lmdb", "lmdb-indexed-batch")).checked().backends == ("lmdb-indexed-batch",)
