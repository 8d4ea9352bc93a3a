"""Trials of stateful queries under faults: their plan, their checks, and one of each kind run for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import profiles
from harness.checkers.query import leading_stores, wrong_restores, wrong_rows, wrong_state
from harness.experiment import Request, Worker
from harness.experiments.query_faults.experiment import QueryFaults
from harness.experiments.query_faults.trial import FAULTS, Trial
from harness.mutants.registry import QUERY_TRIALS
from harness.query_scenario import QueryScenario
from stores.errors import ConfigError
from stores.registry import ALIASES

ANSWER = [["a", 0, 2], ["b", 0, 1], ["a", 1, 5]]
STATE = [["counts", "a", "5"], ["counts", "b", "1"], ["batches", "6e", b"2".hex()], ["batches", "6e", b"2".hex()]]


def test_rows_that_are_missing_doubled_or_different_are_found() -> None:
    assert wrong_rows(ANSWER, ANSWER[::-1]) == ""
    for sink in (ANSWER[1:], [*ANSWER, ANSWER[0]], [*ANSWER[1:], ["a", 0, 3]], []):
        assert wrong_rows(ANSWER, sink)
    assert wrong_rows([], [])


def test_a_state_of_another_batch_or_with_a_batch_counted_twice_is_found() -> None:
    assert wrong_state(ANSWER, STATE, 2, 1) == ""
    assert wrong_state(ANSWER, STATE, 2, 0)
    assert wrong_state(ANSWER, STATE[1:], 2, 1)
    assert wrong_state(ANSWER, STATE[:-1], 2, 1)
    assert wrong_state(ANSWER, [*STATE[:-1], ["batches", "6e", b"3".hex()]], 2, 1)


def test_a_store_ahead_of_its_log_is_found() -> None:
    append = {"pid": 1, "at": 5, "partition": 0, "version": 3}
    commit = {"pid": 1, "at": 6, "path": "/local/p00000/0", "version": 3}
    assert leading_stores([commit], [append]) == ""
    for wrong in ({"at": 4}, {"version": 4}, {"pid": 2}, {"path": "/local/p00001/0"}):
        assert leading_stores([commit | wrong], [append])


def test_a_restore_of_more_or_less_than_a_copy_lacks_is_found() -> None:
    before = [{"path": "/b/p0", "version": 2}, {"path": "/a/p1", "version": 3}]
    right: list[dict[str, Any]] = [
        {"path": "/b/p0", "partition": 0, "versions": 1},
        {"path": "/b/p1", "partition": 1, "versions": 4},
    ]
    assert wrong_restores(before, right, "/b", 3, "/a") == ""
    assert wrong_restores(before, [right[0] | {"versions": 4}], "/b", 3, "/a")
    assert wrong_restores(before, [right[1] | {"versions": 0}], "/b", 3, "/a")
    assert wrong_restores(before, [right[0] | {"path": "/a/p0"}], "/b", 3, "/a")


def test_a_night_has_every_fault_and_every_mutant_and_default_runs_take_turns() -> None:
    night = QueryFaults().plan(Request(profiles.NIGHT))
    assert {trial.fault for trial in night} == set(FAULTS)
    assert {trial.mutant for trial in night} == {"", *QUERY_TRIALS}
    turns = {trial.fault for seed in range(1, 6) for trial in QueryFaults().plan(Request("default", seed))}
    assert turns == set(FAULTS)
    assert QueryFaults().plan(Request("smoke")) == []
    assert QueryFaults().plan(Request("night", backends=("memory-indexed-batch",))) == []


@pytest.mark.parametrize(
    "wrong", [{"faults": ("worker kiled",)}, {"faults": "worker killed"}, {"backends": ("rocks",)}, {}, {"seeds": 0}]
)
def test_a_mistake_in_a_scenario_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueryScenario(**wrong).plan(1)


@pytest.mark.stateful
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_query_under_a_fault_gives_the_answer_of_spark_sql(fault: str, tmp_path: Path) -> None:
    backends = list(ALIASES.values())[:3]
    trial = Trial(fault, backends[list(FAULTS).index(fault) % len(backends)])
    [row] = QueryFaults().run(trial, Worker(tmp_path / "trial"))
    if "no small disk can be mounted" in row["detail"]:
        pytest.skip(row["detail"])
    assert (row["result"], row["detail"]) == ("valid", "")


@pytest.mark.stateful
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", QUERY_TRIALS)
def test_a_mutant_of_queries_is_detected(mutant: str, tmp_path: Path) -> None:
    trial = Trial(QUERY_TRIALS[mutant].fault, "rocksdb-indexed-batch", 1, mutant)
    [row] = QueryFaults().run(trial, Worker(tmp_path / "trial"))
    assert row["result"] == "anomaly"
    assert row["detail"]
