"""Trials of stateful queries under faults: their plan, their checks, and one of each kind run for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.budget import NIGHT
from harness.checkers.counting import (
    leading_stores,
    wrong_records,
    wrong_restores,
    wrong_rows,
    wrong_state,
    wrong_timers,
)
from harness.experiment import Request, TrialWorker
from harness.experiments.query_faults import experiment
from harness.experiments.query_faults import faults as query_faults
from harness.experiments.query_faults import notes as notes_module
from harness.experiments.query_faults.experiment import COUNT, WORKLOADS, QueryFaults, QueryGrid, QueryTrial, problems
from harness.experiments.query_faults.faults import FAULTS, KINDS
from harness.experiments.query_faults.notes import Notes
from harness.mutants import QUERY_TRIALS
from harness.processes.child import MeasurementFailedError
from harness.spark.query_faults import WORKLOADS as QUERIES
from stores.errors import ConfigError
from stores.registry import ALIASES, backends
from stores.spark.local_state import COMMITTED

ANSWER = [["a", 0, 2], ["b", 0, 1], ["a", 1, 5]]
STATE = [["counts", "a", "5"], ["counts", "b", "1"], ["batches", "6e", b"2".hex()], ["batches", "6e", b"2".hex()]]

TRIED = (
    ("stalled attempt", COUNT),
    ("machine lost", "flights_by_hour"),
    ("batch fails halfway", "timers"),
    ("driver killed between batches", "aircraft_sessions"),
)
"""The faults that are tried here. Those that kill at failpoints take minutes: a night has them, and `make scenario`."""


def test_rows_that_are_missing_doubled_or_different_are_found() -> None:
    assert wrong_rows(ANSWER, ANSWER[::-1]) == ""
    for sink in (ANSWER[1:], [*ANSWER, ANSWER[0]], [*ANSWER[1:], ["a", 0, 3]], []):
        assert wrong_rows(ANSWER, sink)
    assert wrong_rows([], [])


def test_a_state_of_another_batch_or_with_a_batch_counted_twice_is_found() -> None:
    assert wrong_state(ANSWER, STATE, 2, 1) == wrong_state(ANSWER[::-1], STATE, 2, 1) == ""
    first = [["counts", "a", "2"], ["counts", "b", "1"], ["batches", "6e", b"1".hex()], ["batches", "6e", b"1".hex()]]
    assert wrong_state(ANSWER, first, 2, 0) == ""
    assert wrong_state(ANSWER, [["counts", "c", "1"], *STATE], 2, 1)
    assert wrong_state(ANSWER, STATE, 2, 0)
    assert wrong_state(ANSWER, STATE[1:], 2, 1)
    assert wrong_state(ANSWER, STATE[:-1], 2, 1)
    assert wrong_state(ANSWER, [*STATE[:-1], ["batches", "6e", b"3".hex()]], 2, 1)


def test_records_that_a_partition_lacks_or_has_twice_are_wrong() -> None:
    records = {b"a": b"1", b"b": b"2"}
    state: list[list[Any]] = [["large", key.hex(), value.hex(), None] for key, value in records.items()] * 2
    assert wrong_records(state, "large", records, 2) == ""
    assert "lacks 1" in wrong_records(state[1:], "large", records, 2)
    assert "has 1" in wrong_records([*state, ["large", b"c".hex(), b"3".hex(), None]], "large", records, 2)
    assert "lacks 1 records, and has 1" in wrong_records(
        [["large", b"a".hex(), b"9".hex(), None], *state[1:]], "large", records, 2
    )
    assert wrong_records(state, "large", records, 1)


def test_a_timer_that_did_not_fire_or_fired_twice_is_found() -> None:
    registered = [["a", 0, 7], ["a", 1, 8], ["b", 1, 9]]
    fired = [["a", 1, 7], ["b", 2, 9]]
    state: list[list[Any]] = [["fired", "a", "1", None], ["_times", '"a"', "", 8], ["_times", '"b"', "", 9]]
    assert wrong_timers(fired, registered, state, 1) == ""
    assert wrong_timers(fired, registered, [["_times", '"a"', "", 7]], 0) == ""
    assert wrong_timers(fired, registered, state, 2)
    assert wrong_timers(fired, registered, state[:-1], 1)
    assert wrong_timers(fired, registered, state[1:], 1)
    assert wrong_timers(fired, registered, [["fired", "a", "2", None], *state[1:]], 1)
    assert wrong_timers(fired, registered, [*state, ["_times", '"a"', "", 7]], 1)


def test_a_store_ahead_of_its_log_is_found() -> None:
    append = {"pid": 1, "at": 5, "partition": 0, "version": 3}
    commit = {"pid": 1, "at": 6, "path": "/local/p00000/0", "version": 3}
    assert leading_stores([commit], [append]) == leading_stores([commit], [append, append | {"at": 7}]) == ""
    for wrong in ({"at": 4}, {"version": 4}, {"pid": 2}, {"path": "/local/p00001/0"}):
        assert leading_stores([commit | wrong], [append])


def test_a_restore_of_more_or_less_than_a_copy_lacks_is_found() -> None:
    before = [{"path": "/b/p0", "version": number} for number in range(3)] + [{"path": "/a/p1", "version": 3}]
    right: list[dict[str, Any]] = [
        {"path": "/b/p0", "partition": 0, "versions": 1},
        {"path": "/b/p1", "partition": 1, "versions": 4},
    ]
    assert wrong_restores(before, right, "/b", 3, "/a") == ""
    assert wrong_restores(before, [right[0] | {"versions": 4}], "/b", 3, "/a")
    assert wrong_restores(before, [right[1] | {"versions": 0}], "/b", 3, "/a")
    for elsewhere in ("/a/p0", "/c/p1"):
        assert wrong_restores(before, [right[1] | {"path": elsewhere}], "/b", 3, "/a")


def test_a_night_has_every_fault_and_every_mutant_and_default_runs_take_turns() -> None:
    night = QueryFaults().plan(Request(NIGHT))
    assert {trial.fault for trial in night if trial.workload == COUNT} == set(FAULTS)
    assert {trial.mutant for trial in night} == {"", *QUERY_TRIALS}
    for workload in WORKLOADS:
        faults = {trial.fault for trial in night if trial.workload == workload}
        assert all(faults & set(kind) for kind in KINDS)
    full = {trial.backend for trial in night if trial.fault == "log disk full" and trial.workload == COUNT}
    assert full == {name for name in ALIASES.values() if backends()[name].persistent}
    plans = [QueryFaults().plan(Request("default", seed)) for seed in range(1, 16)]
    assert {len(plan) for plan in plans} == {2}
    assert {trial.fault for plan in plans for trial in plan if trial.workload == COUNT} == set(FAULTS)
    assert {trial.workload for plan in plans for trial in plan} == set(WORKLOADS)
    assert QueryFaults().plan(Request("smoke")) == []
    assert QueryFaults().plan(Request("night", backends=("memory-indexed-batch",))) == []


def test_the_table_names_the_query_of_each_trial_and_shows_first_what_went_wrong() -> None:
    row = dict.fromkeys(QueryFaults.columns["query_fault"]) | {
        **dict.fromkeys(("backend", "meaning", "mutant", "detail", "repeat_command"), ""),
        "fault": "machine lost",
        "workload": "timers",
        "seed": 1,
        "result": "valid",
        "expected": "valid",
    }
    rows = {"query_fault": [row | {"result": "anomaly"}, row | {"workload": COUNT}]}
    figures = QueryFaults().figures(rows)
    [table] = QueryFaults().tables(figures, rows)
    assert [line[0] for line in table.rows] == [COUNT, "timers"]
    assert list(table.notable) == [1]
    [failure] = QueryFaults().failures(figures, rows)
    assert "timers" in failure.sentence


def test_a_trial_that_restarts_drivers_is_begun_only_if_there_is_more_time() -> None:
    def cost_s(fault: str) -> float:
        return QueryFaults().cost_s(QueryTrial(fault, "rocksdb-indexed-batch"))

    assert cost_s("driver killed in a batch") > cost_s("driver killed between batches") > cost_s("stalled attempt")
    assert cost_s("stalled attempt") > cost_s("batch fails halfway")


def test_each_fault_is_of_one_kind_and_each_query_has_its_name() -> None:
    assert sorted(fault for kind in KINDS for fault in kind) == sorted(FAULTS)
    assert WORKLOADS.keys() == QUERIES.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"faults": ("worker kiled",)},
        {"faults": "worker killed"},
        {"faults": ("worker killed",), "backends": ("rocks",)},
        {"faults": ("worker killed",), "workloads": ("counts",)},
        {},
        {"faults": ("worker killed",), "seeds": 0},
    ],
)
def test_a_mistake_in_a_scenario_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueryGrid(**wrong).plan(1)


@pytest.mark.spark
@pytest.mark.parametrize(("fault", "workload"), TRIED)
def test_a_query_under_a_fault_gives_the_answer_of_spark_sql(fault: str, workload: str, tmp_path: Path) -> None:
    names = list(ALIASES.values())[:3]
    trial = QueryTrial(fault, names[TRIED.index((fault, workload)) % len(names)], workload=workload)
    [row] = QueryFaults().run(trial, TrialWorker(tmp_path / "trial"))
    assert (row["result"], row["detail"]) == ("valid", "")


@pytest.mark.spark
def test_a_store_that_commits_before_its_log_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "KILLED_AT", (COMMITTED,))  # Each batch shows it, so one kill is enough.
    trial = QueryTrial("worker killed", "rocksdb-indexed-batch", 1, "state-before-log")
    [row] = QueryFaults().run(trial, TrialWorker(tmp_path / "trial"))
    assert row["result"] == "anomaly"
    assert "before its log had it" in row["detail"]


def noted(folder: Path, **lines: list[dict[str, Any]]) -> Notes:
    notes = Notes(folder)
    for kind, facts in lines.items():
        for each in facts:
            notes.add(kind, each)
    return notes


def figures(errors: tuple[str, ...] = (), versions: tuple[int, ...] = (1,)) -> dict[str, Any]:
    return {"rows": 3, "wrong": [], "versions": versions, "errors": errors}


def found(name: str, notes: Notes, given: dict[str, Any], batches: int = 2, **changed: Any) -> list[str]:
    fault = replace(FAULTS[name], partitions=2, **changed)
    return problems(fault, QueryTrial(name, "rocksdb"), given, notes, batches, "/b", "/a")


def test_a_trial_whose_fault_did_not_strike_shows_nothing(tmp_path: Path) -> None:
    notes = noted(tmp_path)
    with pytest.raises(MeasurementFailedError):
        found("worker killed", notes, figures())
    notes.once("killed 0")
    assert found("worker killed", notes, figures()) == []


def test_a_trial_reports_what_its_driver_found_and_an_answer_without_rows(tmp_path: Path) -> None:
    notes = noted(tmp_path)
    notes.once("killed 0")
    assert found("worker killed", notes, figures() | {"wrong": ["2 rows missing"]}) == ["2 rows missing"]
    assert found("worker killed", notes, figures() | {"rows": 0})


def test_a_trial_finds_a_missing_version_and_a_store_that_leads(tmp_path: Path) -> None:
    commit = {"path": "/b/p00000/0", "version": 0}
    append = {"partition": 0, "version": 0, "result": "first", "zombie": False}
    notes = noted(tmp_path, appends=[append], commits=[commit])
    notes.once("killed 0")
    assert found("worker killed", notes, figures()) == []
    assert found("worker killed", notes, figures(), batches=3)
    notes.add("commits", commit | {"version": 1})
    assert found("worker killed", notes, figures())


def test_a_query_may_fail_only_as_often_and_with_the_words_of_its_fault(tmp_path: Path) -> None:
    notes = noted(tmp_path, filled=[{"bytes": 1}])
    full = "No space left on device"
    assert found("log disk full", notes, figures((full,))) == []
    for errors in ((), (full, full), ("another",)):
        assert found("log disk full", notes, figures(errors))
    assert found("local disk full", notes, figures()) == []


def test_a_zombie_that_was_accepted_is_found(tmp_path: Path) -> None:
    refused = {"version": 2, "partition": 1, "zombie": True, "result": "ProducerFencedError"}
    notes = noted(tmp_path, appends=[refused, refused | {"zombie": False, "result": "first"}])
    notes.once("zombie 2 ended")
    assert found("stalled attempt", notes, figures()) == []
    notes.add("appends", refused | {"result": "not first"})
    assert found("stalled attempt", notes, figures())


def test_an_attempt_that_did_not_stall_long_enough_is_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the batches after it come late. Its version is then the newest, and is not refused."""
    monkeypatch.setattr(notes_module, "WAIT_S", 0.0)
    monkeypatch.setattr(query_faults, "_is_zombie", [])
    context: Any = SimpleNamespace(version=3, partition=query_faults.ZOMBIE_PARTITION)
    for woken in (False, True):
        notes = Notes(tmp_path / str(woken))
        if woken:
            notes.once("wake 3")
        query_faults._stall(query_faults.Faulty(len, str(tmp_path), "stalled attempt", 2), context, notes)
        assert query_faults._is_zombie == [3] * woken


def test_a_failed_batch_that_is_computed_by_too_many_or_too_few_is_found(tmp_path: Path) -> None:
    notes = noted(tmp_path, calls=[{"version": version} for version in (1, 1, 2, 2)])
    notes.once("failed halfway")
    error = ("this partition fails on purpose",)
    assert found("batch fails halfway", notes, figures(error))
    notes.add("calls", {"version": 2})
    assert found("batch fails halfway", notes, figures(error)) == []
    notes.add("calls", {"version": 2})
    assert found("batch fails halfway", notes, figures(error))


def test_after_the_loss_of_a_machine_the_first_restore_of_each_partition_counts(tmp_path: Path) -> None:
    append = {"partition": 0, "version": 0, "result": "first", "zombie": False}
    notes = noted(tmp_path, appends=[append], commits=[{"path": "/b/p00000/0", "version": 0}])
    notes.add("restores", {"path": "/a/p00001/0", "partition": 1, "versions": 9})
    notes.once("lost")
    notes.add("lost", {})
    notes.add("restores", {"path": "/b/p00000/0", "partition": 0, "versions": 1})
    assert found("machine lost", notes, figures()) == ["only 1 partitions went on"]
    notes.add("restores", {"path": "/b/p00001/0", "partition": 1, "versions": 2})
    notes.add("restores", {"path": "/b/p00001/0", "partition": 1, "versions": 0})
    assert found("machine lost", notes, figures()) == []


@pytest.mark.parametrize(("mutant", "expected"), [("", "valid"), (next(iter(QUERY_TRIALS)), "anomaly")])
def test_a_trial_of_a_mutant_expects_an_anomaly_and_any_other_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str, expected: str
) -> None:
    monkeypatch.setattr(QueryFaults, "examine", lambda *given: {"result": "valid"})
    trial = QueryTrial("machine lost", "rocksdb-indexed-batch", mutant=mutant)
    [row] = QueryFaults().run(trial, TrialWorker(tmp_path))
    assert (row["result"], row["expected"]) == ("valid", expected)
    assert mutant in row["repeat_command"]
