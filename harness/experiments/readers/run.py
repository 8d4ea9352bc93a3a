"""A trial as a row: it runs in its own process, is checked, and has the command that repeats it.

The process is ``python -m harness.experiments.readers.run TRIAL`` in the trial's work folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import replay
from harness.experiments.readers.trial import ReadersTrial, run
from harness.processes.child import end_with_starter, run_child

Row = dict[str, Any]

TEXTS = ("trial", "backend", "durability", "mutant", "expected", "result", "detail", "repeat_command")
COUNTS = ("seed", "rounds", "operations", "commits", "committed_answers", "uncommitted_answers")
COLUMNS: Mapping[str, type] = MappingProxyType({**dict.fromkeys(TEXTS, str), **dict.fromkeys(COUNTS, int)})
"""The columns of rows of the kind "isolation"."""
OUTCOME_FILE = "outcome.json"
DEADLINE_S = 120.0
"""The time that a process may take in addition to the seconds of its trial."""


def examine(trial: ReadersTrial, work: Path, code: str | None = None) -> Row:
    """Run a trial in the folder ``work``. Return its row: ``valid``, ``anomaly``, or ``unknown`` if it did not end."""
    work.mkdir(parents=True, exist_ok=True)
    ending = run_child(
        "harness.experiments.readers.run", [replay.text_of(trial)], work, trial.seconds + DEADLINE_S, code=code
    )
    outcome_file = work / OUTCOME_FILE
    outcome: Mapping[str, Any] = json.loads(outcome_file.read_text()) if outcome_file.exists() else {}
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


def main() -> None:
    """Run the trial, and write its outcome to ``OUTCOME_FILE``."""
    work = Path.cwd()
    outcome = run(replay.from_text(ReadersTrial, sys.argv[1]), work / "stores")
    (work / OUTCOME_FILE).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    end_with_starter()
    main()
