"""Is a trial one that can be run: do its backend, options, failpoints and sabotage exist, and go together?"""

from __future__ import annotations

from dataclasses import replace

from harness.faults import Kill, steps
from harness.faults.registry import unknown
from harness.trials.plan import LOG_FAILPOINTS
from harness.trials.sabotage import FAILPOINTS, SABOTAGES
from harness.trials.trial import Trial
from stores.config import StoreConfig
from stores.interface import Durability
from stores.registry import backend_named
from stores.tasks import task


def admitted(trial: Trial) -> Trial:
    """``trial`` itself, its backend by its full name.

    Raises: ConfigError for an unknown backend, option, failpoint or sabotage, the nearest one suggested, and for a
    durability that the backend can't carry.
    """
    backend = backend_named(trial.backend)
    StoreConfig(backend=backend.name, durability=Durability(trial.durability), options=dict(trial.options))
    if trial.sabotage is not None and trial.sabotage not in SABOTAGES:
        raise unknown("sabotage", trial.sabotage, SABOTAGES)
    known = {*backend.failpoints, *task.FAILPOINTS, *LOG_FAILPOINTS, *(FAILPOINTS if trial.sabotage else ())}
    for step in steps(trial.fault):
        if isinstance(step, Kill) and step.failpoint not in known:
            raise unknown(f"failpoint of {backend.name} called", step.failpoint, known)
    return replace(trial, backend=backend.name)
