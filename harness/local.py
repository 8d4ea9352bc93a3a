"""Trials that run before Spark starts: one after the other, each in processes of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from harness.experiment import Claim, Experiment, Outcome, Request, Row, Worker
from harness.experiments.throughput.run import MeasurementFailedError
from harness.folders import temporary_folder


def run_local(experiment: Experiment[Any], request: Request, say: Callable[[str], None]) -> Outcome:
    """Run the trials of ``request``. If one fails, there is a problem instead of rows. ``say`` gets lines of progress.

    Raises: ConfigError for a request that cannot be met.
    """
    trials = experiment.plan(request)
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
    return Outcome(experiment.finish(trials, rows, Claim(experiment.name)), [])
