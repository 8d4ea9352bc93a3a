"""Trials of readers as a Spark job: each Spark task runs trials, each in a process of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import SparkSession

from harness.experiments.readers.row import COLUMNS, Row, examine
from harness.experiments.readers.trial import Trial
from harness.spark.session import code_path
from stores.errors import ConfigError

SCHEMA = pyarrow.schema(
    [(name, pyarrow.string() if type_ is str else pyarrow.int64()) for name, type_ in COLUMNS.items()]
)
_DDL = ", ".join(f"{name} {'string' if type_ is str else 'long'}" for name, type_ in COLUMNS.items())


def run_readers(spark: SparkSession, trials: Sequence[Trial], folder: Path) -> list[Row]:
    """Run every trial, and return one row of kind "isolation" each, in the order of the trials.

    The rows are kept in ``folder`` as ``isolation.parquet``. A run needs its own folder, which all executors must see.
    Raises: ConfigError if the folder has an earlier run.
    """
    folder = folder.absolute()
    target, work = folder / "isolation.parquet", folder / "work"
    if target.exists():
        raise ConfigError(f"{target} is there already: give each run a folder of its own")
    if not trials:
        return []
    work.mkdir(parents=True, exist_ok=True)
    try:
        # Written once and read back: every action on the frame itself would run the trials again.
        (
            spark.range(0, len(trials), 1, len(trials))
            .mapInArrow(_run(trials, work, code_path()), _DDL)
            .write.parquet(target.as_uri())
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    order = [trial.id for trial in trials]
    rows = pyarrow.parquet.read_table(target).to_pylist()
    return sorted(({"kind": "isolation", **row} for row in rows), key=lambda row: order.index(row["trial"]))


def finished_readers(folder: Path) -> int:
    """Return how many trials of the run in ``folder`` are finished, to show progress."""
    return sum(1 for _ in (folder / "work").glob("*.done"))


def _run(
    trials: Sequence[Trial], work: Path, code: str
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        task = context.taskAttemptId() if context else 0
        here = code if Path(code, "harness").is_dir() else code_path()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                own = work / f"{number}-{task}"
                try:
                    row = examine(trials[number], own, here)
                finally:
                    shutil.rmtree(own, ignore_errors=True)
                (work / f"{number}.done").touch()
                yield pyarrow.RecordBatch.from_pylist([row], schema=SCHEMA)

    return run
