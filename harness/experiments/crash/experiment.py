"""The experiment that crashes a task at every failpoint, and checks what it finds afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import replay
from harness.budget import DEFAULT, NIGHT, fair_order
from harness.checkers.losses import Commits
from harness.code import modules_of
from harness.experiment import (
    Again,
    Claim,
    Each,
    Experiment,
    Forks,
    Outcome,
    Request,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.crash.plan import SIZES, CrashGrid, crash_matrix, first_kills
from harness.experiments.crash.report import FAILED, QUERY, crash_tables, page
from harness.experiments.crash.run import DEADLINE_S, CrashOutcome, examine
from harness.experiments.crash.trial import CrashTrial, admitted
from harness.faults import FAULTS
from harness.report.coverage import Coverage, Group, Seen
from harness.report.database import lines_of
from harness.report.figures import Figures
from harness.report.page import Page, TextTable
from harness.report.rows import Row
from harness.typed_maps import IN_TURN
from stores.registry import backend_named

_MODULES = ("stores.tasks.task", "stores.changelog.sqlite", "stores.records")
"""The modules that each trial depends on, beside those of its backend."""


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
    answers = True
    share = 10
    forks = Forks.PLAIN
    figures_by = {"crash": QUERY}
    failed_by = FAILED
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
            **dict.fromkeys(Commits._fields, int),
        }
    }

    def plan(self, request: Request) -> list[CrashTrial]:
        """Return the crash matrix of a profile, in the order of its trials.

        The order is fair: every fault of every backend at every level comes first, then more seeds, and neighbours are
        not alike, so slow ones do not meet. With a coverage, classes come first that no run has tried with this code,
        then those that were tried longest ago. A default run takes as many trials as its matrix has from all of them.
        """
        seeds = range(request.seed, request.seed + SIZES[request.profile].seeds)
        trials = _fairly(crash_matrix(request.backends, seeds=seeds, profile=request.profile))
        coverage = request.coverage
        if coverage is None:
            return trials
        every = _fairly(crash_matrix(request.backends, seeds=seeds, profile=NIGHT))
        return _oldest_first(every, coverage)[: len(trials) if request.profile == DEFAULT else None]

    def next_round(self, trials: Sequence[CrashTrial], rows: Sequence[Row], remaining_s: float) -> list[CrashTrial]:
        """Return one kill at each step of a commit of each backend, as the only round."""
        return [] if rows else list(first_kills(trials))

    def rest(self, trials: Sequence[CrashTrial], rows: Sequence[Row]) -> list[CrashTrial]:
        """Return the trials that no round has tried."""
        ran = {row["trial"] for row in rows}
        return [trial for trial in trials if trial.id not in ran]

    def extents(self, trials: Sequence[CrashTrial], outcome: Outcome) -> dict[str, tuple[int, int]]:
        """Return the trials that ran, of those of the plan."""
        planned = {trial.id for trial in trials}
        return {"trials": (len(planned & {row["trial"] for row in outcome.rows}), len(planned))}

    def prepare(self, trials: Sequence[CrashTrial], kept: Path, each: Each) -> list[CrashTrial]:
        """Return each trial once."""
        return list({trial.text: trial for trial in trials}.values())

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
                **by_trial[trial.id]["commits"],
            }
            for trial in dict.fromkeys(trials)
            if trial.id in by_trial
            for verdict in json.loads(by_trial[trial.id]["verdicts"])
        ]

    def covered(self, trials: Sequence[CrashTrial], rows: Sequence[Row]) -> list[Seen]:
        """Return the classes of the trials: cells of the crash matrix, by kind of store."""
        results = {
            each["trial_id"]: each for each in lines_of(self.columns, {"crash": rows}, "select * from crash_trial")
        }
        names = {trial.backend for trial in trials}
        every = crash_matrix(names, seeds=range(len(IN_TURN)), profile=NIGHT)  # Each cell with each kind of store.
        there = {(seen.group, seen.name): seen for seen in (_seen(trial, None) for trial in every)}
        return [*there.values(), *(_seen(trial, results[trial.id]) for trial in trials if trial.id in results)]

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return the crash matrix, and that of the mutants."""
        return [*crash_tables(figures, expected="valid"), *crash_tables(figures, expected="anomaly")]

    def closing(self, figures: Figures, rows: Rows, *, all_right: bool) -> str:
        """Return a sentence if nothing failed."""
        told = "Every crash trial ended as expected, and every end state is right."
        return told if rows.get("crash") and all_right else ""

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about crash trials."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)])


def _fairly(trials: Sequence[CrashTrial]) -> list[CrashTrial]:
    texts = {trial.text: trial for trial in trials}
    return fair_order((texts[name] for name in sorted(texts)), _strata, seed=len(texts))


def _oldest_first(trials: Sequence[CrashTrial], coverage: Coverage) -> list[CrashTrial]:
    """Return the trials in the order in which their classes were tried last; further trials of a class come last."""
    met: Counter[tuple[Group, str]] = Counter()
    places = []
    for trial in trials:
        key = group_of(trial), class_of(trial)
        places.append((met[key], coverage.last_tried(*key)))
        met[key] += 1
    return [trials[place] for place in sorted(range(len(trials)), key=places.__getitem__)]


def _strata(trial: CrashTrial) -> tuple[tuple[str, ...], ...]:
    """Return the groups in which each first trial comes before every second one; see ``fair_order``."""
    place = trial.fault.place or trial.fault.text
    return (trial.backend, trial.durability, trial.guarantee, place), (trial.backend, trial.durability), (place,)


def group_of(trial: CrashTrial) -> Group:
    """Return the group of a trial's class."""
    return Group(Crash.name, trial.backend, trial.durability, trial.fault.name)


def class_of(trial: CrashTrial) -> str:
    """Return the class of a trial: where the fault strikes, the guarantee and the kind of store."""
    place = trial.fault.place or trial.fault.text
    return f"{place}, {trial.guarantee.replace('_', ' ')}, {trial.records or 'plain'} stores"


def _seen(trial: CrashTrial, result: Mapping[str, Any] | None) -> Seen:
    modules = (*_MODULES, *modules_of(backend_named(trial.backend)))
    if result is None:
        return Seen(group_of(trial), class_of(trial), modules)
    failure = "" if result["as_expected"] else result["repeat_command"]
    kills = sum(step.kills for step in trial.fault.steps)
    return Seen(group_of(trial), class_of(trial), modules, 1, kills, failure=failure)


def row(outcome: CrashOutcome) -> Row:
    """Return the row of a trial, which is the same in every run of it. ``verdicts`` is JSON."""
    trial = outcome.trial
    return {
        "trial": trial.id,
        "spec": trial.text,
        "result": str(outcome.result),
        "verdicts": outcome.verdicts_text,
        "commits": outcome.commits._asdict(),
    }


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
