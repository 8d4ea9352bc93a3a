"""A bench answers first: rounds of what picks rest on, then all the rest. Time is a number that the trials move on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from harness import schedule
from harness.budget import DEFAULT, NEVER, NIGHT, Deadline
from harness.experiment import Claim, Experiment, Failure, Outcome, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.registry import experiments
from harness.progress import Progress
from harness.report.figures import Figure, Figures
from harness.report.rows import Row
from harness.schedule import BenchRun, ExperimentRun
from harness.spark.gang import Gangs
from harness.spark.session import SparkFailedError
from harness.tests.clock import Clock


@dataclass(frozen=True)
class Trial:
    """One trial of ten seconds."""

    name: str


class Noting(Experiment[Trial]):
    """It notes what runs, and when. Its rows have a kind that exists, and need no columns of it."""

    trial = Trial
    placement = TrialPlacement.LOCAL
    columns = MappingProxyType({})

    def __init__(self, name: str, ran: list[tuple[str, str]], clock: Clock, rounds: Sequence[str] = ()) -> None:
        self.name = self.title = name  # type: ignore[misc]
        self.answers = bool(rounds)  # type: ignore[misc]
        self._ran, self._clock, self._rounds = ran, clock, rounds

    def plan(self, request: Request) -> list[Trial]:
        return []

    def next_round(self, trials: Sequence[Trial], rows: Sequence[Row], remaining_s: float) -> list[Trial]:
        return [Trial(self._rounds[len(rows)])] if len(rows) < len(self._rounds) else []

    def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
        self._ran.append((self.name, trial.name))
        self._clock.now += 10.0
        return [{"kind": "cold_opening", "backend": trial.name}]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        return {}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        return []


class Site:
    """Three experiments, of which two answer, in a bench without Spark."""

    def __init__(self, folder: Path, budget_s: float | None = None) -> None:
        self.ran: list[tuple[str, str]] = []
        self.shown: list[int] = []
        self.clock = Clock()
        self.folder = folder
        self.end = NEVER if budget_s is None else Deadline(self.clock.now + budget_s, self.clock)

    def part(self, name: str, trials: str, rounds: str = "") -> ExperimentRun:
        experiment = Noting(name, self.ran, self.clock, rounds)
        return ExperimentRun(experiment, list(map(Trial, trials)), Request(), Claim(""), self.folder)

    def bench(self, *parts: ExperimentRun, profile: str = DEFAULT) -> BenchRun:
        def show(rows: Rows) -> None:
            self.shown.append(sum(map(len, rows.values())))

        return BenchRun(parts, profile, Progress(), self.end, show)


def no_session() -> Any:
    raise AssertionError("no experiment here needs Spark")


def test_rounds_of_what_answers_come_before_all_others_in_turns(tmp_path: Path) -> None:
    site = Site(tmp_path)
    parts = site.part("other", "xy"), site.part("fast", "z", "ab"), site.part("safe", "", "c")
    site.bench(*parts).run(no_session)
    rounds = [("fast", "a"), ("safe", "c"), ("fast", "b")]
    assert site.ran == [*rounds, ("other", "x"), ("other", "y"), ("fast", "z")]
    assert site.shown == [2, 3]


@pytest.mark.parametrize(
    ("profile", "answer_share"), [(DEFAULT, schedule.ANSWER_SHARE), (NIGHT, schedule.NIGHT_ANSWER_SHARE)]
)
def test_rounds_end_with_their_part_of_the_time_and_the_rest_gets_what_is_left(
    profile: str, answer_share: float, tmp_path: Path
) -> None:
    site = Site(tmp_path, budget_s=1_000)
    parts = site.part("other", "x" * 200), site.part("fast", "", "a" * 200)
    # As much as all experiments of a night have together, besides the answer.
    others = sum(each.share_in(NIGHT) for each in experiments().values() if each.stage)
    for part in parts:
        cast(Any, part.experiment).share = others / 2
    site.bench(*parts, profile=profile).run(no_session)
    counts = [len([name for name, _ in site.ran if name == each]) for each in ("fast", "other")]
    assert sum(counts) == 100
    assert counts[0] == pytest.approx(100 * answer_share / (answer_share + others), abs=1)
    assert (counts[0] < 40) is (profile == NIGHT)
    assert site.ran == sorted(site.ran)


def test_later_rounds_end_with_the_part_that_takes_longest_which_has_all_that_is_left(tmp_path: Path) -> None:
    site = Site(tmp_path, budget_s=1_000)
    long, short = site.part("long", "", "abc"), site.part("short", "", "xyz")
    for part, share in ((long, 2.0), (short, 1.0)):
        cast(Any, part.experiment).share = share
    site.bench(long, short).run(no_session)
    assert [name for _, name in site.ran] == ["a", "x", "y", "b", "z", "c"]
    # Its own share would be two thirds.
    assert long.share.had_s > 0.9 * site.end.remaining_s


def test_a_short_budget_belongs_to_the_first_round(tmp_path: Path) -> None:
    site = Site(tmp_path, budget_s=100)
    parts = [site.part(name, "x" * 9) for name in "bcdefghijk"]
    for each in parts:
        cast(Any, each.experiment).share = 100.0
    site.bench(*parts, site.part("fast", "", "a" * 200)).run(no_session)
    assert site.ran[:9] == [("fast", "a")] * 9
    assert len(site.ran) == 10


def test_what_ran_in_no_round_counts_as_left_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    part = site.part("other", "xyz")
    assert part.extents() == {"trials": (0, 3)}
    part.run(part.rest(), None, lambda line: None)
    assert part.extents() == {"trials": (3, 3)}


def test_without_spark_the_local_experiments_still_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    needs_spark = site.part("spread", "x", "a")
    cast(Any, needs_spark.experiment).placement = TrialPlacement.SPREAD

    @contextmanager
    def broken() -> Iterator[Any]:
        raise SparkFailedError("Spark failed: no memory")
        yield

    bench = site.bench(needs_spark, site.part("other", "x"), site.part("fast", "", "a"))
    bench.run(broken)
    assert site.ran == [("fast", "a"), ("other", "x")]
    assert bench.problems == ["Spark failed: no memory"]


@pytest.mark.parametrize("placement", [TrialPlacement.SPREAD, TrialPlacement.GANG])
def test_an_interrupted_stage_of_spark_keeps_the_rows_that_were_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: TrialPlacement
) -> None:
    row = {"kind": "cold_opening", "backend": "lmdb-native"}

    def interrupted(*given: Any) -> Outcome:
        given[-1]([row])
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "run_trials", interrupted)
    monkeypatch.setattr(Gangs, "run", interrupted)
    part = Site(tmp_path).part("spread", "x")
    cast(Any, part.experiment).placement = placement
    with pytest.raises(KeyboardInterrupt):
        part.run(part.rest(), cast(Any, object()), lambda line: None)
    assert part.rows == part.outcome.rows == [row]
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == ["cold_opening"]


def test_throughput_crash_trials_and_openings_answer() -> None:
    assert [name for name, each in experiments().items() if each.answers] == ["throughput", "crash", "opening"]


def test_the_first_crash_trials_kill_each_backend_at_each_step_of_its_commit_once() -> None:
    crash = experiments()["crash"]
    trials = crash.plan(Request())
    first = crash.next_round(trials, [], 100.0)
    places = [(trial.backend, trial.fault.place) for trial in first]
    assert len(places) == len(set(places)) < len(trials) / 4
    assert {backend for backend, _ in places} == {trial.backend for trial in trials}
    assert {"task.after_log_commit", "indexed_batch.before_write", "native.after_commit"} <= {at for _, at in places}
    assert {trial.durability for trial in first} == {"CHANGELOG", "PROCESS", "DISK"}
    ran = [{"trial": trial.id} for trial in first[:9]]
    assert crash.next_round(trials, ran, 100.0) == []
    assert set(crash.rest(trials, ran)) == set(trials) - set(first[:9])
    assert crash.extents(trials, Outcome(ran)) == {"trials": (9, len(set(trials)))}


def test_the_smallest_stores_are_opened_once_in_the_first_round_then_as_often_as_planned() -> None:
    opening = experiments()["opening"]
    trials = opening.plan(Request())
    first = opening.next_round(trials, [], 100.0)
    least = min(trial.records for trial in trials)
    assert {(trial.records, trial.repeats, trial.first) for trial in first} == {(least, 1, 0)}
    rows = [{"backend": name, "records": least, "repeat": 0} for trial in first for name in trial.backends]
    (second,) = opening.next_round(trials, rows, 100.0)
    assert (second.records, second.repeats, second.first) == (least, 4, 1)
    assert second in opening.rest(trials, rows)
    rows += [{"backend": name, "records": least, "repeat": at} for name in second.backends for at in range(1, 5)]
    assert opening.next_round(trials, rows, 100.0) == []
    assert {trial.records for trial in opening.rest(trials, rows)} == {trial.records for trial in trials} - {least}
    assert opening.extents(trials, Outcome(rows))["openings"][0] == len(rows)
