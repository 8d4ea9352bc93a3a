"""The stages of a run: each runs the planned measurements or trials, and returns rows for the report."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from harness.experiments.crash.trial import Trial
from harness.experiments.opening.opening import OpeningTrial
from harness.experiments.throughput.plan import Batch
from harness.faults import failpoint_of, fault_text
from harness.scenario import EVENT_LOG
from harness.spark import events
from harness.spark.opening import measure_openings
from harness.spark.session import session
from harness.spark.throughput import Outcome, batch_events, measure
from harness.spark.trials import finished_trials, run_trials
from harness.workloads.event_log import EventLog

Row = dict[str, Any]
Say = Callable[[str], None]

SAY_EVERY_S = 10.0
TASK_FAILURES_MAX = 3
"""A Spark task is tried so many times, for example if its executor dies. No trial is lost or counted twice by that."""


def local_master(partitions: Iterable[int]) -> str:
    """Return the master for all cores of this machine, with a slot for each task that is measured at the same time."""
    return f"local[{max(2, os.cpu_count() or 1, *partitions)}]"


class SparkFailedError(Exception):
    """A Spark job ended with an error. The message names the error and the file with Spark's own messages."""


@contextlib.contextmanager
def spark_session(app_name: str, master: str, log_folder: Path) -> Iterator[SparkSession]:
    """Start a quiet session for stages.

    Raises: ConfigError if Spark does not start, SparkFailedError for a job that fails.
    """
    # After an interruption py4j logs the traceback of the present call to the root logger.
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())
    reason = ""
    try:
        with session(app_name, master, max_failures=TASK_FAILURES_MAX, log_folder=log_folder) as spark:
            try:
                yield spark
            except (PySparkException, Py4JError, ConnectionError) as error:
                reason = _reason(error)  # Asked of the JVM, which is gone once the session is left.
                raise
    except (PySparkException, Py4JError, ConnectionError) as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        raise SparkFailedError(f"Spark failed: {reason or type(error).__name__}. {notes}".strip()) from error


def _reason(error: Exception) -> str:
    """Return the reason of a failure in one line: of a chain of Java causes, the last one."""
    try:
        text = str(error)
    except (Py4JError, OSError):
        text = ""
    if not text.strip() or "OutOfMemoryError" in text or isinstance(error, Py4JNetworkError | ConnectionError):
        return (
            "its JVM has ended, most likely for lack of memory. Give it more with spark-submit, for example: "
            "spark-submit --driver-memory 4g scenarios/your_event_log.py"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0]).removeprefix("Caused by: ").rstrip(".")


@dataclass(frozen=True)
class Planned:
    """A trial, its scenario, and its expected result: ``valid``, or ``anomaly`` for a mutant."""

    scenario: str
    trial: Trial
    expected: str = "valid"


def crash_rows(spark: SparkSession, planned: Sequence[Planned], folder: Path, say: Say) -> list[Row]:
    """Return rows of kind "crash", one per trial and checker. A trial that several scenarios share runs once.

    ``folder``, which all executors must see, gets the trials' files.
    """
    trials = {each.trial.id: each.trial for each in planned}

    def tell() -> str:
        return f"{finished_trials(folder)}/{len(trials)} trials"

    with now_and_then(tell, say):
        found = {str(row["trial"]): row for row in run_trials(spark, trials.values(), folder)}
    say(tell())
    return [row for each in dict.fromkeys(planned) for row in _verdict_rows(each, found[each.trial.id])]


def throughput_rows(spark: SparkSession, plan: Sequence[Batch], seed: int, log: EventLog | None, say: Say) -> Outcome:
    """Run every measurement of the batches; ``log`` has the events of the workload ``event_log``."""
    done = Outcome()
    for batch in plan:
        source = _events(spark, batch, seed, log, say)
        part = measure(spark, batch, source, say=say)
        done.rows.extend(part.rows)
        done.problems.extend(part.problems)
    return done


def opening_rows(spark: SparkSession, trials: Sequence[OpeningTrial], say: Say) -> Outcome:
    """Run every opening trial."""
    return measure_openings(spark, trials, say=say) if trials else Outcome()


def _events(spark: SparkSession, batch: Batch, seed: int, log: EventLog | None, say: Say) -> DataFrame:
    if batch.workload == EVENT_LOG and log is not None:
        return events.event_log(spark, log, batch.partitions, say)
    return batch_events(spark, batch, seed)


def _verdict_rows(planned: Planned, found: Mapping[str, Any]) -> list[Row]:
    trial = planned.trial
    shared = {
        "kind": "crash",
        "trial_id": trial.id,
        "backend": trial.backend,
        "durability": trial.durability,
        "guarantee": trial.guarantee,
        "records": trial.records,
        "scenario": planned.scenario,
        "fault": fault_text(trial.fault),
        "failpoint": failpoint_of(trial.fault),
        "seed": trial.seed,
        "expected": planned.expected,
        "repeat_command": found["repeat"],
    }
    return [
        {**shared, "checker": verdict["checker"], "result": verdict["result"], "detail": verdict["detail"]}
        for verdict in json.loads(found["verdicts"])
    ]


@contextlib.contextmanager
def now_and_then(tell: Callable[[], str], say: Say) -> Iterator[None]:
    """Pass the result of ``tell`` to ``say`` rarely, because counting takes time from the trials."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAY_EVERY_S):
            say(tell())

    watcher = threading.Thread(target=watch, name="count", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
