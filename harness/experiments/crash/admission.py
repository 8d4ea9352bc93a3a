"""Validation of a trial: its backend, options, failpoints and mutant must exist, and fit together."""

from __future__ import annotations

from dataclasses import replace

from harness.experiments.crash.plan import LOG_FAILPOINTS
from harness.experiments.crash.trial import Trial
from harness.faults import Kill, steps
from harness.faults.registry import unknown
from harness.mutants.registry import CRASH_TRIALS, FAILPOINTS
from stores.config import StoreConfig
from stores.interface import Durability
from stores.registry import backend_named
from stores.tasks import task


def admitted(trial: Trial) -> Trial:
    """Return ``trial`` with its backend's full name.

    Raises: ConfigError for an unknown backend, option, failpoint or mutant, with the nearest name; and for a durability
    level that the backend does not carry.
    """
    backend = backend_named(trial.backend)
    StoreConfig(backend=backend.name, durability=Durability(trial.durability), options=dict(trial.options))
    if trial.mutant is not None and trial.mutant not in CRASH_TRIALS:
        raise unknown("mutant of crash trials called", trial.mutant, CRASH_TRIALS)
    known = {*backend.failpoints, *task.FAILPOINTS, *LOG_FAILPOINTS, *(FAILPOINTS if trial.mutant else ())}
    for step in steps(trial.fault):
        if isinstance(step, Kill) and step.failpoint not in known:
            raise unknown(f"failpoint of {backend.name} called", step.failpoint, known)
    return replace(trial, backend=backend.name)
