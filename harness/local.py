"""Trials that run before Spark starts: one after the other, each in processes of its own."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from harness.budget import NEVER, Deadline
from harness.experiment import Experiment, Outcome, Worker
from harness.folders import temporary_folder
from harness.processes.load import LoadWatch, load_columns
from harness.processes.measured import MeasurementFailedError


def run_local(
    experiment: Experiment[Any], trials: Sequence[Any], say: Callable[[str], None], deadline: Deadline = NEVER
) -> Outcome:
    """Run the trials, and then those of further rounds, until ``deadline``; see ``Experiment.next_round``.

    If one fails, there is a problem instead of all rows. ``say`` gets lines of progress. Each row has the load of the
    machine during its trial (``load_columns``), unless the experiment has measured that of a part.
    """
    outcome = Outcome()
    try:
        with temporary_folder(experiment.name) as folder:
            number, round_ = 0, list(trials)
            tried: dict[int, int] = {}
            while round_:
                for trial in round_:
                    number += 1
                    if deadline.remaining_s <= experiment.cost_s(trial):
                        continue
                    watch = LoadWatch()
                    found = list(experiment.run(trial, Worker(folder / f"{number}", deadline=deadline, say=say)))
                    load = load_columns([watch.figures()])
                    found = [{**load, **row} for row in found]
                    outcome.rows.extend(found)
                    tried[number] = experiment.tried(trial, found)
                    if found and (line := experiment.line(trial, found)):
                        say(f"{number}/{max(number, len(trials))}  {line}")
                bounded = math.isfinite(deadline.at) and not deadline.passed
                round_ = experiment.next_round(trials, outcome.rows, deadline.remaining_s) if bounded else []
    except (MeasurementFailedError, RuntimeError, subprocess.TimeoutExpired) as error:
        return Outcome([], [f"{experiment.unmeasured}: {error}"])
    for number, trial in enumerate(trials, 1):
        unit, size = experiment.extent(trial)
        outcome.count(unit, tried.get(number, 0), size)
    return outcome
