"""Exploring: trials of classes, with seeds that go on, for an idle machine or every night in CI.

It is a bench of the stages whose trials have classes, again and again. Each pass has the profile night and a seed of
its own, and first tries the classes that no run has tried with the present code. It adds to the coverage, also if it
is interrupted.
"""

from __future__ import annotations

import time
from dataclasses import replace

from harness.budget import BUDGETS_S, NIGHT
from harness.interruption import INTERRUPTED, TERMINATED
from harness.run import BenchRequest, bench

STAGES = ("crash", "broker", "queries", "iofaults", "readers")
PASS_S = BUDGETS_S[NIGHT]
"""The time of a pass: after it the seed goes on."""
LEAST_S = 120.0
"""The shortest time in which a pass begins: starting Spark takes much of less, and recording half of the rest."""


def explore(hours: float, request: BenchRequest) -> int:
    """Run passes for ``hours``, at least one, with the folders and backends of ``request``.

    Return 1 if a promise was broken in any of them, else 0; or the status of an interruption, which ends them all.
    Raises: ConfigError, as ``bench``.
    """
    end = time.monotonic() + 3_600 * hours
    status = 0
    while True:
        budget_s = min(PASS_S, end - time.monotonic())
        passing = replace(request, profile=NIGHT, only=STAGES, budget_s=budget_s, moves_on=True)
        status = max(status, bench(passing))
        if end - time.monotonic() < LEAST_S or status in (INTERRUPTED, TERMINATED):
            return status
