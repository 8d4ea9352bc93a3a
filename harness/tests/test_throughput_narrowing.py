from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.budget import Deadline, TimeOverError
from harness.experiment import Outcome, Request
from harness.experiments.throughput.experiment import Throughput
from harness.experiments.throughput.measurement import Configuration
from harness.experiments.throughput.plan import (
    CELLS,
    TRIAL_S,
    ThroughputTrial,
    narrowing_trial,
    relative_width,
    shares,
    throughput_trials,
)
from harness.experiments.throughput.plan import (
    ThroughputGrid as Grid,
)
from harness.experiments.throughput.report import width_sentences
from harness.report.figures import interval, repeats_of_a_narrower_interval
from harness.spark import gang
from harness.spark.gang import MEASUREMENTS, run_gangs
from harness.spark.runner import SparkSite
from stores.interface import Durability
from stores.registry import backends

NAMES = ("lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native", "rocksdb-indexed-batch")
AN_HOUR = 3_600.0


def planned(*levels: Durability, repeats: int = 5) -> list[ThroughputTrial]:
    chosen = levels or (Durability.CHANGELOG,)
    grid = Grid("count", 60_000, durabilities=chosen, repeats=repeats, backends=NAMES, work_s=2.0)
    return throughput_trials([grid, Grid("flights", 100)], 7)


def row(configuration: Configuration, spread: float, laps: int = 4) -> dict[str, Any]:
    rate = 100_000 * (1 + spread * (configuration.repeat % 5 - 2) / 4)
    return {
        "kind": "throughput",
        "backend": configuration.backend,
        "durability": str(configuration.durability),
        "workload": configuration.workload,
        "records_per_commit": configuration.records_per_commit,
        "partitions": configuration.partitions,
        "repeat": configuration.repeat,
        "records_per_s": rate,
        "laps": laps,
    }


def rows_of(trials: list[ThroughputTrial], spreads: dict[str, float]) -> list[dict[str, Any]]:
    return [row(each, spreads.get(each.backend, 0.0)) for each in trials[0].configurations]


def test_the_widest_intervals_get_enough_repeats_to_become_narrower() -> None:
    trials = planned()
    more = narrowing_trial(trials, rows_of(trials, {"lmdb-native": 0.5, "sqlite-native": 0.3}), AN_HOUR)
    assert more is not None
    assert Counter(each.backend for each in more.configurations) == {"lmdb-native": 4, "sqlite-native": 4}
    assert [each.repeat for each in more.configurations] == [5, 5, 6, 6, 7, 7, 8, 8]
    assert more.laps == (4,) * 8
    assert (more.workload, more.events, more.partitions, more.work_s) == ("count", 60_000, 2, 2.0)


def test_a_later_round_repeats_the_widest_interval_with_new_repeats() -> None:
    trials = planned()
    rows = rows_of(trials, dict.fromkeys(NAMES, 0.3) | {"lmdb-native": 0.5})
    first = narrowing_trial(trials, rows, TRIAL_S + 4 * trials[0].measurement_s)
    assert first is not None
    assert {each.backend for each in first.configurations} == {"lmdb-native"}
    rows += [row(each, 0.0) for each in first.configurations]
    second = narrowing_trial(trials, rows, AN_HOUR)
    assert second is not None
    assert "lmdb-native" not in {each.backend for each in second.configurations}
    assert len(set(second.configurations)) == len(second.configurations)
    assert not set(second.configurations) & set(trials[0].configurations)


def test_a_round_takes_a_few_cells_of_all_levels_as_far_as_there_is_time() -> None:
    trials = planned(Durability.CHANGELOG, Durability.DISK)
    rows = rows_of(trials, dict.fromkeys(NAMES, 0.2))
    for each in rows:
        if each["durability"] == "DISK":
            each["records_per_s"] = 1_000 * (1 + each["repeat"])
    more = narrowing_trial(trials, rows, AN_HOUR)
    assert more is not None
    assert len({(each.backend, each.durability) for each in more.configurations}) == CELLS
    assert {each.durability for each in more.configurations} == {Durability.DISK}
    one = narrowing_trial(trials, rows, TRIAL_S + 7 * trials[0].measurement_s)
    assert one is not None
    assert len(one.configurations) == 4
    assert narrowing_trial(trials, rows, TRIAL_S + 3 * trials[0].measurement_s) is None


def test_the_rounds_are_plain_until_every_planned_repeat_is_there() -> None:
    trials = planned()
    rows = rows_of(trials, dict.fromkeys(NAMES, 0.5))
    assert narrowing_trial(trials, rows[:-1], AN_HOUR) is None
    assert narrowing_trial(trials[1:], rows, AN_HOUR) is None
    assert Throughput().next_round(trials, rows, AN_HOUR) != []


def test_narrow_intervals_end_the_rounds() -> None:
    trials = planned()
    assert narrowing_trial(trials, rows_of(trials, dict.fromkeys(NAMES, 0.01)), AN_HOUR) is None


class Measured:
    """Measurements of two seconds each, by a clock of its own, whose rates spread for one backend."""

    def __init__(self, spread: float) -> None:
        self.now, self.spread = 1_000.0, spread
        self.trials: list[ThroughputTrial] = []

    def __call__(self, spark: None, trial: ThroughputTrial, source: None, *, deadline: Deadline, **_: Any) -> Outcome:
        self.trials.append(trial)
        outcome = Outcome()
        for each in trial.configurations:
            outcome.count(MEASUREMENTS, not deadline.passed, 1)
            if not deadline.passed:
                self.now += 2.0
                outcome.rows.append(row(each, self.spread if each.backend == "lmdb-native" else 0.0))
        return outcome


def test_time_that_is_left_goes_to_the_widest_intervals_and_is_no_part_of_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Measured(spread=0.5)
    monkeypatch.setattr(gang, "measure", measured)
    monkeypatch.setattr(gang, "trial_events", lambda *given: None)
    plan = planned()
    until = Deadline(measured.now + 120.0, lambda: measured.now)
    outcome = run_gangs(cast(Any, None), Throughput(), plan, 7, None, lambda line: None, until)
    assert measured.trials[:2] == plan
    further = [each.backend for trial in measured.trials[2:] for each in trial.configurations]
    assert set(further) == {"lmdb-native"}
    assert len(further) >= 4
    assert outcome.extent == {MEASUREMENTS: (34, 34)}
    assert len(outcome.rows) == 34 + len(further)


def test_a_plan_that_the_budget_cuts_is_not_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(spread=0.5)
    monkeypatch.setattr(gang, "measure", measured)
    monkeypatch.setattr(gang, "trial_events", lambda *given: None)
    until = Deadline(measured.now + 40.0, lambda: measured.now)
    outcome = run_gangs(cast(Any, None), Throughput(), planned(), 7, None, lambda line: None, until)
    assert len(measured.trials) <= 2
    (tried, number) = outcome.extent[MEASUREMENTS]
    assert tried < number == 34


@pytest.mark.parametrize(("count", "more"), [(5, 9), (8, 9), (9, 12), (12, 15)])
def test_fewer_further_repeats_leave_the_interval_as_wide(count: int, more: int) -> None:
    assert repeats_of_a_narrower_interval(count) == more
    ends = [interval(range(number)) for number in (count, more - 1, more)]
    assert [each and each.low for each in ends[:2]] == [ends[0] and ends[0].low] * 2
    assert ends[2] is not None
    assert ends[2].low > ends[0].low if ends[0] else True


def test_a_width_is_a_share_of_the_median() -> None:
    assert relative_width([90.0, 95.0, 100.0, 105.0, 110.0]) == 0.2
    assert relative_width([1.0, 2.0]) == 0.0


def test_the_page_says_how_wide_the_intervals_are() -> None:
    trials = planned()
    rows = [{**each, "records": 1_000, "end_state": "equal"} for each in rows_of(trials, {"lmdb-native": 0.5})]
    figures = Throughput().figures({"throughput": rows})["throughput"]
    (sentence,) = width_sentences(figures)
    assert sentence.startswith("5 cells have an interval of records/s, from 0.0% to 50.0% ")
    assert "lmdb-native at CHANGELOG" in sentence
    assert width_sentences(Throughput().figures({"throughput": rows[:4]})["throughput"]) == []


@pytest.mark.parametrize("name", ["default", "night"])
def test_measurements_that_picks_rest_on_come_first_and_have_most_of_the_time(name: str) -> None:
    trials = Throughput().plan(Request(name, 1))
    assert [trial.work_s > 0 for trial in trials] == [True] + [False] * (len(trials) - 1)
    cells = dict.fromkeys((str(each.durability), each.records_per_commit) for each in trials[0].configurations)
    assert list(cells)[:2] == [("CHANGELOG", 1_000), ("CHANGELOG", 10_000)]
    repeats = Counter(replace(each, repeat=0) for each in trials[0].configurations)
    assert set(repeats.values()) == {5}
    assert {each.backend for each in repeats} == set(backends())
    found = shares(trials)
    assert found[0] == pytest.approx(0.9)
    assert sum(found) == pytest.approx(1.0)
    others = {replace(each, repeat=0) for trial in trials[1:] for each in trial.configurations}
    assert not others & set(repeats)


@pytest.mark.parametrize(("here", "elsewhere"), [(True, False), (False, True)])
def test_a_measurement_that_the_end_of_the_time_has_cut_in_one_partition_has_no_result_in_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, elsewhere: bool
) -> None:
    """Both partitions go on together: each takes part in the same gatherings."""
    [trial, *_] = planned()
    gathered: list[str] = []

    class Met:
        number = 1

        def wait(self) -> None:
            self.gather("")

        def gather(self, text: str) -> list[str]:
            gathered.append(text)
            other = {"records": 10, "seconds": 1.0, "failure": "", "over": elsewhere}
            return [json.dumps(other) if text else "", text]

    def work(*given: Any, **more: Any) -> dict[str, Any]:
        more["meet"]()
        if here:
            raise TimeOverError
        return {"records": 10, "seconds": 1.0, "state_digest": ""}

    monkeypatch.setattr(gang, "run", work)
    partition = gang._Partition(trial, cast(Any, Met()), SparkSite(tmp_path, tmp_path, ""), tmp_path)
    assert list(partition.measured(0, trial.configurations[0], 2)) == []
    assert [bool(text) for text in gathered] == [False, False, True]
    assert json.loads(gathered[-1])["over"] is here


@pytest.mark.parametrize(("work_s", "lap_s", "laps"), [(2.0, 1.0, 3), (2.0, 1.2, 2), (2.0, 0.1, 21), (2.0, 9.0, 1)])
def test_the_laps_take_the_asked_time_without_the_warm_up(work_s: float, lap_s: float, laps: int) -> None:
    assert gang._laps(work_s, lap_s) == laps
    assert work_s <= (laps - 0.1) * lap_s
