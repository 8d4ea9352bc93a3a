"""Stateful queries beside Spark's own, for real: the same events, rows and state for every subject, and restarts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from harness.experiment import TrialWorker
from harness.experiments.stateful import experiment
from harness.experiments.stateful.experiment import Stateful
from harness.experiments.stateful.trial import JVM, OURS, OURS_IN_BATCHES, SUBJECTS, StatefulTrial
from harness.spark import stateful
from harness.spark.session import session
from harness.spark.stateful import Batches, StatefulQuery, keys_in
from harness.spark.stateful_subjects import state_of
from harness.tests import quick_stateful
from stores.errors import StoreError

KEYS, PARTITIONS = 30, 2


@pytest.fixture(scope="module")
def spark(joined_jvm: object) -> Iterator[SparkSession]:
    with session("stateful-bench", settings={"spark.sql.shuffle.partitions": str(PARTITIONS)}) as spark:
        yield spark


def test_the_batches_of_a_seed_are_the_same_and_the_fill_has_each_key_once(tmp_path: Path) -> None:
    made = [Batches(tmp_path / name, KEYS, seed, 2) for name, seed in (("a", 7), ("b", 7), ("c", 8))]
    found = [
        ([keys_in(batch) for batch in each.fill()], keys_in(each.next(500)), keys_in(each.next(9))) for each in made
    ]
    assert found[0] == found[1]
    assert found[0][0] == [(KEYS, KEYS)]
    assert found[0][1] == (500, KEYS)
    files = [(each.made[-1] / "0.parquet").read_bytes() for each in made]
    assert files[0] == files[1] != files[2]


OTHERS = [pytest.param(subject, marks=pytest.mark.spark) for subject in (OURS_IN_BATCHES, JVM)]


@pytest.mark.parametrize("subject", [OURS, *OTHERS])
def test_a_query_goes_on_where_it_was_stopped_and_its_state_has_every_event(
    spark: SparkSession, tmp_path: Path, subject: str
) -> None:
    batches = Batches(tmp_path / "batches", KEYS, 3, PARTITIONS)
    batches.fill()
    batches.next(100)
    asked = StatefulQuery(spark, subject, tmp_path / "query", PARTITIONS)
    for number, batch in enumerate(batches.made):
        asked.start()
        found = asked.feed(batch)
        asked.stop()
        assert found["batch_id"] == number
        assert found["seconds"] > 0
        assert found["load"]["cpu_s"] > 0
    counts = {row["key"]: row["count"] for row in state_of(subject, spark, asked.folder).collect()}
    assert len(counts) == KEYS
    assert sum(counts.values()) == KEYS + 100


def test_a_query_that_gives_out_too_few_rows_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(subject: str, events: DataFrame, *_: Any) -> DataFrame:
        return events.groupBy("key").count().where("key <> 'key-000000003'")

    monkeypatch.setattr(stateful, "counted", lossy)
    asked = StatefulQuery(spark, JVM, tmp_path / "query", PARTITIONS)
    asked.start()
    try:
        with pytest.raises(StoreError):
            asked.feed(Batches(tmp_path / "batches", KEYS, 3, PARTITIONS).fill()[0])
    finally:
        asked.stop()


@pytest.mark.parametrize(("message", "goes_on"), [(stateful.NOT_CONNECTED, True), ("another", False)])
def test_a_query_is_started_again_only_if_its_first_python_process_was_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, goes_on: bool
) -> None:
    failed = tmp_path / "failed"

    def fails_once(frames: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not failed.exists():
            failed.touch()
            raise RuntimeError(message)
        yield from frames

    def late(subject: str, events: DataFrame, *_: Any) -> DataFrame:
        return events.mapInArrow(fails_once, "key string").groupBy("key").count()

    monkeypatch.setattr(stateful, "counted", late)
    batches = Batches(tmp_path / "batches", KEYS, 3, 1)
    asked = StatefulQuery(spark, JVM, tmp_path / "query", PARTITIONS)
    asked.start()
    try:
        if goes_on:
            assert [asked.feed(batch)["batch_id"] for batch in (*batches.fill(), batches.next(10))] == [0, 1]
            failed.unlink()
        with pytest.raises(StoreError, match=message):
            asked.feed(batches.next(10))
    finally:
        asked.stop()


def test_the_summary_of_a_state_tells_counts_apart_that_have_the_same_sum(spark: SparkSession) -> None:
    one = spark.createDataFrame([("a", 1), ("b", 2)], "key string, count long")
    other = spark.createDataFrame([("a", 2), ("b", 1)], "key string, count long")
    assert stateful._summary(one)[:2] == stateful._summary(other)[:2] == [2, 3]
    assert stateful._summary(one) != stateful._summary(other)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "MEASURED", quick_stateful.MEASURED)
    monkeypatch.setattr(experiment, "RESTARTED", quick_stateful.RESTARTED)


@pytest.mark.spark
@pytest.mark.usefixtures("_quick")
def test_every_subject_counts_the_same_events(tmp_path: Path) -> None:
    trial = StatefulTrial(KEYS, 5, (40,), rounds=1)
    rows = list(Stateful().run(trial, TrialWorker(tmp_path / "work")))
    timed = [row for row in rows if row["kind"] == "stateful"]
    assert sorted((row["subject"], row["batch_events"]) for row in timed) == sorted((each, 40) for each in SUBJECTS)
    states = [row for row in rows if row["kind"] == "stateful_state"]
    assert {row["subject"] for row in states} == set(SUBJECTS)
    events = KEYS + 40 * quick_stateful.WARM_BATCHES + (40 + 40)
    assert {(row["num_keys"], row["num_events"]) for row in states} == {(KEYS, events)}
    assert Stateful().failures({}, {"stateful_state": states}) == []
    assert not (tmp_path / "work").exists()


@pytest.mark.spark
@pytest.mark.usefixtures("_quick")
def test_a_query_goes_on_after_its_driver_was_killed(tmp_path: Path) -> None:
    trial = StatefulTrial(KEYS, 5, (40, 60), rounds=2, restarts=1, subjects=(OURS, JVM))
    lines: list[str] = []
    rows = list(Stateful().run(trial, TrialWorker(tmp_path / "work", say=lines.append)))
    filled, *rounds = (line for line in lines if OURS in line)
    assert filled.startswith(f"{KEYS} keys: the state of {OURS} was filled in")
    assert [line.split(": ")[1] for line in rounds] == ["round 1/2", "round 2/2"] * 2
    timed = [row for row in rows if row["kind"] == "stateful" and row["subject"] == OURS]
    assert [(row["round"], row["batch_events"]) for row in timed] == [(0, 40), (1, 40), (0, 60), (1, 60)]
    restarts = [row for row in rows if row["kind"] == "stateful_restart"]
    assert [(row["subject"], row["copies"]) for row in restarts] == [(OURS, "lost"), (OURS, "kept"), (JVM, None)]
    assert all(row["ready_s"] > row["start_s"] > 0 < row["first_batch_s"] for row in restarts)
    for row in rows:
        assert set(row) - {"kind"} == set(Stateful().columns[row["kind"]])
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    assert not (tmp_path / "work").exists()
