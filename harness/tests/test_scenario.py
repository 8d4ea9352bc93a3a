"""A scenario is a plain value; a mistake in one is a sentence with the nearest name, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.experiments.crash.plan import CrashGrid
from harness.experiments.crash.trial import LOG_FAILPOINTS
from harness.experiments.registry import grid_of
from harness.faults import Kill, KillAfter
from harness.scenario import KillAtEach, Scenario, read_scenario, scenario_file, scenario_names
from stores.errors import ConfigError
from stores.failpoints import Part
from stores.failpoints import failpoint as declaration
from stores.registry import backends
from stores.tasks import task_transaction

KILL: tuple[Any, ...] = (KillAfter(13),)
MISTAKES = [
    Scenario("crash", faults=KILL, backends=("rocksbd-direct",)),
    Scenario("crash", faults=KILL, durabilities=("DISC",)),
    Scenario("crash", faults=KILL, guarantee="exactly_twice"),
    Scenario("crash", faults=KILL, mutants=("skiped-wipe",)),
    Scenario("crash", faults=KILL, mutants=("skipped-wipe",), caught=("rocksdb-dirct",)),
    Scenario("crash", faults=(Kill("task.after_log_comit"),)),
    Scenario("crash", faults=KILL, seeds=0),
    Scenario("crash", faults=()),
    Scenario("crash", faults=KILL, backends=("memory-indexed-batch",), durabilities=("DISK",)),
    Scenario("crash", faults=(Kill("direct.commit"),), backends=("lmdb",)),
    Scenario("throughput", workload="counts"),
    Scenario("throughput", workload="count", backends=("lmbd",), events=10),
    Scenario("throughput", workload="count", durabilities=("DISC",), events=10),
    Scenario("throughput", workload="count", partitions=(0,), events=10),
    Scenario("crash", faults=KILL, backends=("lmdb",), options=(("no_such_option", 1),)),
    Scenario("crash", faults=KillAfter(13)),
    Scenario("crash", faults=("kill",)),
    Scenario("crash", faults=(KillAtEach("comit"),)),  # type: ignore[arg-type]
    Scenario("crash", faults=KILL, backends="lmdb"),
    Scenario("crash", faults=KILL, seeds="3"),
    Scenario("crash", faults=KILL, mix={"records": 3}),
    Scenario("throughput", workload="count"),
    Scenario("throughput", workload="count", partitions=2, events=10),
    Scenario("throughput", workload="count", records_per_commit=("many",), events=10),
    Scenario("crash"),
    Scenario("crash", falts=KILL),
    Scenario("crahs", faults=KILL),
    Scenario("cold_cache", seeds=1),
    Scenario("throughput", workload="count", events=10, mutants=("skipped-wipe",)),
    Scenario("crash", faults=KILL, mutants="skipped-wipe"),
]


@pytest.mark.parametrize("scenario", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_a_config_error_when_planned_and_not_before(scenario: Scenario) -> None:
    with pytest.raises(ConfigError):
        grid_of(scenario).plan(1)


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_the_project_states_a_claim_and_can_be_planned(name: str) -> None:
    claim = read_scenario(scenario_file(name))
    assert claim.name == name
    assert claim.text.count("\n") >= 2
    assert grid_of(claim.scenario).plan(1)


@pytest.mark.parametrize("name", scenario_names())
def test_the_same_seed_gives_the_same_plan_and_another_one_another(name: str) -> None:
    scenario = grid_of(read_scenario(scenario_file(name)).scenario)
    assert scenario.plan(1) == scenario.plan(1)
    assert scenario.plan(1) != scenario.plan(1000)


def test_a_kill_at_each_failpoint_leaves_none_out_and_takes_none_of_another_part() -> None:
    for name, backend in backends().items():
        reached = {*backend.failpoints, *task_transaction.FAILPOINTS}
        for part in (Part.CREATION, Part.COMMIT):
            wanted = {failpoint for failpoint in reached if declaration(failpoint).part is part}
            if not wanted:
                continue
            trials = CrashGrid(faults=(KillAtEach(part),), backends=(name,), seeds=1).plan(7)
            assert {trial.fault.failpoint for trial in trials if isinstance(trial.fault, Kill)} == wanted
            assert len(trials) == len(wanted)


def test_a_fault_is_left_out_for_a_backend_that_never_gets_there() -> None:
    trials = CrashGrid(faults=(Kill("direct.commit"), Kill("dual_store.spilled")), seeds=2).plan(1)
    assert {trial.backend for trial in trials} == {"rocksdb-direct", "rocksdb-dual-store"}
    assert len(trials) == 4


def test_at_least_once_has_no_kill_in_a_transaction_of_the_changelog() -> None:
    def killed_at(guarantee: str) -> set[str]:
        planned = CrashGrid(faults=(KillAtEach(Part.TASK),), backends=("sqlite",), guarantee=guarantee).plan(1)
        return {trial.fault.failpoint for trial in planned if isinstance(trial.fault, Kill)}

    assert killed_at("exactly_once") - killed_at("at_least_once") == set(LOG_FAILPOINTS)
    assert killed_at("at_least_once")


def test_a_backend_that_must_be_caught_is_expected_to_show_an_anomaly_and_no_other_is() -> None:
    scenario = CrashGrid(faults=KILL, mutants=("skipped-wipe",), caught=("rocksdb-direct",))
    expected = {trial.backend: scenario.expected(trial) for trial in scenario.plan(1)}
    assert expected.pop("rocksdb-direct") == "anomaly"
    assert set(expected.values()) == {"valid"}


@pytest.mark.parametrize("content", ["", "SCENARIO = 5", "SCENARIO = Scenario()", "this is no Python", "1 / 0"])
def test_a_file_that_holds_no_scenario_is_a_config_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(ConfigError):
        read_scenario(file)
    with pytest.raises(ConfigError):
        read_scenario(tmp_path / "missing.py")
