"""The crash matrix leaves no failpoint out, and is the same every time it is made."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.budget import PROFILES
from harness.experiment import Request
from harness.experiments.crash.experiment import Crash
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.trial import LOG_FAILPOINTS, CrashTrial, admitted
from harness.faults import Kill
from harness.typed_maps import KINDS
from stores.errors import ConfigError
from stores.registry import backends
from stores.tasks import task_transaction


def failpoints_of(trials: list[CrashTrial]) -> set[str]:
    return {step.failpoint for trial in trials for step in trial.fault.steps if isinstance(step, Kill)}


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("profile", ["default", "night"])
def test_every_failpoint_of_a_backend_the_task_and_the_log_is_tried_with_every_seed(backend: str, profile: str) -> None:
    trials = crash_matrix([backend], seeds=(3, 4), profile=profile)
    for seed in (3, 4):
        tried = failpoints_of([trial for trial in trials if trial.seed == seed])
        assert tried >= {*backends()[backend].failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS}


def test_the_default_kills_every_backend_at_each_failpoint_at_each_of_its_levels() -> None:
    """Levels rotate over seeds, and code of its own keeps what a level promises: so no level may be left out."""
    trials = Crash().plan(Request("default"))
    for name, backend in backends().items():
        for point in (*backend.failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS):
            at = {trial.durability for trial in trials if trial.backend == name and point in failpoints_of([trial])}
            assert at == set(backend.durabilities), (name, point)


def test_a_smoke_run_tries_every_failpoint_there_is() -> None:
    known = {failpoint for backend in backends().values() for failpoint in backend.failpoints}
    trials = crash_matrix(profile="smoke")
    assert failpoints_of(trials) >= {*known, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS}
    assert {trial.backend for trial in trials} == set(backends())


def test_the_full_matrix_has_every_durability_that_a_backend_carries() -> None:
    trials = crash_matrix(seeds=(0,), profile="night")
    for name, backend in backends().items():
        assert {trial.durability for trial in trials if trial.backend == name} == set(backend.durabilities)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_is_the_same_every_time_and_has_no_trial_twice(profile: str) -> None:
    trials = crash_matrix(profile=profile)
    assert trials == crash_matrix(profile=profile)
    assert len({trial.id for trial in trials}) == len(trials)


def test_every_planned_trial_is_admitted() -> None:
    for trial in crash_matrix(profile="night"):
        assert admitted(trial) == trial


@pytest.mark.parametrize("profile", PROFILES)
def test_every_kind_of_store_has_its_turn_and_none_more_than_others(profile: str) -> None:
    kinds = Counter(trial.records for trial in crash_matrix(profile=profile))
    assert set(kinds) == {"", *KINDS} - {"key-value"}
    assert max(kinds.values()) < 1.5 * min(kinds.values())


def test_a_kind_of_store_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError):
        CrashTrial("lmdb", Kill("task.after_log_commit"), records="windows")


def test_both_guarantees_are_planned_for() -> None:
    assert {trial.guarantee for trial in crash_matrix()} == {"exactly_once", "at_least_once"}


def test_a_plan_with_an_unknown_backend_profile_or_durability_is_refused() -> None:
    with pytest.raises(ConfigError):
        crash_matrix(["rocksdb-direkt"])
    with pytest.raises(ConfigError):
        crash_matrix(profile="fulll")
    with pytest.raises(ConfigError):
        crash_matrix(durabilities=["DISC"])
