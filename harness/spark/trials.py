"""Crash trials as a Spark job: each one runs in processes of its own, and returns exactly one row.

A finished trial leaves its row in a file, by a rename. A task that is repeated because its executor was killed reads
these files, and runs only the missing trials.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow
from pyspark import TaskContext
from pyspark.sql import SparkSession

from harness.experiments.crash.row import TEXT_COLUMNS, Row, row
from harness.experiments.crash.run import DEADLINE_S, Outcome, examine
from harness.experiments.crash.trial import Trial, from_text
from harness.folders import quick_folder, temporary_folder
from harness.processes.fork_server import ForkServer
from harness.spark.session import code_path
from stores.errors import ConfigError

SCHEMA = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in TEXT_COLUMNS),
        ("seed", pyarrow.int64()),
        ("attempt", pyarrow.int64()),
        ("seconds", pyarrow.float64()),
    ]
)
DDL = ", ".join([*(f"{name} string" for name in TEXT_COLUMNS), "seed long", "attempt long", "seconds double"])
SLICES_PER_CORE = 8


def run_trials(
    spark: SparkSession, trials: Iterable[Trial], folder: Path, *, deadline_s: float = DEADLINE_S
) -> list[Row]:
    """Run every trial once, and return one row each, ordered by the trials' ids. Equal trials run once.

    The rows are kept in ``folder`` as ``trials.parquet``. A run needs its own folder, which all executors must see.
    ``deadline_s`` is for each process of a trial.

    Raises: ConfigError if the folder has an earlier run.
    """
    # Shuffled with a fixed seed: neighbours are alike, and one slice must not get all the slow ones.
    texts = sorted({trial.text for trial in trials})
    random.Random(len(texts)).shuffle(texts)
    folder = folder.absolute()
    target = folder / "trials.parquet"
    if target.exists():
        raise ConfigError(f"{target} is there already: give each run a folder of its own")
    if not texts:
        return []
    finished = folder / "finished"
    finished.mkdir(parents=True, exist_ok=True)
    slices = min(len(texts), SLICES_PER_CORE * spark.sparkContext.defaultParallelism)
    try:
        # Written once and read back: every action on the frame itself would run the trials again.
        (
            spark.range(0, len(texts), 1, slices)
            .mapInArrow(_slice(texts, finished, code_path(), deadline_s), DDL)
            .write.parquet(target.as_uri())
        )
        return sorted((found.asDict() for found in spark.read.parquet(target.as_uri()).collect()), key=_trial_id)
    finally:
        shutil.rmtree(finished, ignore_errors=True)


def finished_trials(folder: Path) -> int:
    """Return how many trials of the run in ``folder`` are finished, to show progress."""
    return sum(1 for _ in (folder / "finished").glob("*.json"))


def _slice(
    texts: Sequence[str], finished: Path, code: str, deadline_s: float
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        attempt, task = (context.attemptNumber(), context.taskAttemptId()) if context else (0, 0)
        # If the driver's folder is on this machine, processes start faster from it than from the zip file.
        here = code if Path(code, "harness").is_dir() else code_path()
        with _fork_server() as (fork_server, work):
            for batch in batches:
                rows = []
                for number in batch.column(0).to_pylist():
                    trial = from_text(texts[number])
                    rows.append(
                        _once(trial, finished, work / f"{trial.id}-{task}", here, deadline_s, attempt, fork_server)
                    )
                yield pyarrow.RecordBatch.from_pylist(rows, schema=SCHEMA)

    return run


@contextmanager
def _fork_server() -> Iterator[tuple[ForkServer | None, Path]]:
    """Yield a working folder, and, on Linux, a fork server, which saves an interpreter start for each process."""
    if sys.platform == "linux":
        with ForkServer(preload=False, within=quick_folder()) as fork_server:
            yield fork_server, fork_server.folder
    else:
        with temporary_folder("trials") as folder:
            yield None, Path(folder)


def _once(
    trial: Trial, finished: Path, work: Path, code: str, deadline_s: float, attempt: int, fork_server: ForkServer | None
) -> Row:
    """Return the row of a trial: that of an earlier attempt if it finished, else run the trial."""
    target = finished / f"{trial.id}.json"
    if target.exists():
        earlier: Row = json.loads(target.read_text())
        return earlier
    try:
        outcome: Outcome = examine(trial, work=work, code=code, deadline_s=deadline_s, fork_server=fork_server)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    made = row(outcome, attempt)
    beside = target.with_name(f"{work.name}.new")
    beside.write_text(json.dumps(made))
    beside.replace(target)
    return made


def _trial_id(found: Row) -> str:
    return str(found["trial"])
