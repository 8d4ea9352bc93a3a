"""Measurements that picks rest on come in rounds: a short one first, whose rates give the others their length."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.budget import Deadline, TimeOverError
from harness.experiment import Outcome, Request
from harness.experiments.needs import NeedSoFar, RivalCell
from harness.experiments.throughput import experiment
from harness.experiments.throughput.experiment import Throughput
from harness.experiments.throughput.measurement import Configuration
from harness.experiments.throughput.plan import TRIAL_S, Rounds, ThroughputTrial, throughput_trials
from harness.experiments.throughput.plan import ThroughputGrid as Grid
from harness.experiments.throughput.report import width_sentences
from harness.spark import gang
from harness.spark.gang import Gangs
from harness.spark.runner import SparkSite
from harness.tests.clock import Clock
from harness.workloads.event_log import EventLog
from stores.interface import Durability
from stores.registry import backends

NAMES = ("lmdb-indexed-batch", "lmdb-native", "sqlite-indexed-batch", "sqlite-native", "rocksdb-indexed-batch")
AN_HOUR = 3_600.0


def planned(*levels: Durability, repeats: int = 5) -> list[ThroughputTrial]:
    chosen = levels or (Durability.CHANGELOG,)
    grid = Grid("count", 60_000, durabilities=chosen, repeats=repeats, backends=NAMES, work_s=2.0)
    return throughput_trials([grid, Grid("flights", 100)], 7)


def row(configuration: Configuration, laps: int = 1, rate: float = 100_000.0) -> dict[str, Any]:
    """The row of a measurement at a constant rate, without its warm-up."""
    return {
        "kind": "throughput",
        "backend": configuration.backend,
        "durability": str(configuration.durability),
        "workload": configuration.workload,
        "records_per_commit": configuration.records_per_commit,
        "partitions": configuration.partitions,
        "repeat": configuration.repeat,
        "records": round(60_000 * (laps - 0.1)),
        "seconds": 60_000 * (laps - 0.1) / rate,
        "records_per_s": rate,
        "laps": laps,
        "end_state": "equal",
    }


def rows_of(trial: ThroughputTrial, rates: dict[str, float] | None = None) -> list[dict[str, Any]]:
    pairs = zip(trial.configurations, trial.laps, strict=True)
    return [row(each, laps, (rates or {}).get(each.backend, 100_000.0)) for each, laps in pairs]


def next_of(trials: list[ThroughputTrial], rows: list[dict[str, Any]], remaining_s: float = AN_HOUR) -> ThroughputTrial:
    (round_,) = Throughput().next_round(trials, rows, remaining_s)
    return round_


def test_the_first_round_processes_the_events_once_on_every_backend_at_every_level() -> None:
    trials = planned(*Durability)
    first = next_of(trials, [])
    assert set(first.laps) == {1}
    assert {each.repeat for each in first.configurations} == {0}
    cells = Counter((each.backend, each.durability) for each in first.configurations)
    assert cells == Counter((name, level) for name in NAMES for level in Durability)
    assert (first.workload, first.events, first.partitions) == ("count", 60_000, 2)


def test_the_fastest_backend_of_a_level_determines_the_laps_of_all_rivals() -> None:
    trials = planned(Durability.CHANGELOG, Durability.DISK)
    rows = rows_of(next_of(trials, []), {"lmdb-native": 120_000.0})
    for each in rows:
        if each["durability"] == "DISK":
            each["seconds"] *= 10
    second = next_of(trials, rows)
    found = {(str(each.durability), laps) for each, laps in zip(second.configurations, second.laps, strict=True)}
    # A lap of the fastest backend takes 0.5 s, and 5 s on disk; a tenth of the first one is a warm-up.
    assert found == {("CHANGELOG", 5), ("DISK", 1)}
    third = next_of(trials, [*rows, *rows_of(second, {"sqlite-native": 500_000.0})])
    assert Counter(third.laps) == Counter(second.laps)


@pytest.mark.parametrize(("lap_s", "laps"), [(1.0, 3), (1.2, 2), (0.1, 21), (9.0, 1)])
def test_the_laps_take_the_asked_time_without_the_warm_up(lap_s: float, laps: int) -> None:
    trials = planned()
    second = next_of(trials, rows_of(next_of(trials, []), dict.fromkeys(NAMES, 60_000 / lap_s)))
    assert set(second.laps) == {laps}
    assert trials[0].work_s <= (laps - 0.1) * lap_s


def test_each_round_has_a_number_and_an_order_of_its_own_and_rivals_follow_each_other() -> None:
    trials = planned(*Durability)
    orders = set()
    for number in range(4):
        round_ = Rounds(trials[0], []).round(number)
        assert {each.repeat for each in round_.configurations} == {number}
        levels = [each.durability for each in round_.configurations]
        assert sum(level != before for level, before in zip(levels[1:], levels, strict=False)) == len(Durability) - 1
        orders.add(tuple((each.backend, each.durability) for each in round_.configurations))
        assert round_ == Rounds(trials[0], []).round(number)
    assert len(orders) == 4


def test_a_round_that_the_time_has_cut_is_not_repeated() -> None:
    trials = planned()
    first = next_of(trials, [])
    second = next_of(trials, rows_of(first)[:2])
    assert {each.repeat for each in second.configurations} == {1}
    assert {each.backend for each in second.configurations} == set(NAMES)


def test_without_a_budget_the_rounds_are_those_of_the_plan() -> None:
    trials = planned(repeats=3)
    rows: list[dict[str, Any]] = []
    while more := Throughput().next_round(trials, rows, math.inf):
        rows += rows_of(more[0])
    assert Counter(each["backend"] for each in rows) == dict.fromkeys(NAMES, 3)


def test_a_plan_without_picks_has_no_round() -> None:
    trials = Throughput().plan(Request("smoke"))
    assert Throughput().next_round(trials, [], AN_HOUR) == []
    assert Throughput().rest(trials, []) == trials


def test_after_the_rounds_come_other_workloads_and_the_rounds_that_the_plan_has_besides() -> None:
    trials = planned()
    rows = rows_of(next_of(trials, []))
    rows += rows_of(next_of(trials, rows))
    other, *rounds = Throughput().rest(trials, rows)
    assert other == trials[1]
    assert [{each.repeat for each in round_.configurations} for round_ in rounds] == [{2}, {3}, {4}]
    assert all(set(round_.laps) == {4} for round_ in rounds)


def test_what_was_tried_are_measurements_of_the_plan_in_whatever_rounds() -> None:
    trials = planned(repeats=2)
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        rows += rows_of(next_of(trials, rows))
    some = [each for each in rows if each["backend"] != "lmdb-native" or each["repeat"] == 0]
    total = 2 * len(NAMES) + len(backends())
    assert Throughput().extents(trials, Outcome(rows)) == {"measurements": (2 * len(NAMES), total)}
    assert Throughput().extents(trials, Outcome(some)) == {"measurements": (2 * len(NAMES) - 1, total)}


def test_trials_follow_each_other_until_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, measured = Clock(), list[ThroughputTrial]()

    def measure(spark: None, trial: ThroughputTrial, source: None, *, deadline: Deadline, **_: Any) -> Outcome:
        measured.append(trial)
        clock.now += 100
        return Outcome()

    monkeypatch.setattr(gang, "measure", measure)
    monkeypatch.setattr(Gangs, "_source", lambda *given: (None, {}))
    trials = [*planned(), *planned(Durability.DISK)]
    gangs = Gangs(cast(Any, None), 7, None, lambda line: None)
    gangs.run(trials, Deadline(clock.now + 200 + TRIAL_S, clock))
    assert measured == trials[:2]


def test_the_page_says_how_wide_the_intervals_are() -> None:
    rows = []
    for number in range(5):
        for each in Rounds(planned()[0], []).round(number).configurations:
            spread = 1 + 0.5 * (number - 2) / 4 if each.backend == "lmdb-native" else 1.0
            rows.append(row(each, 4, 100_000 * spread))
    figures = Throughput().figures({"throughput": rows})["throughput"]
    (sentence,) = width_sentences(figures)
    assert sentence.startswith("5 cells have an interval of records/s, from 0.0% to 50.0% ")
    assert "lmdb-native at CHANGELOG" in sentence
    assert width_sentences(Throughput().figures({"throughput": rows[:4]})["throughput"]) == []


@pytest.mark.parametrize("name", ["default", "night"])
def test_picks_rest_on_every_backend_and_no_other_trial_measures_their_cells(name: str) -> None:
    trials = Throughput().plan(Request(name, 1))
    assert [trial.work_s > 0 for trial in trials] == [True] + [False] * (len(trials) - 1)
    cells = dict.fromkeys((str(each.durability), each.records_per_commit) for each in trials[0].configurations)
    assert [size for _, size in cells] == [1_000, 1_000, 1_000, 10_000]
    assert [level for level, _ in cells] == ["CHANGELOG", "PROCESS", "DISK", "CHANGELOG"]
    repeats = Counter(replace(each, repeat=0) for each in trials[0].configurations)
    assert set(repeats.values()) == {5}
    assert {each.backend for each in repeats} == set(backends())
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
            other = {"records": 10, "seconds": 1.0, "waited_s": 0.0, "failure": "", "over": elsewhere}
            return [json.dumps(other) if text else "", text]

    def work(*given: Any, **more: Any) -> dict[str, Any]:
        more["meet"]()
        if here:
            raise TimeOverError
        return {"records": 10, "seconds": 1.0, "waited_s": 0.0, "state_digest": ""}

    monkeypatch.setattr(gang, "run", work)
    site = SparkSite(tmp_path, tmp_path, "")
    partition = gang._Partition(trial, cast(Any, Met()), site, tmp_path, frozenset(), None)
    assert list(partition.measured(0, trial.configurations[0], 2)) == []
    assert [bool(text) for text in gathered] == [False, False, True]
    assert json.loads(gathered[-1])["over"] is here


def test_the_rate_in_a_line_of_progress_is_that_of_the_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both leave out the time in which a partition had no processor."""
    [trial, *_] = planned()

    class Alone:
        number = 0

        def wait(self) -> None:
            pass

        def gather(self, text: str) -> list[str]:
            return [text, text]

    figures = {"records": 10_000, "seconds": 5.0, "waited_s": 3.0, "state_digest": ""}
    lines: list[str] = []
    monkeypatch.setattr(gang, "run", lambda *given, **more: figures)
    monkeypatch.setattr(gang, "note_progress", lambda path, line: lines.append(line))
    partition = gang._Partition(
        trial, cast(Any, Alone()), SparkSite(tmp_path, tmp_path, ""), tmp_path, frozenset(), None
    )
    list(partition.measured(0, trial.configurations[0], 2))
    assert experiment.records_per_s([figures, figures]) == 10_000.0
    assert lines[-1].endswith(": 10,000 records/s")


def test_further_rounds_have_the_cells_whose_needs_are_undecided_until_all_are_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = planned(Durability.CHANGELOG, Durability.DISK)
    rows = rows_of(next_of(trials, []))
    two = ("lmdb-native", "sqlite-native")
    needs = [
        NeedSoFar("decided", "CHANGELOG", True),
        NeedSoFar("undecided", "DISK", False, tuple(RivalCell(name, "DISK", "count", 1_000) for name in two)),
        NeedSoFar("not planned", "PROCESS", False),
    ]
    monkeypatch.setattr(experiment, "needs_so_far", lambda figures: needs)
    # The short first round counts until each rival has a longer one.
    second = next_of(trials, rows)
    assert len(second.configurations) == len(rows)
    assert {each.repeat for each in second.configurations} == {1}
    rows += rows_of(second)
    round_ = next_of(trials, rows)
    assert {(each.backend, str(each.durability)) for each in round_.configurations} == {(name, "DISK") for name in two}
    measured = [each for each in rows if (each["backend"], each["durability"]) != ("rocksdb-indexed-batch", "DISK")]
    with_unmeasured = next_of(trials, measured)
    assert {each.backend for each in with_unmeasured.configurations} == {*two, "rocksdb-indexed-batch"}
    needs[1] = NeedSoFar("undecided", "DISK", True)
    assert Throughput().next_round(trials, rows, AN_HOUR) == []
    assert next_of(trials, rows, math.inf).laps == (4,) * (len(rows) // 2)


def test_a_later_round_has_the_cells_of_which_all_rivals_fit_into_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = planned(*Durability)
    rows = rows_of(next_of(trials, []))
    rows += [{**each, "took_s": 4.0} for each in rows_of(next_of(trials, rows))]
    rivals = {"CHANGELOG": NAMES, "PROCESS": NAMES[:2], "DISK": NAMES[:3]}
    needs = [
        NeedSoFar("", level, False, tuple(RivalCell(name, level, "count", 1_000) for name in names))
        for level, names in rivals.items()
    ]
    monkeypatch.setattr(experiment, "needs_so_far", lambda figures: needs)
    for remaining_s, levels in ((40.0, 3), (39.0, 2), (20.0, 2), (19.0, 1), (8.0, 1)):
        fitting = sorted(rivals, key=lambda level: len(rivals[level]))[:levels]
        found = next_of(trials, rows, remaining_s).configurations
        assert Counter(str(each.durability) for each in found) == {level: len(rivals[level]) for level in fitting}
    assert Throughput().next_round(trials, rows, 7.0) == []


@pytest.mark.parametrize(("name", "answers"), [("smoke", False), ("default", True), ("night", True)])
def test_picks_rest_on_a_users_own_events_but_in_a_glance(name: str, answers: bool) -> None:
    trials = Throughput().plan(Request(name, log=EventLog("events.csv", "key")))
    assert [trial.workload for trial in trials] == ["event_log"]
    assert bool(Throughput().next_round(trials, [], AN_HOUR)) is answers
