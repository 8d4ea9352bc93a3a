"""Trials that run before Spark starts: one after the other, each in processes of its own."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from harness.budget import NEVER, Deadline, TimeOverError, ended_by
from harness.experiment import Experiment, Outcome, Row, TrialWorker
from harness.folders import temporary_folder
from harness.processes.child import MeasurementFailedError
from harness.processes.load import LoadWatch, load_columns

PROBLEMS_MAX = 3
"""After so many trials have failed, no further one runs: they may all fail for the same reason."""


def run_local(
    experiment: Experiment[Any],
    trials: Sequence[Any],
    say: Callable[[str], None],
    deadline: Deadline = NEVER,
    keep: Callable[[list[Row]], object] = lambda _: None,
) -> Outcome:
    """Run the trials, and then those of further rounds, until ``deadline``; see ``Experiment.next_round``.

    At the deadline the processes of a trial are killed, and it counts as left out. A trial that fails is a problem, and
    the next one runs; after ``PROBLEMS_MAX`` problems none does. ``say`` gets lines of progress, ``keep`` the rows of
    each trial when it ends. Each row has the load of the machine during its trial (``load_columns``), unless the
    experiment has measured that of a part.
    """
    outcome = Outcome()
    tried: dict[int, int] = {}
    with temporary_folder(experiment.name) as folder, ended_by(deadline):
        number, round_ = 0, list(trials)
        while round_:
            for trial in round_:
                number += 1
                if len(outcome.problems) == PROBLEMS_MAX or deadline.remaining_s <= experiment.cost_s(trial):
                    continue
                watch = LoadWatch()
                try:
                    found = list(experiment.run(trial, TrialWorker(folder / f"{number}", deadline=deadline, say=say)))
                except TimeOverError:
                    continue
                except (MeasurementFailedError, RuntimeError, subprocess.TimeoutExpired) as error:
                    outcome.problems.append(f"a trial of {experiment.words or experiment.title} failed: {error}")
                    continue
                load = load_columns([watch.figures()])
                found = [{**load, **row} for row in found]
                keep(found)
                outcome.rows.extend(found)
                tried[number] = experiment.tried(trial, found)
                if found and (line := experiment.line(trial, found)):
                    say(f"{number}/{max(number, len(trials))}  {line}")
            goes_on = math.isfinite(deadline.at) and not deadline.passed and not outcome.problems
            round_ = experiment.next_round(trials, outcome.rows, deadline.remaining_s) if goes_on else []
    for number, trial in enumerate(trials, 1):
        unit, size = experiment.extent(trial)
        outcome.count(unit, tried.get(number, 0), size)
    return outcome
