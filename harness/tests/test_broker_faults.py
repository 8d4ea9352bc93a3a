"""Trials of tasks over a broker under faults: their plan, their checks, and some of them run for real."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pytest

from harness.budget import NIGHT
from harness.checkers.counting import (
    COUNTS,
    LOST,
    NEWEST,
    PROCESS,
    REPEATED,
    WRONG,
    Finding,
    model_of,
    repeated,
    wrong_outputs,
    wrong_stores,
)
from harness.experiment import Claim, Request, TrialWorker
from harness.experiments.broker_faults import faults, processes
from harness.experiments.broker_faults.experiment import BrokerFaults, BrokerGrid, result_of
from harness.experiments.broker_faults.faults import FAULTS, LOG_COMMIT, checked, places_of
from harness.experiments.broker_faults.processes import BrokenPromiseError
from harness.experiments.broker_faults.trial import (
    AT_LEAST_ONCE,
    COMMITS,
    INSIDE,
    RECORDS_PER_COMMIT,
    RECORDS_PER_ROUND,
    BrokerTrial,
    inputs,
)
from harness.mutants import BROKER_TRIALS
from harness.processes import kafka_jars
from harness.replay import text_of
from harness.spark.session import SHIPPED_SUFFIXES
from stores.errors import ConfigError
from stores.tasks import task_transaction
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

INPUTS = [("a", "0"), ("b", "1"), ("a", "2")]
MODEL = model_of(INPUTS)
OUTPUTS = [("0", "a 1"), ("1", "b 1"), ("2", "a 2")]
TRIED = (
    ("task killed", "task.between_stores"),
    ("worker killed", "group.after_revoke"),
    ("broker killed", "changelog.before_commit"),
    ("zombie wakes", "changelog.before_commit"),
    ("network stalls", "changelog.before_commit"),
    ("answers stall", "changelog.before_commit"),
    ("connections cut", "task.before_log_commit"),
    ("commit held back", "changelog.before_commit"),
    ("commit delivered late", "task.before_log_commit"),
    ("all of these under load", "transactions of tasks"),
)
"""The faults that are tried here, at one place each. A night has all places, and so has `make scenario`."""
TRIED_MUTANTS = (
    ("no-transactions", "zombie wakes", "task.before_log_commit"),
    ("inputs-before-outputs", "task killed", "mutant.between"),
    ("aborted-restored", "task killed", "changelog.before_commit"),
    ("same-epoch", "commit delivered late", "task.before_log_commit"),
    ("errors-end-tasks", "broker paused under load", "transactions of threads"),
)


def kinds(found: list[Finding]) -> list[str]:
    return [finding.kind for finding in found]


def test_the_model_counts_each_key_and_keeps_its_newest_input() -> None:
    assert list(MODEL.outputs.items()) == OUTPUTS
    assert MODEL.stores == {COUNTS: {"a": "2", "b": "1"}, NEWEST: {"a": "2", "b": "1"}}


def test_outputs_that_are_missing_repeated_or_different_are_found() -> None:
    assert wrong_outputs(MODEL, OUTPUTS[::-1], exactly_once=True) == []
    for found, kind in (
        (OUTPUTS[1:], LOST),
        ([], LOST),
        ([*OUTPUTS, OUTPUTS[0]], REPEATED),
        ([*OUTPUTS[:2], ("2", "a 3")], WRONG),
        ([*OUTPUTS, ("7", "a 3")], WRONG),
    ):
        assert kinds(wrong_outputs(MODEL, found, exactly_once=True)) == [kind]


def test_at_least_once_an_input_may_have_several_outputs_and_must_have_one() -> None:
    assert wrong_outputs(MODEL, [*OUTPUTS, ("2", "a 3")], exactly_once=False) == []
    assert kinds(wrong_outputs(MODEL, OUTPUTS[:2], exactly_once=False)) == [LOST]
    assert kinds(wrong_outputs(MODEL, [*OUTPUTS, ("x", "a 3")], exactly_once=False)) == [WRONG]
    assert repeated([*OUTPUTS, ("2", "a 3"), ("2", "a 4")]) == 2


def test_stores_with_other_keys_or_values_are_found() -> None:
    expected = MODEL.stores
    assert wrong_stores(expected, expected, "x") == []
    for wrong in ({"a": "2"}, {"a": "2", "b": "2"}, {"a": "2", "b": "1", "c": "1"}):
        assert len(wrong_stores(expected, {**expected, COUNTS: wrong}, "x")) == 1
    assert len(wrong_stores(expected, {}, "x")) == 2


def test_tasks_are_killed_at_every_failpoint_of_theirs() -> None:
    assert set(places_of("task killed")) == {INSIDE, *task_transaction.FAILPOINTS, *LOG_COMMIT}
    assert not set(places_of("task killed", AT_LEAST_ONCE)) & set(LOG_COMMIT)


def test_a_night_has_every_fault_at_every_place_and_every_mutant_and_other_runs_have_none() -> None:
    experiment = BrokerFaults()
    night = experiment.plan(Request(NIGHT, 3))
    sound = {(trial.fault, trial.place) for trial in night if not trial.mutant and trial.guarantee != AT_LEAST_ONCE}
    assert sound == {(fault, place) for fault in FAULTS for place in places_of(fault)}
    mutants = {(trial.mutant, trial.fault, trial.place) for trial in night if trial.mutant}
    assert mutants == {(name, by.fault, by.place) for name, found in BROKER_TRIALS.items() for by in found}
    assert {trial.guarantee for trial in night} >= {AT_LEAST_ONCE}
    assert len(set(night)) == len(night)
    assert night != experiment.plan(Request(NIGHT, 4))
    assert experiment.plan(Request("default")) == experiment.plan(Request("smoke")) == []
    assert experiment.plan(Request(NIGHT, backends=("memory-indexed-batch",))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"faults": ("task kiled",)},
        {"faults": "task killed"},
        {"faults": ("task killed",), "backends": ("rocks",)},
        {"faults": ("task killed",), "seeds": 0},
        {"faults": ("task killed",), "guarantee": "twice"},
        {"faults": ("task killed",), "mutants": ("no-transaction",)},
        {"faults": ("network stalls",), "mutants": ("no-transactions",)},
        {"faults": ("network stalls",), "guarantee": AT_LEAST_ONCE},
    ],
    ids=str,
)
def test_a_mistake_in_a_scenario_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BrokerGrid(**wrong).plan(1)


def test_a_scenario_has_the_mutants_of_its_faults_only() -> None:
    scenario = BrokerGrid(faults=("zombie wakes",), mutants=("no-transactions",))
    trials = scenario.plan(5)
    assert [(trial.mutant, trial.fault) for trial in trials if trial.mutant] == [("no-transactions", "zombie wakes")]
    assert {scenario.expected(trial) for trial in trials if not trial.mutant} == {"valid"}
    assert [scenario.expected(trial) for trial in trials if trial.mutant] == ["anomaly"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault": "zombie"},
        {"place": "task.before_log"},
        {"place": "group.before_assign"},
        {"backend": "rocks"},
        {"guarantee": "twice"},
        {"mutant": "no-such-mutant"},
        {"guarantee": AT_LEAST_ONCE, "place": "changelog.before_commit"},
    ],
    ids=str,
)
def test_a_trial_that_cannot_be_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        checked(BrokerTrial(**{"fault": "task killed", "place": INSIDE, **wrong}))


def test_a_trial_is_repeated_from_its_text() -> None:
    trial = BrokerTrial("task killed", "mutant.between", seed=7, mutant="inputs-after-outputs")
    assert BrokerFaults().read(text_of(trial)) == trial


def test_a_trial_knows_the_folder_of_the_jars_and_their_list_goes_to_the_tasks_of_spark(tmp_path: Path) -> None:
    trial = BrokerTrial("task killed", INSIDE)
    [prepared] = BrokerFaults().prepare([trial], tmp_path, lambda function, items, part: [])
    assert prepared.jars == str(FOLDER)
    assert {".sha256", ".xml"} <= set(SHIPPED_SUFFIXES)


def test_without_the_jars_of_a_broker_the_reason_is_said_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_jars, "JARS", tmp_path / "nothing")
    kafka_jars.missing.cache_clear()
    try:
        assert BrokerFaults().missing()
        with pytest.raises(ConfigError):
            BrokerFaults().repeat(BrokerTrial("task killed", INSIDE), TrialWorker(tmp_path / "trial"))
        assert list(tmp_path.iterdir()) == []
    finally:
        kafka_jars.missing.cache_clear()


def test_the_seed_determines_the_inputs_and_no_key_is_in_two_partitions() -> None:
    assert inputs(1, 3) == inputs(1, 3) != inputs(2, 3)
    keys = [{key for key, _ in partition} for partition in inputs(1, 3)]
    assert len(set.union(*keys)) == sum(map(len, keys))
    numbers = [number for partition in inputs(1, 3) for _, number in partition]
    assert len(set(numbers)) == len(numbers) == 3 * COMMITS * RECORDS_PER_COMMIT


def test_a_mutant_must_show_as_what_it_declares() -> None:
    sound = BrokerTrial("task killed", INSIDE)
    assert result_of(sound, []) == "valid"
    assert result_of(sound, [Finding(PROCESS, "it failed")]) == "anomaly"
    mutant = BrokerTrial("task killed", "mutant.between", mutant="inputs-before-outputs")
    assert result_of(mutant, []) == "valid"
    assert result_of(mutant, [Finding(LOST, "x"), Finding(PROCESS, "y")]) == "anomaly"
    assert result_of(mutant, [Finding(PROCESS, "it failed")]) == "unknown"


class Dying:
    """A worker that has died when it is first asked, if it is among the ``mortal`` ones; else it does all work."""

    def __init__(self, site: Any, name: str) -> None:
        self._site, self._name = site, name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._site.ended.append(self._name)

    def death(self) -> Finding | None:
        return Finding(PROCESS, f"{self._name} died") if self._name in self._site.mortal else None

    def status(self) -> tuple[int, int]:
        return (0, 0) if self._name in self._site.stuck else (2, self._site.fed // 2)

    def last_complaint(self) -> str:
        return f"{self._name} waits for the broker"

    def terminate(self) -> None:
        if self._name in self._site.unwilling:
            raise BrokenPromiseError(f"{self._name} did not end")


class Loaded:
    """A site whose workers die as it says. Nothing strikes: the proxy and the broker do nothing."""

    def __init__(
        self, mortal: tuple[str, ...] = (), unwilling: tuple[str, ...] = (), stuck: tuple[str, ...] = ()
    ) -> None:
        self.trial = BrokerTrial("all of these under load", "transactions of tasks", seconds=1)
        self.mortal, self.unwilling, self.stuck, self.ended = mortal, unwilling, stuck, list[str]()
        self.partitions, self.choose = [0, 1, 2, 3], Random(1)
        self.fed = self.processes = self.faults = self.deaths = 0
        self.broker = self.proxy = SimpleNamespace(
            **dict.fromkeys(("pause", "resume", "cut", "cut_after", "slow", "half_close"), lambda *_, **__: None)
        )

    def feed(self, begin: int, end: int, **_: float) -> None:
        self.fed += len(self.partitions) * (end - begin)

    def worker(self, name: str, *, proxied: bool, properties: Mapping[str, str]) -> Dying:
        assert proxied
        assert properties["transaction.scope"] == "task"
        self.processes += 1
        return Dying(self, name)


def loaded(monkeypatch: pytest.MonkeyPatch, **fates: tuple[str, ...]) -> tuple[list[Finding], Loaded]:
    minutes = count(step=60.0)
    for module in (faults, processes):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda s: None, monotonic=lambda: next(minutes)))
    site: Any = Loaded(**fates)
    return FAULTS[site.trial.fault].course(site), site


def test_a_load_kills_in_each_round_after_the_first_and_no_anomaly_is_found_without_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, site = loaded(monkeypatch)
    assert (found, site.faults, site.deaths, site.processes) == ([], site.trial.rounds - 1, 0, 2)
    assert site.fed == 4 * RECORDS_PER_ROUND * site.trial.rounds
    assert sorted(site.ended) == ["worker-1", "worker-2"]


def test_each_worker_that_dies_under_load_is_found_counted_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    [found], site = loaded(monkeypatch, mortal=("worker-1", "worker-3"))
    assert found.kind == PROCESS
    assert found.sentence.startswith("2 workers died: worker-1 died; worker-3 died")
    assert (site.deaths, site.processes) == (2, 4)


def test_a_worker_that_does_not_end_in_order_after_a_load_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    [found], site = loaded(monkeypatch, unwilling=("worker-2",))
    assert "worker-2 did not end" in found.sentence
    assert site.deaths == 1


def test_workers_that_do_not_end_are_named_with_their_last_log_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        loaded(monkeypatch, stuck=("worker-2",))
    for worker in ("worker-1", "worker-2"):
        assert f"{worker} waits for the broker" in caught.value.finding.sentence


def test_the_input_of_a_load_grows_with_its_time_and_other_faults_have_none() -> None:
    rounds = [
        BrokerTrial("network slow under load", "transactions of tasks", seconds=seconds).rounds for seconds in (1, 60)
    ]
    assert rounds == [3, 10]
    assert BrokerTrial("task killed", INSIDE, seconds=60).rounds == 0


def row(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "broker_fault",
        "backend": "rocksdb-indexed-batch",
        "fault": "task killed",
        "meaning": "the process of a task is killed",
        "place": INSIDE,
        "guarantee": "exactly_once",
        "mutant": "",
        "seed": 1,
        "inputs": 60,
        "outputs": 60,
        "lost": 0,
        "repeated": 0,
        "result": "valid",
        "expected": "valid",
        "detail": "",
        "seconds": 9.0,
        "repeat_command": "command",
        **changes,
    }


def test_a_trial_with_an_unexpected_result_fails_the_run_with_the_command_that_repeats_it() -> None:
    experiment = BrokerFaults()
    rows = {
        "broker_fault": [
            row(),
            row(result="unknown", outputs=None, lost=None, repeated=None),
            row(mutant="no-transactions", place="mutant.between", expected="anomaly"),
            row(mutant="no-transactions", expected="anomaly", result="anomaly", guarantee=AT_LEAST_ONCE),
        ]
    }
    figures = experiment.figures(rows)
    assert [failure.repeat for failure in experiment.failures(figures, rows)] == ["command", "command"]
    assert [len(table.rows) for table in experiment.tables(figures, rows)] == [2, 2]
    page = experiment.page(figures, rows, {})
    assert (page.findings[0].number, page.findings[0].good) == (4, 2)
    assert experiment.page({"broker_fault": []}, {}, {"broker_skipped": "needs Java"}).absent.endswith("needs Java")


@pytest.mark.kafka
@pytest.mark.parametrize(("fault", "place"), TRIED)
def test_tasks_over_a_broker_keep_exactly_once_under_a_fault(tmp_path: Path, fault: str, place: str) -> None:
    """Source: KIP-129; KIP-447; KIP-588."""
    skip_without_kafka()
    experiment, trial = BrokerFaults(), BrokerTrial(fault, place, jars=str(FOLDER))
    [found] = experiment.finish([trial], list(experiment.run(trial, TrialWorker(tmp_path / "trial"))), Claim("test"))
    assert (found["result"], found["detail"]) == ("valid", "")
    assert found["outputs"] == found["inputs"]
    assert found.keys() - {"kind"} == BrokerFaults.columns["broker_fault"].keys()


@pytest.mark.kafka
@pytest.mark.parametrize(("mutant", "fault", "place"), TRIED_MUTANTS)
def test_a_mutant_is_detected_as_what_it_declares(tmp_path: Path, mutant: str, fault: str, place: str) -> None:
    skip_without_kafka()
    trial = BrokerTrial(fault, place, mutant=mutant, jars=str(FOLDER))
    [found] = BrokerFaults().run(trial, TrialWorker(tmp_path / "trial"))
    assert found["result"] == "anomaly", found["detail"]
