"""Trials spread over Spark: each Spark task runs some, one after the other.

Tasks take trials from one queue, in the order of the plan, so that a run that its deadline ends has tried the first
ones. A task marks each trial that it takes with a link that names the task, which only one of them can create. A
finished trial leaves its rows in a file, by a rename. A task that is repeated because its executor was killed reads its
own ones, and runs only those that it had not finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession

from harness.budget import NEVER, Deadline, TimeOverError, ended_by, part_of
from harness.experiment import Experiment, Outcome, TrialWorker
from harness.folders import temporary_folder
from harness.processes.child import MeasurementFailedError
from harness.processes.fork_server import ForkServer, fork_server
from harness.progress import ProgressFile, note_progress
from harness.report.rows import Row
from harness.spark.session import code_path
from stores.errors import ConfigError

SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "rows": pa.string(),
        "failure": pa.string(),
        "attempt": pa.int64(),
        "seconds": pa.float64(),
    }
)
_DDL = "number long, rows string, failure string, attempt long, seconds double"
_RESULT = pa.schema({"number": pa.int64(), "result": pa.string()})
_RESULT_DDL = "number long, result string"
TARGET, FINISHED, TAKEN, KEPT, TOTAL = "trials.parquet", "finished", "taken", "recordings", "total"
TASKS_PER_CORE = 12
"""The number of tasks that prepare trials; the trials themselves are taken by one task per core."""
SAY_EVERY_S = 10.0
_Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class SparkSite:
    """Folders and code on the driver's machine: scratch, progress, and the code; tasks may run on another machine."""

    scratch: Path
    progress: Path
    code: str

    def within(self) -> Path | None:
        """Return the parent of a task's folders: the driver's, which removes them after a kill, if it is here."""
        return self.scratch if os.access(self.scratch, os.W_OK | os.X_OK) else None

    def child_code(self) -> str:
        """Return the import path for a task's children: the driver's folder, if it is here, else the zip file."""
        return self.code if Path(self.code, "harness").is_dir() else code_path()


def run_trials(
    spark: SparkSession,
    experiment: Experiment[Any],
    trials: Sequence[Any],
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    deadline: Deadline = NEVER,
    interrupted: Callable[[list[Row]], None] = lambda _: None,
) -> Outcome:
    """Run every trial once, and return the rows in the order in which ``experiment.prepare`` puts the trials.

    After ``deadline`` no trial begins. The processes of those that run are killed; what they had not finished counts as
    left out. The extent of the outcome says how many ran.
    ``folder`` gets ``trials.parquet`` with one row per trial, and what the experiment keeps in ``recordings``. A run
    needs its own folder, which all executors must see. ``say`` gets lines of progress. If the run is
    interrupted, ``interrupted`` gets the rows of the trials that were finished.

    Raises: ConfigError if the folder has an earlier run.
    """
    folder = folder.absolute()
    target, finished, links, recordings = (folder / name for name in (TARGET, FINISHED, TAKEN, KEPT))
    if target.exists():
        raise ConfigError(f"{target} is there already: give each run a folder of its own")
    outcome = Outcome()
    if not trials or deadline.passed:
        for trial in trials:
            outcome.count(experiment.extent(trial)[0], 0, experiment.extent(trial)[1])
        return outcome
    for subfolder in (finished, links, recordings):
        # They are from a run whose driver was killed; its trials may differ.
        shutil.rmtree(subfolder, ignore_errors=True)
        subfolder.mkdir(parents=True)
    try:
        with temporary_folder(experiment.name) as scratch, ProgressFile(scratch / "progress", say) as progress:
            site = SparkSite(scratch, progress.path, code_path())
            with _counting(experiment, folder, say):
                prepared = experiment.prepare(trials, recordings, _Distributed(spark, experiment, site, deadline))
                (folder / TOTAL).write_text(str(sum(experiment.cost_s(trial) < math.inf for trial in prepared)))
                _run(spark, experiment, prepared, target, site, deadline)
        results = {row["number"]: row for row in pq.read_table(target).to_pylist()}
        for number, trial in enumerate(prepared):
            result = results.get(number)
            rows = [] if result is None else json.loads(result["rows"])
            unit, size = experiment.extent(trial)
            outcome.count(unit, 0 if result is None else experiment.tried(trial, rows), size)
            outcome.rows.extend(rows if result else experiment.untried(trial))
            if result and result["failure"]:
                outcome.problems.append(f"{experiment.subject(trial)}: {result['failure']}")
    except KeyboardInterrupt:
        interrupted(_rows_in(finished))
        raise
    finally:
        shutil.rmtree(finished, ignore_errors=True)
        shutil.rmtree(links, ignore_errors=True)
        (folder / TOTAL).unlink(missing_ok=True)
        experiment.tidy(recordings, outcome.rows)
        with contextlib.suppress(OSError):
            recordings.rmdir()
    return outcome


def _rows_in(finished: Path) -> list[Row]:
    """Return the rows of all trials that have finished; a trial's file comes by a rename, so it is whole."""
    return [row for file in sorted(finished.glob("*.json")) for row in json.loads(json.loads(file.read_text())["rows"])]


def finished_trials(folder: Path) -> tuple[int, int]:
    """Return how many trials of the run in ``folder`` are finished, and their total; 0, 0 while they are prepared."""
    try:
        total = int((folder / TOTAL).read_text())
    except (OSError, ValueError):
        return 0, 0
    return sum(1 for _ in (folder / FINISHED).glob("*.json")), total


def _run(
    spark: SparkSession,
    experiment: Experiment[Any],
    trials: Sequence[Any],
    target: Path,
    site: SparkSite,
    deadline: Deadline,
) -> None:
    finished, links = target.with_name(FINISHED), target.with_name(TAKEN)

    def run(batches: _Batches) -> _Batches:
        context = TaskContext.get()
        attempt, task = (context.attemptNumber(), context.taskAttemptId()) if context else (0, 0)
        with _surroundings(experiment, site) as (server, work):
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    for number in taken_by(place, links, costs_s, deadline):
                        worker = TrialWorker(
                            work / f"{number}-{task}", site.child_code(), attempt, server, None, deadline
                        )
                        result = _once(experiment, trials[number], number, worker, finished, site.progress)
                        if result is not None:
                            yield pa.RecordBatch.from_pylist([result], schema=SCHEMA)

    costs_s = [experiment.cost_s(trial) for trial in trials]
    tasks = max(1, min(len(trials), spark.sparkContext.defaultParallelism))
    # Written once and read back: every action on the frame itself would run the trials again.
    spark.range(0, tasks, 1, tasks).mapInArrow(run, _DDL).write.parquet(target.as_uri())


def taken_by(task: int, taken: Path, costs_s: Sequence[float], deadline: Deadline) -> Iterator[int]:
    """Yield the trials that a task takes from a queue, one by one, until ``deadline``.

    ``costs_s`` are the seconds that the trials take, 0 for short ones. One that would take longer than the time that
    remains is left out.
    Each of the others belongs to another task. A task that is repeated gets all that it had taken before, also after
    the deadline, because their rows are its rows.
    """
    for trial, cost_s in enumerate(costs_s):
        link = taken / str(trial)
        if deadline.remaining_s > cost_s:
            with contextlib.suppress(FileExistsError):
                # Creating a link is atomic: it never exists without the name of its task.
                os.symlink(str(task), link)
        if link.is_symlink() and os.readlink(link) == str(task):
            yield trial


@contextlib.contextmanager
def _surroundings(experiment: Experiment[Any], site: SparkSite) -> Iterator[tuple[ForkServer | None, Path]]:
    """Yield one fork server for all trials of a task, because a start takes long, and a folder for their folders."""
    with contextlib.ExitStack() as stack:
        server = None
        if experiment.forks is not None:
            server = stack.enter_context(fork_server(preload=experiment.forks.preload))
        # The folder of a fork server is removed even if this process is killed.
        yield server, server.folder if server else stack.enter_context(temporary_folder("trials", site.within()))


def _once(
    experiment: Experiment[Any], trial: Any, number: int, worker: TrialWorker, finished: Path, progress: Path
) -> dict[str, Any] | None:
    """Return the rows of a trial as one row: that of an earlier attempt if it finished, else run the trial.

    Return None if the time was over before it ended.
    """
    target = finished / f"{number}.json"
    if target.exists():
        earlier: dict[str, Any] = json.loads(target.read_text())
        return earlier
    begun = time.monotonic()
    rows: list[Row] = []
    failure = ""
    try:
        with ended_by(worker.deadline):
            rows = list(experiment.run(trial, worker))
    except TimeOverError:
        return None
    except MeasurementFailedError as error:
        failure = str(error)
    finally:
        shutil.rmtree(worker.folder, ignore_errors=True)
    if line := f"failed: {failure}" if failure else experiment.line(trial, rows):
        note_progress(progress, f"{experiment.subject(trial)}: {line}")
    seconds = time.monotonic() - begun
    result = {
        "number": number,
        "rows": json.dumps(rows),
        "failure": failure,
        "attempt": worker.attempt,
        "seconds": seconds,
    }
    beside = target.with_name(f"{worker.folder.name}.new")
    beside.write_text(json.dumps(result))
    beside.replace(target)
    return result


@dataclass(frozen=True)
class _Distributed:
    """Calls a function with every item in Spark tasks, see ``harness.experiment.Each``."""

    spark: SparkSession
    experiment: Experiment[Any]
    site: SparkSite
    deadline: Deadline

    def __call__(
        self, function: Callable[[Any, ForkServer | None], Any], items: Sequence[Any], part: float
    ) -> list[Any]:
        if not items:
            return []
        experiment, site = self.experiment, self.site
        until = part_of(self.deadline, part)

        def run(batches: _Batches) -> _Batches:
            # A fork server takes long to start.
            with (
                contextlib.nullcontext((None, None)) if until.passed else _surroundings(experiment, site) as (server, _)
            ):
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        result = json.dumps(None if until.passed else function(items[number], server))
                        yield pa.RecordBatch.from_pylist([{"number": number, "result": result}], schema=_RESULT)

        tasks = min(len(items), TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism)
        rows = self.spark.range(0, len(items), 1, tasks).mapInArrow(run, _RESULT_DDL).collect()
        return [json.loads(row["result"]) for row in sorted(rows, key=lambda row: row["number"])]


@contextlib.contextmanager
def _counting(experiment: Experiment[Any], folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Say what the finished trials have found, rarely, because reading takes time from the trials."""
    end = threading.Event()
    read: set[str] = set()
    judged = wrong = 0

    def count() -> str:
        nonlocal judged, wrong
        done, total = finished_trials(folder)
        for file in (folder / FINISHED).glob("*.json"):
            if file.name not in read:
                read.add(file.name)
                rows = [row for row in json.loads(json.loads(file.read_text())["rows"]) if "result" in row]
                judged += len(rows)
                wrong += sum(map(experiment.is_wrong, rows))
        found = f"{wrong:,} of {judged:,} results NOT AS PROMISED" if wrong else f"all {judged:,} results as promised"
        return f"{done:,} of {total:,} {experiment.unit}, {found}" if total else "recording"

    def watch() -> None:
        while not end.wait(SAY_EVERY_S):
            say(count())

    if not experiment.unit:
        yield
        return
    watcher = threading.Thread(target=watch, name="count", daemon=True)
    watcher.start()
    try:
        yield
        say(count())
    finally:
        end.set()
        watcher.join()
