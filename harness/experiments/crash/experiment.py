"""The experiment that crashes a task at every failpoint, and checks what it finds afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.experiment import (
    Claim,
    Columns,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
)
from harness.experiments.crash.figures import crash, crash_trials
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.report import page
from harness.experiments.crash.row import row
from harness.experiments.crash.run import examine
from harness.experiments.crash.trial import Trial, repeat_command
from harness.faults import failpoint_of, fault_text
from harness.report.page import Page

SEEDS: Mapping[str, int] = MappingProxyType({"smoke": 1, "default": 3, "full": 5})
"""The number of seeds in a profile's crash matrix."""


class Crash(Experiment[Trial]):
    """Kills, aborts, timeouts and takeovers of a task over two stores and a changelog."""

    name = "crash"
    title = "crash trials"
    stage = "crash"
    trial = Trial
    placement = Placement.SPREAD
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "crash": {
                "trial_id": str,
                "backend": str,
                "durability": str,
                "guarantee": str,
                "records": str,
                "scenario": str,
                "fault": str,
                "failpoint": str,
                "seed": int,
                "checker": str,
                "result": str,
                "detail": str,
                "expected": str,
                "repeat_command": str,
            }
        }
    )

    def plan(self, request: Request) -> list[Trial]:
        """Return the crash matrix of a profile."""
        seeds = range(request.seed, request.seed + SEEDS[request.profile])
        return crash_matrix(request.backends, seeds=seeds, profile=request.profile)

    def run(self, trial: Trial, worker: Worker) -> Iterable[Row]:
        """Return the one row of a trial, with the verdicts of all checkers."""
        outcome = examine(trial, work=worker.folder, code=worker.code, fork_server=worker.fork_server)
        return [row(outcome, worker.attempt)]

    def finish(self, trials: Sequence[Trial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return a row for each trial and checker."""
        found = {row["trial"]: row for row in rows}
        return [
            {
                "kind": "crash",
                "trial_id": trial.id,
                "backend": trial.backend,
                "durability": trial.durability,
                "guarantee": trial.guarantee,
                "records": trial.records,
                "scenario": claim.name,
                "fault": fault_text(trial.fault),
                "failpoint": failpoint_of(trial.fault),
                "seed": trial.seed,
                "expected": claim.expected(trial),
                "repeat_command": repeat_command(trial),
                **{name: verdict[name] for name in ("checker", "result", "detail")},
            }
            for trial in dict.fromkeys(trials)
            for verdict in json.loads(found[trial.id]["verdicts"])
        ]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return a figure for each cell of the crash matrix: its trials by result."""
        return {"crash": crash(rows.get("crash", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every trial with an unexpected result."""
        return [
            Failure(
                f"{trial['backend']} at {trial['durability']}, {trial['failpoint'] or trial['fault']}, seed "
                f"{trial['seed']}: {trial['result']}, not {trial['expected']} "
                f"({'; '.join(trial['found']) or 'nothing found'})",
                trial["repeat_command"],
            )
            for trial in crash_trials(rows.get("crash", ()))
            if not trial["as_expected"]
        ]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about crash trials."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)])
