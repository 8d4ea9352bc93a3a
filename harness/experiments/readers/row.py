"""A trial of readers as a row: it runs in its own process, is checked, and has the command that repeats it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import replay
from harness.experiments.readers.child import OUTCOME_FILE
from harness.experiments.readers.trial import Trial
from harness.processes.child import run_child

Row = dict[str, Any]

TEXTS = ("trial", "backend", "durability", "mutant", "expected", "result", "detail", "repeat_command")
COUNTS = ("seed", "rounds", "operations", "commits", "committed_answers", "uncommitted_answers")
COLUMNS: Mapping[str, type] = MappingProxyType({**dict.fromkeys(TEXTS, str), **dict.fromkeys(COUNTS, int)})
"""The columns of rows of the kind "isolation"."""
DEADLINE_S = 120.0
"""The time that a process may take in addition to the seconds of its trial."""


def examine(trial: Trial, work: Path, code: str | None = None) -> Row:
    """Run a trial in the folder ``work``. Return its row: ``valid``, ``anomaly``, or ``unknown`` if it did not end."""
    work.mkdir(parents=True, exist_ok=True)
    ending = run_child(
        "harness.experiments.readers.child", [replay.text_of(trial)], work, trial.seconds + DEADLINE_S, code=code
    )
    told = work / OUTCOME_FILE
    outcome: Mapping[str, Any] = json.loads(told.read_text()) if told.exists() else {}
    anomalies = outcome.get("anomalies", [])
    result, detail = ("anomaly", anomalies[0]) if anomalies else ("valid", "")
    if ending.status != 0 or not outcome:
        ended = "did not end in time" if ending.status is None else f"ended with status {ending.status}"
        result, detail = "unknown", f"its process {ended}: {ending.complaint}"
    answers = outcome.get("answers", {})
    return {
        "trial": trial.id,
        "backend": trial.backend,
        "durability": trial.durability,
        "mutant": trial.mutant,
        "expected": "anomaly" if trial.mutant else "valid",
        "result": result,
        "detail": detail,
        "repeat_command": replay.command("readers", trial),
        "seed": trial.seed,
        "rounds": outcome.get("rounds", 0),
        "operations": outcome.get("operations", 0),
        "commits": outcome.get("commits", 0),
        "committed_answers": answers.get("READ_COMMITTED", 0),
        "uncommitted_answers": answers.get("READ_UNCOMMITTED", 0),
    }
