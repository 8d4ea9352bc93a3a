"""A bench keeps its budget: deadlines are shared out, nothing begins after them, and what was left out is counted.

Time is a number that the tests move on.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.answer.results import all_figures, all_pages
from harness.budget import (
    BUDGETS_S,
    NEVER,
    NIGHT,
    Budget,
    Deadline,
    TimeOverError,
    budget_seconds,
    budget_text,
    check_time,
    end_of,
    ended_by,
    fair_order,
    part_of,
)
from harness.cli import main
from harness.experiment import Claim, Experiment, Failure, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.opening import experiment as opening
from harness.experiments.opening.experiment import OpeningTrial
from harness.experiments.registry import experiments
from harness.experiments.stateful.experiment import GOAL_KEYS, Stateful
from harness.experiments.stateful.trial import StatefulTrial
from harness.processes.child import MeasurementFailedError, run_program
from harness.processes.load import LOAD_COLUMNS, median_load
from harness.report.coverage import left_out, left_out_sentence, sentence_of, summary_of
from harness.report.figures import Figure, Figures
from harness.report.rows import Row
from harness.schedule import PROBLEMS_MAX, ExperimentRun, run_local
from harness.spark.runner import taken_by
from harness.tests.clock import Clock
from stores.errors import ConfigError
from stores.interface import Durability


@dataclass(frozen=True)
class Trial:
    """One trial of some seconds."""

    name: str
    seconds: float = 10.0


class Slow(Experiment[Trial]):
    """Its trials move the clock on."""

    name = title = "slow"
    trial = Trial
    placement = TrialPlacement.LOCAL
    columns = MappingProxyType({"slow": MappingProxyType({"name": str})})

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def plan(self, request: Request) -> list[Trial]:
        return []

    def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
        self.clock.now += trial.seconds
        return [{"kind": "slow", "name": trial.name}]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        return {}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        return []


def quiet(line: str) -> None:
    """Discard reports of progress."""


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5m", 90), ("none", None)])
def test_a_budget_is_a_time_with_a_unit(given: str, seconds: float | None) -> None:
    assert budget_seconds(given) == seconds
    assert budget_seconds(budget_text(seconds)) == seconds


@pytest.mark.parametrize("given", ["0s", "0m", "", "10", "m", "-5m", "10 minutes", "infs", "1e3s", "None"])
def test_a_budget_of_nothing_and_one_without_a_unit_are_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        budget_seconds(given)


def test_a_bench_refuses_a_budget_of_nothing_before_it_makes_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--budget", "0s", "--runs", str(tmp_path / "runs")]) == 2
    assert "'0s'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_killed_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    waited: list[float | None] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waited.append(timeout)
        if timeout is None:
            return kept(process)
        clock.now += timeout
        raise subprocess.TimeoutExpired(process.args, timeout)

    kept = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    sleeping = [sys.executable, "-c", "input()"]
    with ended_by(Deadline(clock.now + 10, clock)):
        assert run_program(sleeping, tmp_path, 4.0, {}).status is None
        with pytest.raises(TimeOverError):
            run_program(sleeping, tmp_path, 60.0, {})
    assert run_program(sleeping, tmp_path, 60.0, {}).status is None
    assert [timeout for timeout in waited if timeout is not None] == [4.0, 6.0, 60.0]


def test_a_trial_that_the_end_of_the_time_has_cut_is_left_out_and_no_failure() -> None:
    class Endless(Slow):
        def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
            found = list(super().run(trial, worker))
            check_time()
            return found

    clock = Clock()
    kept: list[Row] = []
    outcome = run_local(
        Endless(clock), [Trial(name) for name in "abc"], quiet, Deadline(clock.now + 15, clock), kept.extend
    )
    assert ([row["name"] for row in outcome.rows], outcome.problems) == (["a"], [])
    assert kept == outcome.rows
    assert outcome.extent == {"trials": (1, 3)}


class Failing(Slow):
    def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
        if trial.name == "b":
            raise MeasurementFailedError("it failed")
        return super().run(trial, worker)


def test_rows_of_other_trials_are_kept_if_one_fails() -> None:
    outcome = run_local(Failing(Clock()), [Trial(name) for name in "abc"], quiet)
    assert [row["name"] for row in outcome.rows] == ["a", "c"]
    assert outcome.problems == [f"a trial of {Slow.title} failed: it failed"]
    assert outcome.extent == {"trials": (2, 3)}


def test_no_further_trial_runs_once_several_have_failed() -> None:
    clock = Clock()
    trials = [Trial(name) for name in "b" * PROBLEMS_MAX + "a"]
    outcome = run_local(Failing(clock), trials, quiet, Deadline(clock.now + 10**6, clock))
    assert len(outcome.problems) == PROBLEMS_MAX
    assert (outcome.rows, outcome.extent) == ([], {"trials": (0, PROBLEMS_MAX + 1)})


def test_openings_before_the_end_of_the_time_are_kept_and_the_one_that_it_cuts_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = iter(range(100))

    def figures(*arguments: object, **more: object) -> dict[str, object]:
        if next(steps) == 5:
            raise TimeOverError
        return {"restore_s": 1.0}

    monkeypatch.setattr(opening, "figures_in", figures)
    trial = OpeningTrial(("lmdb-indexed-batch",), Durability.DISK, 100, 5, 1)
    # It is filled; its first opening has three steps; the second one ends in its second step.
    assert [row["repeat"] for row in opening.run_opening(trial)] == [0]


def test_the_budget_has_time_for_the_report() -> None:
    clock = Clock()
    assert end_of(600, clock).remaining_s == 585
    assert end_of(60, clock).remaining_s == 54
    assert not end_of(None, clock).passed
    assert end_of(None, clock).remaining_s == math.inf
    assert part_of(NEVER, 0.0) is NEVER
    assert part_of(replace(end_of(600, clock), at=clock() - 5), 0.5).remaining_s == 0


def test_what_one_experiment_leaves_over_goes_to_the_others() -> None:
    clock = Clock()
    budget = Budget(Deadline(clock.now + 100, clock), {"a": 1, "b": 1, "c": 2})
    assert budget.deadline("a").remaining_s == 25
    clock.now += 10
    assert budget.deadline("b").remaining_s == 30
    clock.now += 50
    assert budget.deadline("c").remaining_s == 40


def test_an_experiment_that_takes_too_long_shortens_the_others_and_not_the_budget() -> None:
    clock = Clock()
    budget = Budget(Deadline(clock.now + 100, clock), {"a": 1, "b": 1, "c": 1})
    budget.deadline("a")
    clock.now += 90
    assert budget.deadline("b").remaining_s == 5
    clock.now += 90
    assert budget.deadline("c").passed


def test_without_a_budget_no_deadline_passes() -> None:
    budget = Budget(NEVER, {"a": 1, "b": 2})
    assert [budget.deadline(name).remaining_s for name in ("a", "b")] == [math.inf, math.inf]


def test_a_profile_gives_some_experiments_another_share_than_they_have_in_others() -> None:
    scale = experiments()["scale"]
    assert scale.share_in("default") == scale.share != scale.night_share == scale.share_in(NIGHT)
    crash = experiments()["crash"]
    assert crash.share_in("default") == crash.share == crash.share_in(NIGHT)


def test_a_night_whose_answer_takes_ten_minutes_has_the_time_for_a_trial_of_each_experiment() -> None:
    clock = Clock()
    night = [each for each in experiments().values() if each.stage]
    budget = Budget(end_of(BUDGETS_S[NIGHT], clock), {each: each.share_in(NIGHT) for each in night})
    clock.now += 600
    for each in night:
        remaining_s = budget.deadline(each).remaining_s
        assert each.cost_s(each.plan(Request(NIGHT))[0]) < remaining_s, each.name
        clock.now += remaining_s


def test_a_night_has_stateful_queries_with_the_keys_of_the_goals_and_leaves_time_to_those_with_few() -> None:
    clock = Clock()
    night = [each for each in experiments().values() if each.stage]
    budget = Budget(end_of(BUDGETS_S[NIGHT], clock), {each: each.share_in(NIGHT) for each in night})
    clock.now += 600
    for each in takewhile(lambda each: each.name != "stateful", night):
        clock.now += budget.deadline(each).remaining_s
    deadline = budget.deadline(experiments()["stateful"])
    began: list[tuple[int, float]] = []

    class Timed(Stateful):
        def run(self, trial: StatefulTrial, worker: TrialWorker) -> Iterable[Row]:
            began.append((trial.keys, worker.deadline.remaining_s - self.cost_s(trial)))
            clock.now += max(0.0, worker.deadline.remaining_s)
            return []

    run_local(Timed(), Timed().plan(Request(NIGHT)), quiet, deadline)
    assert [keys for keys, _ in began] == [GOAL_KEYS, 2_000]
    # A cost has one round; further ones of 100,000 keys may take two minutes.
    assert began[0][1] > 120


def test_a_trial_leaves_time_to_others_only_if_it_can_begin_then() -> None:
    class Leaving(Slow):
        def cost_s(self, trial: Trial) -> float:
            return trial.seconds

        def kept_s(self, others: Sequence[Trial]) -> float:
            return sum(each.seconds for each in others)

        def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
            rest_s.append(worker.deadline.remaining_s)
            return super().run(trial, worker)

    for spare_s, expected in ((25, [15, 15]), (15, [15])):
        clock, rest_s = Clock(), list[float]()
        run_local(Leaving(clock), [Trial("a"), Trial("b")], quiet, Deadline(clock.now + spare_s, clock))
        assert rest_s == expected


def test_an_experiment_whose_share_is_too_short_for_any_trial_says_so(tmp_path: Path) -> None:
    clock = Clock()
    part = ExperimentRun(Stateful(), Stateful().plan(Request()), Request(), Claim("bench"), tmp_path)
    part.run(part.trials, None, quiet, Deadline(clock.now + 51, clock))
    assert part.share.is_too_short
    facts = {"left_out": left_out({"stateful": part.extents()}), "too_short": {"stateful": part.share}}
    said = sentence_of(facts, "stateful")
    assert "51 s" in said
    assert "127 s" in said
    assert any(said in page.absent for page in all_pages(all_figures({}), {}, facts))


def test_what_was_left_out_whole_is_said_without_others() -> None:
    assert left_out_sentence({"rounds": (0, 11)}) == "none of 11 rounds was tried within the budget."
    assert left_out_sentence({"a": (0, 2), "b": (1, 3)}).startswith("0 of 2 a and 1 of 3 b tried within the budget")


def test_no_local_trial_begins_after_the_deadline_and_those_left_out_are_counted() -> None:
    clock = Clock()
    trials = [Trial(name) for name in "abcdef"]
    outcome = run_local(Slow(clock), trials, quiet, Deadline(clock.now + 25, clock))
    assert [row["name"] for row in outcome.rows] == ["a", "b", "c"]
    assert outcome.extent == {"trials": (3, 6)}
    assert clock.now == 1_030


def test_what_earlier_trials_have_decided_is_not_tried_and_not_missing() -> None:
    class Deciding(Slow):
        def still_needed(self, trial: Trial, rows: Sequence[Row]) -> Trial | None:
            shown.append([row["name"] for row in rows])
            return {"b": None, "c": Trial("narrower")}.get(trial.name, trial)

        def extent(self, trial: Trial) -> tuple[str, int]:
            return "letters", len(trial.name)

    shown: list[list[str]] = []
    outcome = run_local(Deciding(Clock()), [Trial(name) for name in "abcd"], quiet)
    assert [row["name"] for row in outcome.rows] == ["a", "narrower", "d"]
    assert outcome.extent == {"letters": (len("anarrowerd"), len("anarrowerd"))}
    assert shown == [[], ["a"], ["a"], ["a", "narrower"]]


def test_each_row_of_a_local_trial_has_the_load_unless_it_has_measured_its_own() -> None:
    class Watched(Slow):
        def run(self, trial: Trial, worker: TrialWorker) -> Iterable[Row]:
            return [{"kind": "slow", "name": "a"}, {"kind": "slow", "name": "b", "cpu_per_wall": 7.0}]

    first, second = run_local(Watched(Clock()), [Trial("a")], quiet).rows
    assert set(LOAD_COLUMNS) <= first.keys()
    assert first["cpu_per_wall"] < 7.0 == second["cpu_per_wall"]
    assert first["load_average"] == second["load_average"] >= 0


def test_the_load_of_several_measurements_is_their_median_as_far_as_it_is_known() -> None:
    rows = [{"cpu_per_wall": each, "others_share": share} for each, share in ((1.0, None), (3.0, 0.5), (2.0, 0.1))]
    found = median_load(rows)
    assert (found["cpu_per_wall"], found["others_share"], found["load_average"]) == (2.0, 0.3, None)


def test_every_prefix_of_a_fair_order_is_a_fair_sample() -> None:
    cells = list(product(range(5), "abcdef", range(3)))
    order = fair_order(cells, lambda cell: (cell[:2], cell[1]), seed=4)
    assert sorted(order) == sorted(cells)
    assert order == fair_order(cells, lambda cell: (cell[:2], cell[1]), seed=4)
    assert order != fair_order(cells, lambda cell: (cell[:2], cell[1]), seed=5)
    assert {letter for _, letter, _ in order[:6]} == set("abcdef")
    for round_ in range(3):
        assert len({cell[:2] for cell in order[30 * round_ : 30 * (round_ + 1)]}) == 30
    counts = Counter(letter for _, letter, _ in order[:15])
    assert max(counts.values()) - min(counts.values()) <= 2


def test_two_tasks_take_each_trial_once_in_order(tmp_path: Path) -> None:
    first, second = (taken_by(task, tmp_path, [0.0] * 5, NEVER) for task in (0, 1))
    assert [next(first), next(second), next(second), next(first)] == [0, 1, 2, 3]
    assert list(second) == [4]
    assert list(first) == []


def test_a_repeated_task_gets_its_own_trials_again_and_none_of_another(tmp_path: Path) -> None:
    first, second = (taken_by(task, tmp_path, [0.0] * 6, NEVER) for task in (0, 1))
    assert [next(first), next(second), next(first)] == [0, 1, 2]
    assert list(taken_by(0, tmp_path, [0.0] * 6, NEVER)) == [0, 2, 3, 4, 5]
    assert list(second) == []


def test_after_the_deadline_a_task_takes_no_trial_and_keeps_those_it_has(tmp_path: Path) -> None:
    clock = Clock()
    deadline = Deadline(clock.now + 1, clock)
    task = taken_by(0, tmp_path, [0.0] * 4, deadline)
    assert [next(task), next(task)] == [0, 1]
    clock.now += 1
    assert list(task) == []
    assert list(taken_by(0, tmp_path, [0.0] * 4, deadline)) == [0, 1]
    assert list(taken_by(1, tmp_path, [0.0] * 4, deadline)) == []


def test_a_trial_that_cannot_fit_is_left_out_and_shorter_ones_are_taken(tmp_path: Path) -> None:
    clock = Clock()
    task = taken_by(0, tmp_path, [5.0, 50.0, 5.0], Deadline(clock.now + 20, clock))
    assert list(task) == [0, 2]


def test_coverage_shows_the_numbers_of_tried_and_planned_cases() -> None:
    extents = {"crash": {"trials": (52, 594)}, "iofaults": {"points": (1_204, 27_275), "mutants": (3, 3)}, "x": {}}
    cut = left_out(extents)
    assert cut == {"crash": {"trials": (52, 594)}, "iofaults": {"points": (1_204, 27_275)}}
    assert left_out_sentence(cut["iofaults"]).startswith("1,204 of 27,275 points tried")


def test_the_pages_of_a_cut_run_say_what_it_left_out() -> None:
    facts = {"left_out": {"crash": {"trials": (52, 594)}, "readers": {"trials": (0, 9)}}}
    pages = {page.name: page for page in all_pages(all_figures({}), {}, facts)}
    assert any("52 of 594 trials" in sentence for sentence in pages["crashes"].shows)
    assert "52 of 594 trials" in pages["crashes"].absent
    assert not any("within the budget" in sentence for sentence in pages["throughput"].shows)
    assert "52 of 594 trials" in summary_of(facts)
    assert summary_of({}) == summary_of({"left_out": {}}) == ""
