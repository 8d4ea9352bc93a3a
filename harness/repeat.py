"""The command that runs one trial again: ``python -m harness repeat EXPERIMENT '<JSON>'``."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.experiment import Again, Experiment, TrialPlacement, TrialWorker
from harness.experiments.registry import experiment_named
from harness.processes.child import MeasurementFailedError
from stores.errors import ConfigError


def repeat(name: str, text: str, keep: Path | None, deadline_s: float | None) -> int:
    """Run one trial of an experiment again, and print its result. Return 0 if it is as it should be, else 1.

    ``text`` is the trial as JSON, or ``-`` for standard input. It works in the new folder ``keep``, or in a temporary
    one. Raises: ConfigError for a bad trial.
    """
    if deadline_s is not None and not 0 < deadline_s < math.inf:
        raise ConfigError(f"--deadline is a number of seconds above 0, not {deadline_s:g}")
    experiment = experiment_named(name)
    trial = experiment.read(_standard_input() if text == "-" else text)
    if keep is not None:
        _make_empty(keep)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{experiment.name}-", ignore_cleanup_errors=True) as folder:
            work = Path(folder) / "trial" if keep is None else keep.absolute()
            again = _again(experiment, trial, TrialWorker(work, deadline_s=deadline_s))
    except (MeasurementFailedError, subprocess.TimeoutExpired) as error:
        print(f"{experiment.name}: {error}", file=sys.stderr)
        return 1
    for line in again.lines:
        print(line)
    for failure in again.failures:
        print(failure, file=sys.stderr)
    return 0 if again.ok else 1


def _again(experiment: Experiment[Any], trial: Any, worker: TrialWorker) -> Again:
    if experiment.placement is not TrialPlacement.GANG:
        return experiment.repeat(trial, worker)
    from harness.progress import Progress
    from harness.spark.gang import Gangs
    from harness.spark.session import local_master, spark_session
    from stores.java import find_java

    find_java()
    progress = Progress()
    progress.stage(f"repeat {experiment.name}")
    # Spark's own messages are kept after a failure, so they are not for the trial's folder.
    with spark_session(experiment.name, local_master([experiment.slots([trial])]), None) as spark:
        outcome = Gangs(spark, trial.seed, None, progress.say).run([trial])
    again = experiment.again(trial, outcome.rows)
    failures = [*outcome.problems, *again.failures]
    return Again(again.lines, failures, not failures)


def _make_empty(folder: Path) -> None:
    """Create ``folder`` unless it exists, and check that it is empty. Raises: ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another folder")
    except OSError as error:
        raise ConfigError(f"--keep {folder} cannot be created ({error.strerror}): choose another folder") from error


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"a trial is a JSON object, and standard input is no text: {error}") from error
