"""Trials that run before Spark starts: one after the other, each in processes of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from harness.experiment import Experiment, Outcome, Row, Worker
from harness.folders import temporary_folder
from harness.processes.measured import MeasurementFailedError


def run_local(experiment: Experiment[Any], trials: Sequence[Any], say: Callable[[str], None]) -> Outcome:
    """Run the trials. If one fails, there is a problem instead of all rows. ``say`` gets lines of progress."""
    rows: list[Row] = []
    try:
        with temporary_folder(experiment.name) as folder:
            for number, trial in enumerate(trials, 1):
                found = list(experiment.run(trial, Worker(folder / f"{number}")))
                rows += found
                if line := experiment.line(trial, found):
                    say(f"store {number}/{len(trials)}  {line}")
    except (MeasurementFailedError, RuntimeError, subprocess.TimeoutExpired) as error:
        return Outcome([], [f"{experiment.unmeasured}: {error}"])
    return Outcome(rows)
