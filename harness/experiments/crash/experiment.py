"""The experiment that crashes a task at every failpoint, and checks what it finds afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import replay
from harness.budget import fair_order
from harness.experiment import (
    Again,
    Claim,
    Each,
    Experiment,
    Failure,
    Figures,
    Forks,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.crash.plan import SIZES, CrashGrid, crash_matrix
from harness.experiments.crash.report import crash, crash_tables, crash_trials, page
from harness.experiments.crash.run import DEADLINE_S, CrashOutcome, examine
from harness.experiments.crash.trial import CrashTrial, admitted
from harness.faults import FAULTS
from harness.report.coverage import Covered
from harness.report.page import Page, TextTable


class Crash(Experiment[CrashTrial]):
    """Kills, aborts, timeouts and takeovers of a task over two stores and a changelog."""

    name = "crash"
    title = "crash trials"
    stage = "crash"
    claim = "crash matrix"
    trial = CrashTrial
    grid = CrashGrid
    faults = FAULTS
    placement = TrialPlacement.SPREAD
    share = 10
    forks = Forks.PLAIN
    figures_by = {"crash": crash}
    columns = {
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

    def plan(self, request: Request) -> list[CrashTrial]:
        """Return the crash matrix of a profile."""
        seeds = range(request.seed, request.seed + SIZES[request.profile].seeds)
        return crash_matrix(request.backends, seeds=seeds, profile=request.profile)

    def prepare(self, trials: Sequence[CrashTrial], kept: Path, each: Each) -> list[CrashTrial]:
        """Return each trial once, in a fair order: every fault of every backend at every level first, then more seeds.

        Neighbours are not alike, so slow ones do not meet.
        """
        texts = {trial.text: trial for trial in trials}
        return fair_order((texts[name] for name in sorted(texts)), _strata, seed=len(texts))

    def run(self, trial: CrashTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return the one row of a trial, with the verdicts of all checkers."""
        return [row(self._outcome(trial, worker))]

    def read(self, text: str) -> CrashTrial:
        """Return the trial, with its backend's full name. Raises: ConfigError for an unknown name in it."""
        return admitted(replay.from_text(CrashTrial, text))

    def repeat(self, trial: CrashTrial, worker: TrialWorker) -> Again:
        """Run the trial, and return its verdicts."""
        outcome = self._outcome(trial, worker)
        verdicts = [f"  {each.checker:16} {each.result:8} {each.detail}".rstrip() for each in outcome.verdicts]
        first = f"trial {trial.id}, seed {trial.seed}: {outcome.result}, {outcome.seconds:.1f} s"
        return Again([first, *verdicts], failures(outcome), outcome.result == "valid")

    def _outcome(self, trial: CrashTrial, worker: TrialWorker) -> CrashOutcome:
        return examine(
            trial,
            work=worker.folder,
            code=worker.code,
            deadline_s=worker.deadline_s or DEADLINE_S,
            fork_server=worker.fork_server,
        )

    def finish(self, trials: Sequence[CrashTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return a row for each checker and each trial that ran."""
        by_trial = {row["trial"]: row for row in rows}
        return [
            {
                "kind": "crash",
                "trial_id": trial.id,
                "backend": trial.backend,
                "durability": trial.durability,
                "guarantee": trial.guarantee,
                "records": trial.records,
                "scenario": claim.name,
                "fault": trial.fault.text,
                "failpoint": trial.fault.place,
                "seed": trial.seed,
                "expected": claim.expected(trial),
                "repeat_command": replay.command("crash", trial),
                **{name: verdict[name] for name in ("checker", "result", "detail")},
            }
            for trial in dict.fromkeys(trials)
            if trial.id in by_trial
            for verdict in json.loads(by_trial[trial.id]["verdicts"])
        ]

    def covered(self, trials: Sequence[CrashTrial], rows: Sequence[Row]) -> list[Covered]:
        """Return the cells of the crash matrix that were tried, for each backend and level."""
        ran = {row["trial_id"] for row in rows}
        cells: dict[str, dict[str, bool]] = {}
        for trial in trials:
            place = f"{trial.guarantee} {trial.fault.place or trial.fault.text}"
            of_subject = cells.setdefault(f"{trial.backend} at {trial.durability}", {})
            of_subject[place] = of_subject.get(place, False) or trial.id in ran
        return [
            Covered(
                self.name,
                subject,
                "crash matrix",
                hashlib.sha256(repr(sorted(places)).encode()).hexdigest()[:16],
                len(places),
                frozenset(number for number, place in enumerate(sorted(places)) if places[place]),
            )
            for subject, places in cells.items()
        ]

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the crash matrix, and that of the mutants."""
        return [*crash_tables(figures, expected="valid"), *crash_tables(figures, expected="anomaly")]

    def closing(self, figures: Figures, rows: Rows, *, all_right: bool) -> str:
        """Return a sentence if nothing failed."""
        told = "Every crash trial ended as expected, and every end state is right."
        return told if rows.get("crash") and all_right else ""

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


def _strata(trial: CrashTrial) -> tuple[tuple[str, ...], ...]:
    """Return the groups in which each first trial comes before every second one; see ``fair_order``."""
    place = trial.fault.place or trial.fault.text
    return (trial.backend, trial.durability, trial.guarantee, place), (trial.backend, trial.durability), (place,)


def row(outcome: CrashOutcome) -> Row:
    """Return the row of a trial, which is the same in every run of it. ``verdicts`` is JSON."""
    trial = outcome.trial
    return {"trial": trial.id, "spec": trial.text, "result": str(outcome.result), "verdicts": outcome.verdicts_text}


def failures(outcome: CrashOutcome) -> list[str]:
    """Return a text if the trial is not valid: its verdicts, and the command that repeats it."""
    if outcome.result == "valid":
        return []
    trial = outcome.trial
    kind = f"{trial.records or 'plain'} stores, {trial.fault.name} {trial.fault.place}".rstrip()
    lines = []
    for verdict in outcome.verdicts:
        if verdict.result != "valid":
            # If the fault did not strike as planned, most checkers report the same. It is printed once.
            who = verdict.checker if verdict.result == "anomaly" else "trial"
            lines.append(f"  {who}: {verdict.result}: {verdict.detail}")
    if outcome.complaint:
        lines.append(f"  the process said: {outcome.complaint}")
    title = f"trial {trial.id} of {trial.backend} at {trial.durability}, {kind}:"
    return ["\n".join([title, *dict.fromkeys(lines), f"  repeat it with: {replay.command('crash', trial)}"])]
