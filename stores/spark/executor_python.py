"""The Python in which Spark runs functions: the driver's own on a local master, checked before a query elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stores.errors import ConfigError
from stores.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "PYSPARK_PYTHON"
"""The variable that names the Python of executors; without it Spark starts ``python3`` of PATH there."""
_MODULES = ("pyarrow", "pandas", "stores.spark.task")
_checked: set[str] = set()
"""The applications of Spark whose Python was found to have all that it needs."""


def prepare_python(session: SparkSession) -> None:
    """Let Spark run functions in the driver's Python on a local master; check that a Python named otherwise can.

    The check is one small job for each application. Raises: ConfigError if that Python does not start, is of another
    version, or lacks a package.
    """
    context = getattr(session, "sparkContext", None)
    if context is None or context.applicationId in _checked:
        return
    if context.master.startswith("local") and not os.environ.get(VARIABLE):
        context.pythonExec = sys.executable
    if context.pythonExec != sys.executable or not context.master.startswith("local"):
        _check(context)
    _checked.add(context.applicationId)


def _check(context: Any) -> None:
    """Import what a query needs in one task. Raises: ConfigError."""
    modules = _MODULES

    def import_modules(_: object) -> Iterator[str]:
        # Sent as code, so that it runs where the library is missing.
        import importlib

        for module in modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                yield str(error)

    try:
        problems = context.parallelize([0], 1).mapPartitions(import_modules).collect()
    except Exception as error:
        raise ConfigError(f"{_cannot_run(context.pythonExec)}: {_reason(error)}") from error
    if problems:
        raise ConfigError(f"{_cannot_run(context.pythonExec)}: {problems[0]}. {_advice()}")


def _cannot_run(python: str) -> str:
    return f"the Python of Spark's executors, {python!r} ({_origin()}), cannot run stateful()"


def _origin() -> str:
    return f"from {VARIABLE}" if os.environ.get(VARIABLE) else f"Spark's default, because {VARIABLE} is not set"


def _advice() -> str:
    return (
        f"Set {VARIABLE} to a Python {sys.version_info[0]}.{sys.version_info[1]} that has txstores[spark] on each "
        f"executor; the driver's was installed by {install_command('spark')}"
    )


def _reason(error: Exception) -> str:
    """Return what went wrong in the job, in one sentence, with what to do."""
    text = str(error)
    for mark in ("PYTHON_VERSION_MISMATCH", "Cannot run program"):
        if mark in text:
            line = next(line for line in text.splitlines() if mark in line)
            return f"{line[line.index(mark) :].strip()}. {_advice()}"
    return f"the job that tries it failed, {text.strip().splitlines()[0]} {_advice()}"
