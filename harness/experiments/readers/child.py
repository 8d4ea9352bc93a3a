"""The process of one trial: ``python -m harness.experiments.readers.child TRIAL`` in the trial's work folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from harness import replay
from harness.experiments.readers.trial import Trial, run
from harness.processes.child import end_with_starter

OUTCOME_FILE = "outcome.json"


def main() -> None:
    """Run the trial, and write its outcome to ``OUTCOME_FILE``."""
    work = Path.cwd()
    outcome = run(replay.from_text(Trial, sys.argv[1]), work / "stores")
    (work / OUTCOME_FILE).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    end_with_starter()
    main()
