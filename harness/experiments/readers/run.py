"""A trial in a process of its own, and trials of many stores one after the other in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import replay
from harness.experiments.judged import ANOMALY, VALID
from harness.experiments.readers.trial import ReadersTrial, run
from harness.folders import quick_folder, temporary_folder
from harness.mutants import fitting
from harness.processes.child import figures_in
from harness.progress import Progress
from stores.interface import Durability
from stores.registry import backend_named, backends, checked_durability

Row = dict[str, Any]

COUNTS = ("rounds", "operations", "commits", "committed_answers", "uncommitted_answers")
"""The columns of a row that count."""
DEADLINE_S = 120.0
"""The time that a process may take in addition to the seconds of its trial."""


def examine(trial: ReadersTrial, work: Path, code: str | None = None) -> Row:
    """Run a trial in the folder ``work``, and return the results of its row.

    Raises: MeasurementFailedError if its process did not end in order.
    """
    arguments = {"trial": replay.text_of(trial)}
    outcome = figures_in(work, outcome_of, arguments, trial.seconds + DEADLINE_S, code=code)
    anomalies, answers = outcome.pop("anomalies"), outcome.pop("answers")
    return {
        **outcome,
        "result": ANOMALY if anomalies else VALID,
        "detail": "".join(anomalies[:1]),
        "committed_answers": answers["READ_COMMITTED"],
        "uncommitted_answers": answers["READ_UNCOMMITTED"],
    }


def outcome_of(trial: str, folder: Path) -> dict[str, Any]:
    """Run a trial, and return its outcome as plain values."""
    return asdict(run(replay.from_text(ReadersTrial, trial), folder / "stores"))


def soak(names: Sequence[str] | None, durability: str | None, seconds: float, seed: int, mutant: str = "") -> int:
    """Divide the time between the backends, all unless named, at all levels unless one is. Return 1 for an anomaly.

    A mutant is built into the backends that it fits; the others are reported and left out. Raises: ConfigError for an
    unknown name, and for a mutant that fits none of the backends.
    """
    asked = [backend_named(name) for name in names] if names else list(backends().values())
    chosen = fitting(mutant, asked)
    if unfit := [backend.name for backend in asked if backend not in chosen]:
        print(f"The mutant {mutant!r} does not fit, and is not tried in: {', '.join(unfit)}.", flush=True)
    planned = [
        (backend.name, str(level))
        for backend in chosen
        for level in ([checked_durability(backend, durability)] if durability else sorted(backend.durabilities))
    ]
    failed = []
    answers = 0
    print(f"Seed {seed}; {len(planned)} stores, {seconds / len(planned):.1f} s each.", flush=True)
    progress = Progress()
    for name, level in planned:
        trial = ReadersTrial(name, level, seconds / len(planned), seed, mutant=mutant)
        # In memory where possible: the anomalies are races, which do not depend on a disk.
        within = None if level == Durability.DISK else quick_folder()
        with temporary_folder("readers", within) as folder:
            outcome = run(trial, Path(folder), progress.say)
        answers += sum(outcome.answers.values())
        print(
            f"{name} at {level}: {outcome.operations:,} operations, {outcome.commits:,} commits, "
            f"{sum(outcome.answers.values()):,} answers, {len(outcome.anomalies)} wrong",
            flush=True,
        )
        failed += [(trial, anomaly) for anomaly in outcome.anomalies]
    for trial, anomaly in failed:
        print(f"{trial.id}: {anomaly}\n  repeat it with: {replay.command('readers', trial)}", file=sys.stderr)
    print(f"{answers:,} answers checked in {len(planned)} stores, {len(failed)} wrong.")
    return 1 if failed else 0
