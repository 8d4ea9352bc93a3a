from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.experiment import Outcome
from harness.experiments.opening.experiment import Opening, OpeningTrial
from harness.experiments.throughput.plan import ThroughputGrid as Grid
from harness.experiments.throughput.plan import ThroughputTrial, throughput_trials
from harness.spark import events, gang
from harness.spark.expected import expected_state
from harness.spark.gang import Gangs, measure, trial_events
from harness.spark.runner import run_trials
from harness.spark.session import session
from harness.tests.shared_jvm import SharedJvm
from harness.workloads.event_log import EventLog
from stores.errors import ConfigError
from stores.interface import Durability

TWO = ("rocksdb-indexed-batch", "memory-indexed-batch")
EVENTS = 2_000


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm) -> Iterator[SparkSession]:
    with session("throughput test", "local[2]") as started:
        yield started


def quiet(line: str) -> None:
    """Discard reports of progress."""


def one_trial(grid: Grid) -> ThroughputTrial:
    (trial,) = throughput_trials([grid], 1)
    return trial


def measured(spark: SparkSession, grid: Grid, said: list[str] | None = None) -> Outcome:
    trial = one_trial(grid)
    return measure(spark, trial, trial_events(spark, trial, 1), say=quiet if said is None else said.append)


def test_every_configuration_has_a_row_and_ends_as_spark_sql_computes(spark: SparkSession) -> None:
    said: list[str] = []
    began = perf_counter()
    outcome = measured(spark, Grid("count", EVENTS, records_per_commit=(10, 100), backends=TWO), said)
    lasted_s = perf_counter() - began
    assert outcome.problems == []
    assert sum(row["took_s"] for row in outcome.rows) <= lasted_s
    assert {(row["backend"], row["records_per_commit"]) for row in outcome.rows} == {
        (backend, every) for backend in TWO for every in (10, 100)
    }
    for row in outcome.rows:
        assert (row["kind"], row["end_state"], row["partitions"], row["seed"]) == ("throughput", "equal", 2, 1)
        assert EVENTS * 9 // 10 <= row["records"] < EVENTS
        assert row["records_per_s"] > 0
        assert 0 < row["seconds"] < row["took_s"] <= lasted_s
        assert 0 < row["commit_p50_us"] <= row["commit_p99_us"] <= row["commit_max_us"]
        assert row["store_commit_p50_us"] <= row["commit_p50_us"]
    assert len(said) == 4


@pytest.mark.long
def test_a_log_in_laps_ends_as_spark_sql_computes(spark: SparkSession) -> None:
    (trial,) = throughput_trials([Grid("flights_by_hour", 200, records_per_commit=(50,), backends=TWO)], 1)
    trial = replace(trial, laps=(3, 3))
    source = trial_events(spark, trial, 1)
    outcome = measure(spark, trial, source, say=quiet)
    assert outcome.problems == []
    assert [row["end_state"] for row in outcome.rows] == ["equal", "equal"]
    warm_up = sum(row["count"] // 10 for row in source.groupBy("partition").count().collect())
    assert {row["records"] for row in outcome.rows} == {3 * 200 - warm_up}


@pytest.mark.parametrize("right", [True, False])
def test_a_further_round_over_the_same_events_compares_no_end_state_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    compared: list[str] = []

    def state(workload: str, source: DataFrame) -> DataFrame:
        compared.append(workload)
        return expected_state(workload, source) if right else expected_state(workload, source.limit(10))

    monkeypatch.setattr(gang, "expected_state", state)
    gangs = Gangs(spark, 1, None, quiet)
    trial = one_trial(Grid("count", EVENTS, backends=TWO[1:]))
    outcomes = [gangs.run([trial]) for _ in range(2)]
    assert compared == ["count"]
    ends = [row["end_state"] for outcome in outcomes for row in outcome.rows]
    assert ends == (["equal"] * 2 if right else ["different"] * 2)
    assert [len(outcome.problems) for outcome in outcomes] == ([0, 0] if right else [2, 2])


def test_a_log_of_laps_has_every_event_once_in_each_lap_and_none_at_an_earlier_time(spark: SparkSession) -> None:
    (trial,) = throughput_trials([Grid("count", 100, backends=TWO)], 1)
    source = trial_events(spark, trial, 1)
    once, thrice = (
        [(row["partition"], row["seq"], bytes(row["key"]), row["timestamp_ms"]) for row in frame.collect()]
        for frame in (source, events.repeated(source, 3).orderBy("partition", "seq"))
    )
    assert len(thrice) == 3 * len(once)
    for partition in (0, 1):
        keys = [key for of, _, key, _ in once if of == partition]
        mine = [row for row in thrice if row[0] == partition]
        assert [row[2] for row in mine] == 3 * keys
        assert [row[3] for row in mine] == sorted(row[3] for row in mine)
        assert len({row[1] for row in mine}) == len(mine)


@pytest.mark.long
def test_laps_that_are_given_are_made_and_nothing_is_left_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trial = replace(one_trial(Grid("count", EVENTS, backends=TWO[:1])), laps=(2,))
    outcome = measure(spark, trial, trial_events(spark, trial, 1), say=quiet)
    (row,) = outcome.rows
    assert row["laps"] == 2
    assert 2 * EVENTS - EVENTS // 10 <= row["records"] < 2 * EVENTS
    trials = [OpeningTrial(TWO[:1], Durability.CHANGELOG, 1_000, 1, 1)]
    openings = run_trials(spark, Opening(), trials, tmp_path / "run")
    assert outcome.problems == openings.problems == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("workload", "backend"),
    [
        ("flights", TWO[0]),
        pytest.param("flights_by_hour", TWO[1], marks=pytest.mark.long),
        pytest.param("aircraft_sessions", TWO[1], marks=pytest.mark.long),
        ("aircraft_sessions_batches", TWO[0]),
        pytest.param("flights_batches", TWO[1], marks=pytest.mark.long),
        pytest.param("flights_by_hour_batches", TWO[1], marks=pytest.mark.long),
    ],
)
def test_the_flights_end_as_spark_sql_computes(spark: SparkSession, workload: str, backend: str) -> None:
    """The backends themselves are compared with Spark SQL above: the state of a workload is the same in each."""
    outcome = measured(spark, Grid(workload, EVENTS, backends=(backend,)))
    assert outcome.problems == []
    assert [row["end_state"] for row in outcome.rows] == ["equal"]


def test_a_users_own_events_end_as_spark_sql_computes(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("user", "page"), *((f"u{number % 7}", f"p,{number}") for number in range(500))])
    source = events.event_log(spark, EventLog(str(path), key="user"), 2)
    outcome = measure(spark, one_trial(Grid("event_log", None, backends=TWO[1:])), source, say=quiet)
    assert outcome.problems == []
    assert [row["end_state"] for row in outcome.rows] == ["equal"]


def test_a_state_that_differs_in_one_key_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(workload: str, source: DataFrame) -> DataFrame:
        state = expected_state(workload, source)
        last = state.where("partition = 1").agg(F.max("key")).collect()[0][0]
        return state.where(F.col("key") != F.lit(bytes(last)))

    monkeypatch.setattr(gang, "expected_state", wrong)
    outcome = measured(spark, Grid("count", EVENTS, backends=TWO[1:]))
    assert [row["end_state"] for row in outcome.rows] == ["different"]
    assert len(outcome.problems) == 1


def test_a_measurement_that_fails_is_a_problem_and_the_others_go_on(spark: SparkSession) -> None:
    trial = one_trial(Grid("count", EVENTS, backends=TWO))
    bad, good = sorted(trial.configurations, key=lambda each: TWO.index(each.backend))
    trial = replace(trial, configurations=(replace(bad, options=(("no_such_option", 1),)), good))
    outcome = measure(spark, trial, trial_events(spark, trial, 1), say=quiet)
    assert [row["backend"] for row in outcome.rows] == [TWO[1]]
    assert len(outcome.problems) >= 1


def test_partitions_that_cannot_run_at_once_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError):
        measured(spark, Grid("count", EVENTS, partitions=(3,), backends=TWO))


def test_a_workload_without_events_of_its_own_asks_for_them(spark: SparkSession) -> None:
    with pytest.raises(ConfigError):
        measured(spark, Grid("event_log", 10, backends=TWO))


def test_opening_trials_come_back_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    trials = [OpeningTrial((backend,), Durability.CHANGELOG, 2_000, 2, 1) for backend in ("lmdb-indexed-batch", TWO[0])]
    outcome = run_trials(spark, Opening(), trials, tmp_path)
    assert outcome.problems == []
    assert [(row["kind"], row["backend"], row["repeat"]) for row in outcome.rows] == [
        ("opening", trial.backends[0], repeat) for trial in trials for repeat in range(2)
    ]
