"""A quiet Spark session for experiments, whose failures are one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.spark.session import session

Session = SparkSession
TASK_FAILURES_MAX = 3
"""A Spark task is tried so many times, for example if its executor dies. No trial is lost or counted twice by that."""


def local_master(partitions: Iterable[int]) -> str:
    """Return the master for all cores of this machine, with a slot for each task that is measured at the same time."""
    return f"local[{max(2, os.cpu_count() or 1, *partitions)}]"


class SparkFailedError(Exception):
    """A Spark job ended with an error. The message names the error and the file with Spark's own messages."""


@contextlib.contextmanager
def spark_session(app_name: str, master: str, log_folder: Path | None) -> Iterator[SparkSession]:
    """Start a quiet session for experiments. ``log_folder`` is as for ``session``.

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
