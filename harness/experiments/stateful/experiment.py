"""The experiment that compares stateful streaming queries: stores of this library, and Spark's own state stores."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic, time
from types import MappingProxyType
from typing import Any

from harness import replay
from harness.budget import SMOKE, TimeOverError
from harness.experiment import Experiment, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.stateful.trial import (
    APPLY,
    IN_ARROW,
    IN_BATCHES,
    JVM,
    OURS,
    OURS_IN_ARROW,
    OURS_IN_BATCHES,
    PANDAS,
    ROWS,
    ROWS_FILE,
    SUBJECTS,
    StatefulTrial,
)
from harness.processes.child import LastingProcess, child_environment, command_of, figures_apart
from harness.processes.load import LOAD_COLUMNS
from harness.progress import PROGRESS_FILE, ProgressFile
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy, interval_ends, medians, ratio_columns
from harness.report.figures import Figure, Figures
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import Page, PageFinding
from harness.report.rows import Row
from stores.errors import ConfigError
from stores.java import find_java

MEASURED = "harness.spark.stateful:measured"
RESTARTED = "harness.spark.stateful:restarted"
DEADLINE_S, RESTART_S = 4 * 3600.0, 300.0
_EVERY_S = 0.01
START_S = 120.0
"""The time in which a slow machine starts Spark, gives each subject its first batches, and has a round."""
SLOW_KEYS_PER_S = 300.0
"""The rate at which a slow machine fills the state of all subjects together, with some batches afterwards."""
PROTOBUF_MIN = (6, 33, 5)
"""The oldest protobuf that reads what pyspark 4.3 has generated."""

SIZES = ((100_000, 5, 0), (2_000, 5, 0), (1_000_000, 1, 1))
"""Keys, rounds of each size of batches, and restarts in every profile but smoke: those with goals first.

They take minutes each. A trial that the budget has no time for is left out."""

GOAL_KEYS = 100_000
"""The number of keys for which the goals hold."""
GOALS = {APPLY: 10.0, PANDAS: 3.0, ROWS: 3.0, JVM: 0.7}
"""The least ratio of the time of a batch over that of ``OURS``."""
BATCH_GOAL = 1.4
"""The least ratio of the time of a batch in the JVM over that of ``OURS_IN_BATCHES``."""
_CELL = "keys, batch_events, partitions, seed"
_TIMES = f"iif(one.subject = '{OURS}', null, one.seconds / ours.seconds)"
# A process that ends in a batch takes all of its CPU time away, which is then unknown.
_CPU_TIMES = f"iif(one.subject <> '{OURS}' and one.cpu_s > 0 and ours.cpu_s > 0, one.cpu_s / ours.cpu_s, null)"
QUERIES = MappingProxyType(
    {
        "stateful": f"""select {_CELL}, one.subject as subject, count(*) as repeats, sum({busy("one")}) as busy,
                median(one.seconds) as seconds, {interval_ends("seconds", "one.seconds")},
                median(iif(one.cpu_s > 0, one.cpu_s, null)) as cpu_s,
                median({_TIMES}) as seconds_ratio, {interval_ends("seconds_ratio", _TIMES)},
                median({_CPU_TIMES}) as cpu_s_ratio, {interval_ends("cpu_s_ratio", _CPU_TIMES)},
                batch_events / median(one.seconds) as events_per_s
            from stateful as one left join (select * from stateful where subject = '{OURS}') as ours
                using ({_CELL}, round)
            group by {_CELL}, one.subject""",
        "stateful_restart": f"""select subject, keys, copies, batch_events, seed, count(*) as repeats,
                {medians("ready_s", "start_s", "first_batch_s")}, {interval_ends("ready_s")}
            from stateful_restart group by subject, keys, copies, batch_events, seed""",
    }
)
"""Medians of each subject, keys and batch size, with the ratios of its times over those of ``OURS``, and of restarts.
"""
_BUSY = f"{busy('theirs')} or {busy('ours')}"
_CPU = "iif(theirs.cpu_s > 0 and ours.cpu_s > 0, theirs.cpu_s / ours.cpu_s, null)"
_GOAL = " ".join(f"when '{yardstick}' then {goal}" for yardstick, goal in GOALS.items())
_LEAST = f"iif(ours.subject = '{OURS_IN_BATCHES}', {BATCH_GOAL}, case theirs.subject {_GOAL} end)"
RATIOS = f"""select 'a batch of ' || exact(batch_events) || ' events, with ' || exact(keys) || ' keys' as claim,
        ours.subject as subject, theirs.subject as yardstick, null as durability, batch_events as records_per_commit,
        iif(keys = {GOAL_KEYS}, {_LEAST}, null) as at_least, '' as reason,
        {ratio_columns("theirs.seconds / ours.seconds", _BUSY, _CPU)}
    from stateful as ours join stateful as theirs using ({_CELL}, round)
    where case theirs.subject {_GOAL} end is not null
        and (ours.subject = '{OURS}'
             or theirs.subject = '{JVM}' and ours.subject in ('{OURS_IN_ARROW}', '{OURS_IN_BATCHES}'))
    group by {_CELL}, ours.subject, theirs.subject"""
"""Times of Spark's own ways over ours in the same round, with the goals."""


_METHOD = f"""\
A streaming query counts events by key, and gives out the new count of each key of the batch. Every subject reads the
same files, has the same trigger (0 seconds) and the same sink (`noop`, which drops the rows), and has as many
partitions as Spark has cores. All of them run in one session, whose JVM has no limits but a heap of 3 GB. Spark's own
state is in its RocksDB provider with changelog checkpointing. Ours is in the log of `stateful`, on the same disk.

First the state of each subject is filled: each key once. Three batches warm up. Then rounds follow. In each round every
subject has its turn, in an order shuffled by the seed: its query starts, has one batch that is not timed, and one that
is. All get the same batches. The rounds of small batches come first. *Seconds* are Spark's own for the batch
(`triggerExecution`). *CPU time* is that of all processes: driver, JVM and Python workers. A ratio is the time of a
subject over that of `{OURS}` in the same round: above 1 ours is faster. On a busy machine only the ratios of CPU times
are meaningful.

`{ROWS}`, `{PANDAS}` and `{APPLY}` call a Python function for each key. `{JVM}` is `groupBy("key").count()`, without
Python. *{IN_ARROW}* means that the function of `stateful` counts in Arrow first, and touches each key once. So does the
one of *{IN_BATCHES}*, which is that of a task (`process_batch`). Else it reads and writes the state for each record.

At the end the state of each subject is read as a table, and compared with what Spark SQL computes from all events. Each
batch must have read all of its events, and given out a row for each of their keys. A difference fails the run. Where
the time of a run was over before the states were read, its rounds count without that.

For a restart, a query goes on in a session of its own. After a batch its driver, the JVM and the Python workers are
killed, and another driver is started at once. *Ready* is the time from the kill to the end of the new driver's first
batch. *Start* is the part until Spark has started. Copies of our stores on the local disk are *lost* with Spark's own
folder, as by default, or *kept*, in a folder that was given as `local`.
"""


_BATCHES = Listing(
    "{exact(keys)} keys: the time of a batch",
    "stateful_figure order by keys, batch_events, place",
    (
        Column("events in a batch", "batch_events", text.exact, right=False),
        Column("subject", "'`' || subject || '`'"),
        Column("function", "called"),
        Column("seconds", "seconds", text.duration, interval=True),
        Column("events/s", "events_per_s", text.count),
        Column("CPU time", "cpu_s", text.duration),
        Column(f"time over {OURS}", "seconds_ratio", text.ratio, interval=True),
        Column("of CPU times", "cpu_s_ratio", text.ratio, interval=True),
        Column("n", "repeats", text.exact),
    ),
)
_RESTARTS = Listing(
    "From the kill of the driver to the end of the first new batch",
    "stateful_restart_figure order by keys, batch_events, place",
    (
        Column("keys", "keys", text.exact),
        Column("subject", "'`' || subject || '`'"),
        Column("local copies", f"coalesce(nullif(copies, ''), '{text.NONE}')"),
        Column("ready", "ready_s", text.duration, interval=True),
        Column("start", "start_s", text.duration),
        Column("first batch", "first_batch_s", text.duration),
        Column("n", "repeats", text.exact),
    ),
)
_MARKS = """select exact(keys) || ' keys, ' || exact(batch_events) || ' events in a batch' as title, subject as backend,
    seconds as value, seconds_from as low, seconds_to as high
    from stateful_figure order by keys, batch_events, place"""


_GOALS = ", ".join(f"{goal:g} against `{subject}`" for subject, goal in GOALS.items())
REPORT = Report(
    ("stateful",),
    "stateful",
    "Stateful queries on Spark",
    (
        "Streaming queries count events by key, with the state in our stores and in Spark's own.",
        f"A ratio above 1 says that `{OURS}` is faster.",
        f"The goals at {GOAL_KEYS:,} keys are {_GOALS}, and {BATCH_GOAL:g} of `{OURS_IN_BATCHES}` against `{JVM}`.",
    ),
    (_BATCHES, _RESTARTS),
    _METHOD,
    (
        Plot(
            Chart(
                "stateful",
                "Seconds of a batch of a stateful query",
                "dots",
                (),
                "seconds of a batch",
                "s",
                more_is_better=False,
            ),
            _MARKS,
        ),
    ),
)


def page(figures: Figures, states: int, wrong: int, absent: str) -> Page:
    """Return the page. ``wrong`` of ``states`` differ; ``absent`` says why nothing was measured."""
    placed = {kind: _placed(figures[kind]) for kind in ("stateful", "stateful_restart")}
    finding = PageFinding("states of stateful queries", states, states - wrong, "equal what Spark SQL computes")
    return REPORT.page(placed, absent=absent, findings=[finding])


def _placed(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures with the place of each subject, and what calls its function."""
    order = list(SUBJECTS)
    return [{**one, "place": order.index(one["subject"]), "called": SUBJECTS[one["subject"]].called} for one in figures]


class Stateful(Experiment[StatefulTrial]):
    """The time of a batch, and the time until a query goes on after its driver was killed."""

    name = "stateful"
    title = "stateful queries on Spark"
    stage = "stateful"
    trial = StatefulTrial
    placement = TrialPlacement.LOCAL
    share = 12
    night_share = 70
    unit = ""
    figures_by = QUERIES
    derived_by = RATIOS
    failed_by = """select subject || ' with ' || exact(keys) || ' keys has a state of ' || exact(num_keys) ||
            ' keys that differs from what Spark SQL computes from the same events' as sentence, repeat
        from stateful_state where checksum <> expected"""
    columns = {
        "stateful": {
            "subject": str,
            "keys": int,
            "batch_events": int,
            "partitions": int,
            "seed": int,
            "round": int,
            "seconds": float,
            "cpu_s": float,
            "repeat": str,
            **dict.fromkeys(LOAD_COLUMNS, float),
        },
        "stateful_state": {
            "subject": str,
            "keys": int,
            "num_keys": int,
            "num_events": int,
            "checksum": str,
            "expected": str,
            "filled_s": float,
            "repeat": str,
        },
        "stateful_restart": {
            "subject": str,
            "keys": int,
            "copies": str,
            "batch_events": int,
            "seed": int,
            "round": int,
            "ready_s": float,
            "start_s": float,
            "first_batch_s": float,
        },
    }

    def plan(self, request: Request) -> list[StatefulTrial]:
        """Return the trials of the profile, that of the goals first; none if none of its backends is chosen."""
        subjects = [
            name
            for name, subject in SUBJECTS.items()
            if subject.backend is None or request.backends is None or subject.full_backend in request.backends
        ]
        if not any(SUBJECTS[name].backend for name in subjects):
            return []
        sizes = () if request.profile == SMOKE else SIZES
        return [
            StatefulTrial(keys, request.seed, rounds=rounds, restarts=restarts, subjects=tuple(subjects))
            for keys, rounds, restarts in sizes
        ]

    def missing(self) -> str:
        """Return the reason why Spark's own ways cannot run here, or ""."""
        return missing()

    def cost_s(self, trial: StatefulTrial) -> float:
        """Return the time in which a slow machine fills the states, and has one round."""
        return START_S + trial.keys / SLOW_KEYS_PER_S

    def kept_s(self, others: Sequence[StatefulTrial]) -> float:
        """Return the time of the shortest one."""
        return min(map(self.cost_s, others), default=0.0)

    def run(self, trial: StatefulTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each timed batch, each state and each restart. Raises: MeasurementFailedError."""
        worker.folder.mkdir()
        try:
            return list(_rows(trial, worker))
        finally:
            shutil.rmtree(worker.folder, ignore_errors=True)

    def extent(self, trial: StatefulTrial) -> tuple[str, int]:
        """Return the number of rounds."""
        return "rounds", trial.rounds * len(trial.batch_events)

    def tried(self, trial: StatefulTrial, rows: Sequence[Row]) -> int:
        """Return the number of rounds in which all subjects were measured."""
        had = Counter((row["round"], row["batch_events"]) for row in rows if row["kind"] == "stateful")
        return sum(subjects == len(trial.subjects) for subjects in had.values())

    def line(self, trial: StatefulTrial, rows: Sequence[Row]) -> str:
        """Return the seconds of a batch of each subject."""
        own = self.figures({"stateful": [row for row in rows if row["kind"] == "stateful"]})["stateful"]
        smallest = [each for each in own if each["batch_events"] == min(trial.batch_events)]
        seconds = ", ".join(f"{each['subject']} {each['seconds']:.2f} s" for each in smallest)
        return f"{trial.keys:,} keys, {min(trial.batch_events):,} events in a batch: {seconds}"

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stateful queries."""
        states = rows.get("stateful_state", ())
        wrong = sum(row["checksum"] != row["expected"] for row in states)
        return page(figures, len(states), wrong, self.absent(facts))


def _rows(trial: StatefulTrial, worker: TrialWorker) -> Iterator[Row]:
    deadline = worker.deadline
    arguments = {
        "keys": trial.keys,
        "seed": trial.seed,
        "batch_events": list(trial.batch_events),
        "rounds": trial.rounds,
        "subjects": list(trial.subjects),
        "partitions": trial.partitions,
        "seconds": deadline.remaining_s if math.isfinite(deadline.at) else None,
        "kept": str(worker.folder),
    }
    repeat = replay.command(Stateful.name, trial)
    same = {"kind": "stateful", "partitions": trial.partitions, "keys": trial.keys, "seed": trial.seed}
    try:
        with ProgressFile(worker.folder / PROGRESS_FILE, lambda line: worker.say(f"{trial.keys:,} keys: {line}")):
            figures = figures_apart(MEASURED, "stateful", arguments, worker.deadline_s or DEADLINE_S)
    except TimeOverError:
        rows = compared(worker.folder / ROWS_FILE)
        if not rows:
            raise
        yield from ({**same, "repeat": repeat, **row} for row in rows)
        return
    yield from ({**same, "repeat": repeat, **row} for row in figures["rows"])
    expected = figures["expected"]
    for subject, state in figures["states"].items():
        yield {
            "kind": "stateful_state",
            "subject": subject,
            "keys": trial.keys,
            "num_keys": state[0],
            "num_events": state[1],
            "checksum": " ".join(map(str, state)),
            "expected": " ".join(map(str, expected)),
            "filled_s": figures["filled_s"][subject],
            "repeat": repeat,
        }
    yield from _restarts(trial, worker, tuple(Path(batch) for batch in figures["more"]))


def compared(file: Path) -> list[Row]:
    """Return the rows in the file of a process that was killed: of its last round, those that can be compared.

    Its states were not read. A round in which ``OURS`` had no turn compares nothing.
    """
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    with_ours = {(row["batch_events"], row["round"]) for row in rows if row["subject"] == OURS}
    kept = [row for row in rows if (row["batch_events"], row["round"]) in with_ours]
    return kept if len(kept) > 1 else []


def _restarts(trial: StatefulTrial, worker: TrialWorker, batches: tuple[Path, ...]) -> Iterator[Row]:
    ways = [
        (subject, keeps_copies)
        for subject in trial.subjects
        for keeps_copies in ((False, True) if SUBJECTS[subject].backend is not None else (False,))
        if not subject.endswith(("-arrow", "-batch"))
    ]
    longest_s = 0.0
    for number in range(trial.restarts):
        for subject, keeps_copies in ways:
            if worker.deadline.remaining_s < longest_s:
                return
            began = monotonic()
            work = worker.folder / "restart"
            work.mkdir()
            try:
                two = (batches[0], batches[1])
                query = worker.folder / subject
                times = restarted(subject, query, two, trial.partitions, work, keeps_copies=keeps_copies)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            copies = ("kept" if keeps_copies else "lost") if SUBJECTS[subject].backend is not None else None
            row = {"subject": subject, "keys": trial.keys, "copies": copies, "batch_events": min(trial.batch_events)}
            longest_s = max(longest_s, monotonic() - began)
            yield {"kind": "stateful_restart", **row, "seed": trial.seed, "round": number, **times}


def restarted(
    subject: str, query: Path, batches: tuple[Path, Path], partitions: int, work: Path, *, keeps_copies: bool
) -> dict[str, Any]:
    """Kill the driver of a query after a batch, start another one, and return the seconds until its batch has ended.

    ``query`` is a folder of a stopped query; a copy of it is used. With ``keeps_copies`` the copies of our stores are
    in a folder that outlives the driver. Raises: MeasurementFailedError.
    """
    shutil.copytree(query, work / "query")
    local = work / "local" if keeps_copies else None
    with _driver(subject, work, batches[0], partitions, local) as first:
        first.await_figures("ended no batch", RESTART_S, _EVERY_S)
        killed_at = time()
    with _driver(subject, work, batches[1], partitions, local) as second:
        times = second.await_figures("ended no batch", RESTART_S, _EVERY_S)
    return {
        "ready_s": times["done_at"] - killed_at,
        "start_s": times["session_at"] - killed_at,
        "first_batch_s": times["first_batch_s"],
    }


def _driver(subject: str, work: Path, batch: Path, partitions: int, local: Path | None) -> LastingProcess:
    """Return the process of a driver that gives the query a batch."""
    folder = work / f"driver-{batch.name}"
    folder.mkdir()
    paths = {"query": str(work / "query"), "batch": str(batch), "local": None if local is None else str(local)}
    command = command_of(RESTARTED, {"subject": subject, "partitions": partitions, **paths}, folder)
    return LastingProcess(RESTARTED, command, folder, child_environment(None, folder))


def missing() -> str:
    """Return the reason why this machine cannot run Spark's own ways to keep state from Python, or ""."""
    try:
        find_java()
        installed = version("protobuf")
    except ConfigError as error:
        return str(error)
    except PackageNotFoundError:
        return "transformWithState needs the package protobuf"
    if tuple(int(part) for part in installed.split(".")[:3]) < PROTOBUF_MIN:
        return f"transformWithState needs protobuf {'.'.join(map(str, PROTOBUF_MIN))} or newer, not {installed}"
    return ""
