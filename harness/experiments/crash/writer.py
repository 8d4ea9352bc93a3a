"""The first process of a trial: ``python -m harness.experiments.crash.writer 0`` in the trial's work folder.

It creates all files, works, and dies where the trial's fault says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness import replay
from harness.experiments.crash.history import History
from harness.experiments.crash.job import Job, arm
from harness.experiments.crash.layout import TRIAL_FILE, history_file
from harness.experiments.crash.trial import Trial
from harness.faults import steps
from harness.mutants.registry import patch
from harness.processes.child import end_with_starter
from stores.registry import backend_named


def work(number: int) -> None:
    """Work until the fault kills this process, or to the end of the input."""
    folder = Path.cwd()
    trial = replay.from_text(Trial, (folder / TRIAL_FILE).read_text())
    step = steps(trial.fault)[0]
    patch(trial.mutant, backend_named(trial.backend).name)
    with History(folder / history_file(number)) as history:
        history.note("begin")
        job = Job(trial, folder, step, history)
        arm(step, history)
        job.open()
        job.work()


if __name__ == "__main__":
    end_with_starter()
    work(int(sys.argv[1]))
