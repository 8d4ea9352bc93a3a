"""The end states of the workloads agree with the results of Spark SQL for the same events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from harness.spark.events import event_log, flights, generated
from harness.spark.expected import differences, expected_state
from harness.spark.session import session
from harness.tests.fake_task import run
from harness.tests.shared_jvm import SharedJvm
from harness.workloads.event_log import EventLog
from harness.workloads.nexmark_queries import QUERIES
from harness.workloads.tasks import AircraftSessions, Count, FlightsByHour, workload
from harness.workloads.workload import Event
from stores.errors import ConfigError

Row = tuple[int, str, bytes, bytes]


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm) -> Iterator[SparkSession]:
    with session("expected", settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        yield spark


def processed(name: str, events: DataFrame) -> list[Row]:
    """The state after a task of each partition has worked through its events."""
    inputs: defaultdict[int, list[Event]] = defaultdict(list)
    for row in events.collect():
        inputs[row.partition].append(Event(bytes(row.key), bytes(row.value), row.timestamp_ms))
    return [
        (partition, store, key, value)
        for partition, batch in inputs.items()
        for store, state in run(workload(name), batch).states.items()
        for key, value in state.items()
    ]


def state(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, "partition int, store string, key binary, value binary")


def write_log(path: Path) -> None:
    lines = [f'{"äbc"[number % 3]},{number * 7 % 11},"text, {number}"' for number in range(100)]
    path.write_text("\n".join(["user,at,word", *lines]) + "\n")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("flights", marks=pytest.mark.long),
        pytest.param("flights_by_hour", marks=pytest.mark.long),
        "aircraft_sessions",
        "count",
        "event_log",
        *(
            query.name if query.name == "nexmark_q5" else pytest.param(query.name, marks=pytest.mark.long)
            for query in QUERIES
        ),
    ],
)
def test_processing_leaves_what_sql_computes_from_the_same_events(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    write_log(tmp_path / "log.csv")
    makers: dict[str, Callable[[], DataFrame]] = {
        "flights": lambda: flights(spark, 3, 3_000),
        "flights_by_hour": lambda: flights(spark, 3, 5_000, late_ms=FlightsByHour.late_ms, seed=7),
        "aircraft_sessions": lambda: flights(spark, 3, 5_000, late_ms=AircraftSessions.late_ms, seed=7),
        "count": lambda: generated(spark, Count(keys=200), 1, 5_000, 3),
        "event_log": lambda: event_log(spark, EventLog(str(tmp_path / "log.csv"), "user", "at"), 3),
        **{query.name: partial(generated, spark, type(query)(events_per_s=100), 3, 4_000, 3) for query in QUERIES},
    }
    events = makers[name]()
    rows = processed(name, events)
    assert {store for _, store, _, _ in rows} == set(workload(name).store_names)
    assert differences(state(spark, rows), expected_state(name, events)).collect() == []


def test_every_kind_of_difference_is_found_and_nothing_else(spark: SparkSession) -> None:
    events = generated(spark, Count(keys=50), 1, 500, 2)
    expected: list[Row] = [
        (row.partition, row.store, bytes(row.key), bytes(row.value))
        for row in expected_state("count", events).collect()
    ]
    changed, lost, doubled, *kept = expected
    flipped: Row = (*changed[:3], changed[3][:-1] + bytes([changed[3][-1] ^ 1]))
    strange: Row = (0, "counts", b"nobody", b"x")
    moved: Row = (1 - doubled[0], *doubled[1:])
    actual = state(spark, [flipped, strange, doubled, doubled, moved, *kept])
    found = {
        (row.partition, bytes(row.key)): (row.difference, row.actual, row.expected)
        for row in differences(actual, state(spark, expected)).collect()
    }
    assert found == {
        (changed[0], changed[2]): ("different", flipped[3], changed[3]),
        (lost[0], lost[2]): ("missing", None, lost[3]),
        (0, b"nobody"): ("unexpected", b"x", None),
        (doubled[0], doubled[2]): ("repeated", doubled[3], doubled[3]),
        (moved[0], moved[2]): ("unexpected", moved[3], None),
    }


def test_a_single_wrong_sum_among_all_aircraft_and_routes_is_found(spark: SparkSession) -> None:
    events = flights(spark, 2, 3_000)
    rows = processed("flights", events)
    partition, store, key, value = rows[len(rows) // 2]
    rows[len(rows) // 2] = (partition, store, key, value.replace(b",", b"0,", 1))
    (found,) = differences(state(spark, rows), expected_state("flights", events)).collect()
    assert (found.partition, found.store, bytes(found.key), found.difference) == (partition, store, key, "different")


def test_a_workload_that_no_sql_is_written_for_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError):
        expected_state("unheard-of", state(spark, []))
