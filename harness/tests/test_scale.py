"""A profile says how much of a scenario is done, and nothing else about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.budget import PROFILES
from harness.experiments.crash.plan import CrashGrid
from harness.experiments.iofaults.plan import IoFaultGrid
from harness.experiments.registry import grid_of
from harness.experiments.throughput.plan import ThroughputGrid
from harness.faults import KillAfter
from harness.scenario import AtLeast, Grid, read_scenario, scenario_file, scenario_names
from stores.errors import ConfigError

CRASH = CrashGrid(faults=(KillAfter(13),), backends=("lmdb",), seeds=3)
SPEED = ThroughputGrid("count", events=50_000, repeats=2, at_least=(AtLeast("lmdb", "sqlite", 0.5),))
OPERATION = IoFaultGrid(faults=("power names",), points_max=64, states_per_position=4)


@pytest.mark.parametrize("scenario", [CRASH, SPEED, OPERATION], ids=["crash", "speed", "operation"])
def test_the_default_is_what_the_file_says_and_an_unknown_profile_a_mistake(
    scenario: Grid,
) -> None:
    assert scenario.scaled("default") == scenario
    with pytest.raises(ConfigError):
        scenario.scaled("smokes")


def test_the_profile_smoke_compares_no_speeds() -> None:
    assert CRASH.scaled("smoke") == replace(CRASH, seeds=1)
    assert SPEED.scaled("smoke") == replace(SPEED, events=10_000, repeats=1, at_least=())
    assert OPERATION.scaled("smoke") == replace(OPERATION, points_max=4, states_per_position=2)


def test_full_leaves_nothing_out() -> None:
    assert CRASH.scaled("night") == replace(CRASH, seeds=15)
    assert SPEED.scaled("night") == replace(SPEED, events=500_000, repeats=5)
    assert OPERATION.scaled("night") == replace(OPERATION, points_max=None, states_per_position=None)


def test_events_that_have_an_end_of_their_own_stay_all_of_them() -> None:
    flights = ThroughputGrid("flights")
    assert flights.scaled("night") == replace(flights, repeats=5)


def test_a_defect_that_must_be_caught_keeps_its_seeds() -> None:
    scenario = replace(CRASH, mutants=("skipped-wipe",), seeds=4)
    assert scenario.scaled("smoke") == scenario


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_the_project_can_be_planned_at_every_profile(name: str) -> None:
    scenario = grid_of(read_scenario(scenario_file(name)).scenario)
    for profile in PROFILES:
        assert scenario.scaled(profile).plan(1)
