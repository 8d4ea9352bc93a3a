"""I/O faults as a Spark job: recordings are made once, then each Spark task explores some slices of cases.

A finished slice leaves its rows in a file, by a rename. A task that is repeated because its executor was killed reads
these files, and explores only the missing slices.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import SparkSession

from harness.experiments.iofaults.columns import KINDS
from harness.experiments.iofaults.plan import Convicted, Swept
from harness.experiments.iofaults.slices import Recorded, Slice, Writer, explore, make_recording, slices_of
from harness.experiments.iofaults.workshop import Row
from harness.folders import quick_folder
from harness.processes.fork_server import ForkServer
from stores.errors import ConfigError

_ARROW = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
_TYPES = {name: _ARROW[type_] for columns in KINDS.values() for name, type_ in columns.items()}
SCHEMA = pyarrow.schema({"kind": pyarrow.string(), **_TYPES, "attempt": pyarrow.int64()})
_RECORDED = pyarrow.schema({"recorded": pyarrow.string()})
TASKS_PER_CORE = 12
_SQL_NAMES = {"string": "string", "int64": "long", "double": "double", "bool": "boolean"}


def run_sweeps(
    spark: SparkSession, planned: Iterable[Swept | Convicted], folder: Path, *, points_per_slice: int | None = None
) -> list[Row]:
    """Explore all planned cases. Return rows of the kinds "effect", one per trial, "effect_slice" and "mutant".

    The rows are kept in ``folder`` as ``effects.parquet``, and the recordings of unexpected trials in ``recordings``. A
    run needs its own folder, which all executors must see. ``points_per_slice`` depends on the fault unless given.

    Raises: ConfigError if the folder has an earlier run.
    """
    wanted = list(dict.fromkeys(planned))
    folder = folder.absolute()
    target = folder / "effects.parquet"
    if target.exists():
        raise ConfigError(f"{target} is there already: give each run a folder of its own")
    if not wanted:
        return []
    finished, recordings = folder / "finished", folder / "recordings"
    for made in (finished, recordings):
        # They are from a run whose driver was killed; its slices may differ.
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    try:
        writers = list(dict.fromkeys(Writer.of(each) for each in wanted if isinstance(each, Swept)))
        slices = slices_of(wanted, _recorded(spark, writers, recordings), recordings, points_per_slice)
        _total(folder).write_text(str(len(slices)))
        tasks = min(len(slices), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
        # Slices are dealt out, because neighbours are alike: no task gets all slow ones, and each begins with mutants.
        slices = [slice_ for task in range(tasks) for slice_ in slices[task::tasks]]
        # Written once and read back: every action on the frame itself would explore the slices again.
        (
            spark.range(0, len(slices), 1, max(1, tasks))
            .mapInArrow(_explore(slices, finished), _ddl(SCHEMA))
            .write.parquet(target.as_uri())
        )
        rows = [_as_kept(row) for row in pyarrow.parquet.read_table(target).to_pylist()]
        return sorted(rows, key=lambda row: (row["slice"], row["kind"], row.get("point") or 0))
    finally:
        shutil.rmtree(finished, ignore_errors=True)
        _total(folder).unlink(missing_ok=True)
        _remove_but(recordings, [row["repeat"] for row in rows if row.get("repeat")])


def finished_slices(folder: Path) -> tuple[int, int]:
    """Return how many slices of the run in ``folder`` are finished, and their total; 0, 0 during the recordings."""
    try:
        total = int(_total(folder).read_text())
    except (OSError, ValueError):
        return 0, 0
    return sum(1 for _ in (folder / "finished").glob("*.json")), total


def _recorded(spark: SparkSession, writers: Sequence[Writer], recordings: Path) -> dict[Writer, Recorded]:
    if not writers:
        return {}

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with _fork_server() as fork_server:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    writer = writers[number]
                    recorded = make_recording(writer, recordings / writer.name, fork_server)
                    text = json.dumps([number, *astuple(recorded)])
                    yield pyarrow.RecordBatch.from_pylist([{"recorded": text}], schema=_RECORDED)

    tasks = min(len(writers), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    frame = spark.range(0, len(writers), 1, tasks).mapInArrow(run, _ddl(_RECORDED))
    told = [json.loads(row["recorded"]) for row in frame.collect()]
    return {writers[number]: Recorded(*rest) for number, *rest in told}


def _explore(
    slices: Sequence[Slice], finished: Path
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        attempt, task = (context.attemptNumber(), context.taskAttemptId()) if context else (0, 0)
        with _fork_server() as fork_server:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    rows = _once(slices[place], finished, attempt, task, fork_server)
                    yield pyarrow.RecordBatch.from_pylist(rows, schema=SCHEMA)

    return run


@contextmanager
def _fork_server() -> Iterator[ForkServer | None]:
    """Yield one fork server for all slices of a task, because a start takes long; None if it is not possible."""
    try:
        fork_server = ForkServer(within=quick_folder())
    except ConfigError:
        yield None
        return
    with fork_server:
        yield fork_server


def _once(slice_: Slice, finished: Path, attempt: int, task: int, fork_server: ForkServer | None) -> list[Row]:
    """Return the rows of a slice: those of an earlier attempt if it finished, else explore the slice."""
    target = finished / f"{slice_.number}.json"
    if target.exists():
        earlier: list[Row] = json.loads(target.read_text())
        return earlier
    rows = [row | {"attempt": attempt} for row in explore(slice_, fork_server)]
    beside = target.with_name(f"{slice_.number}-{task}.new")
    beside.write_text(json.dumps(rows))
    beside.replace(target)
    return rows


def _as_kept(row: Row) -> Row:
    """Return a row with only the columns of its kind."""
    return {name: row[name] for name in ("kind", *KINDS[row["kind"]])}


def _remove_but(recordings: Path, commands: Sequence[str]) -> None:
    for file in recordings.iterdir():
        # A command contains the name at the end of a path in JSON.
        if not any(f'/{file.name}"' in command for command in commands):
            # After an interruption, tasks may still use this folder.
            file.unlink(missing_ok=True)
    with suppress(OSError):
        recordings.rmdir()


def _total(folder: Path) -> Path:
    return folder / "slices"


def _ddl(schema: pyarrow.Schema) -> str:
    return ", ".join(f"{column.name} {_SQL_NAMES[str(column.type)]}" for column in schema)
