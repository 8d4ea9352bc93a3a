"""Gangs on Spark: throughput of tasks whose partitions run at the same time.

Each partition has one task's events, and measures one configuration after another with them. All partitions run at once
(a barrier stage) and begin each configuration together. Their results are written once to Parquet and read back, so
nothing is measured twice, however often the frame is used.

The partitions wait for each other in a ``Meeting``. ``BarrierTaskContext`` does the same, but looks for the answer once
a second only, so each of its calls costs up to a second, and a measurement has four. In a meeting the first partition
listens on a socket, and the others connect to it. Source: Spark, ``BarrierTaskContext.runBarrier``.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from harness import replay
from harness.budget import NEVER, Budget, Deadline, TimeOverError, ended_by
from harness.experiment import Experiment, Failure, Outcome
from harness.experiments.throughput.experiment import run, throughput_row, work_once
from harness.experiments.throughput.measurement import Configuration, PartitionWork, read_pairs, write_pairs
from harness.experiments.throughput.plan import TRIAL_S, ThroughputTrial, shares
from harness.folders import temporary_folder
from harness.processes.child import MeasurementFailedError
from harness.progress import ProgressFile, note_progress
from harness.spark import events
from harness.spark.expected import differences, expected_state
from harness.spark.runner import SparkSite
from harness.spark.session import code_path
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.tasks import Departures, workload
from harness.workloads.workload import EventSource
from stores.errors import ConfigError

_SCHEMA = pa.schema(
    {
        "measurement": pa.int32(),
        "partition": pa.int32(),
        "figures": pa.string(),
        "failure": pa.string(),
        "digest": pa.string(),
        "store": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
    }
)
_SPARK_SCHEMA = (
    "measurement int, partition int, figures string, failure string, digest string, store string, "
    "key binary, value binary"
)
_PAIRS_PER_BATCH = 10_000
_ENDED = "ended"
MEASUREMENTS = "measurements"
"""The unit in which a run reports what it left out."""
_Batches = Iterator[pa.RecordBatch]
_Cell = tuple[str, int]
"""A level and a number of records per commit. All its backends process the same records."""
_State = tuple[int, int, str]
"""The end state of a partition: the number of laps, the partition, and the digest."""


def run_gangs(
    spark: SparkSession,
    experiment: Experiment[ThroughputTrial],
    trials: Sequence[ThroughputTrial],
    seed: int,
    log: EventLog | None,
    say: Callable[[str], None],
    deadline: Deadline = NEVER,
) -> Outcome:
    """Run every measurement of the trials, and then those of further rounds, until ``deadline``.

    Each trial gets a part of the time (``shares``). ``log`` has the events of the workload ``event_log``. See
    ``Experiment.next_round``.
    """
    outcome = Outcome()
    round_ = list(trials)
    while round_:
        budget = Budget(deadline, dict(enumerate(shares(round_))))
        for number, trial in enumerate(round_):
            until = budget.deadline(number)
            measurements = Outcome()
            if until.remaining_s > TRIAL_S:
                if trial.workload == EVENT_LOG and log is not None:
                    source = events.event_log(spark, log, trial.partitions, say)
                else:
                    source = trial_events(spark, trial, seed)
                measurements = measure(spark, trial, source, say=say, deadline=until)
                outcome.rows.extend(measurements.rows)
                outcome.problems.extend(measurements.problems)
            if trial in trials:
                tried, _ = measurements.extent.get(MEASUREMENTS, (0, 0))
                outcome.count(MEASUREMENTS, tried, len(trial.configurations))
        bounded = math.isfinite(deadline.at) and not deadline.passed
        round_ = experiment.next_round(trials, outcome.rows, deadline.remaining_s) if bounded else []
    return outcome


def trial_events(spark: SparkSession, trial: ThroughputTrial, seed: int) -> DataFrame:
    """Return the events of a trial over a shipped workload. Raises: ConfigError if the workload has no events."""
    source = workload(trial.workload)
    if isinstance(source, Departures):
        return events.flights(spark, trial.partitions, trial.events, late_ms=source.late_ms, seed=seed)
    if isinstance(source, EventSource) and trial.events is not None:
        return events.generated(spark, source, seed, trial.events, trial.partitions)
    raise ConfigError(f"the workload {source.name!r} needs events of your own: give --events PATH and --key COLUMN")


def measure(
    spark: SparkSession,
    trial: ThroughputTrial,
    source: DataFrame,
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = print,
    deadline: Deadline = NEVER,
) -> Outcome:
    """Make the measurements of ``trial`` with the events of ``source`` (as ``harness.spark.events`` makes them).

    Every end state is compared with what Spark SQL computes from the same events. ``folder`` is created and gets the
    results of the partitions, so all executors must see it. Unless given, it is a temporary folder of this machine.
    ``say`` gets lines of progress. After ``deadline`` no measurement begins.

    Raises: ConfigError if the session has fewer cores than the trial has partitions.
    """
    master, cores = spark.sparkContext.master or "", spark.sparkContext.defaultParallelism
    if master.startswith("local") and cores < trial.partitions:
        raise ConfigError(
            f"{trial.partitions} partitions run at once, and {master} has {cores} cores: "
            f"ask for fewer partitions, or for local[{trial.partitions}]"
        )
    with temporary_folder("throughput") as scratch:
        target = (folder or Path(scratch) / "yield").absolute()
        with ProgressFile(Path(scratch) / "progress", say) as progress:
            site = SparkSite(Path(scratch), progress.path, code_path())
            task = _measurer(trial, site, deadline)
            source.mapInArrow(task, _SPARK_SCHEMA, barrier=True).write.parquet(target.as_uri())
        return _compared(trial, source, spark.read.schema(_SPARK_SCHEMA).parquet(target.as_uri()))


class _Partition:
    """One partition of a trial in its Spark task: its events in a file, and its share of each measurement."""

    def __init__(self, trial: ThroughputTrial, met: Meeting, site: SparkSite, folder: Path) -> None:
        self._trial, self._met, self._site, self._folder = trial, met, site, folder
        self._workload = workload(trial.workload)
        self._events, self._span_ms, self._path = 0, 0, folder / "events"
        self._dumped: set[str] = set()
        self.number = met.number

    def keep_events(self, batches: _Batches) -> None:
        """Write the events of Spark's partition to the file."""
        lowest, highest = None, None

        def pairs() -> Iterator[tuple[bytes, bytes, int]]:
            nonlocal lowest, highest
            for batch in batches:
                times = batch.column("timestamp_ms").to_pylist()
                lowest = min(times if lowest is None else [lowest, *times], default=None)
                highest = max(times if highest is None else [highest, *times], default=None)
                yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), times, strict=True)

        self._events = write_pairs(self._path, pairs())
        if lowest is not None and highest is not None and highest > lowest:
            self._span_ms = highest - lowest + 1

    def all_end(self, deadline: Deadline) -> bool:
        """Return True if ``deadline`` has passed. The first partition's clock decides for all, so none waits alone."""
        return self._met.gather(_ENDED if deadline.passed else "")[0] == _ENDED

    def calibrated(self, cell: _Cell, deadline: Deadline) -> int:
        """Return the laps of a level and commit size, the same in all partitions; 1 after ``deadline``.

        Every configuration of the cell processes two laps without a row, because the first is faster than later ones,
        which find their keys. The fastest configuration determines the laps.
        """
        work_s, lap_times = self._trial.work_s, list[float]()
        alike = dict.fromkeys(replace(each, repeat=0) for each in self._trial.configurations if _cell(each) == cell)
        for configuration in alike if work_s else ():
            if self.all_end(deadline):
                break
            try:
                figures = work_once(self._share(configuration, 2), code=self._site.child_code(), within=self._folder)
                mine_s = figures["seconds"] * self._events / max(1, figures["records"])
            except (MeasurementFailedError, TimeOverError):
                mine_s = 0.0  # The measurement itself fails as well, and is reported.
            if slowest_s := max(map(float, self._met.gather(repr(mine_s)))):
                lap_times.append(slowest_s)
        return _laps(work_s, min(lap_times)) if lap_times else 1

    def _share(self, configuration: Configuration, laps: int) -> PartitionWork:
        return PartitionWork(configuration, self._workload, self.number, self._path, self._events, laps, self._span_ms)

    def measured(self, place: int, configuration: Configuration, laps: int) -> Iterator[pa.RecordBatch]:
        """Yield the result of a measurement, and the end state if it is a new one; nothing if the time was over."""
        dumps: list[pa.RecordBatch] = []

        def keep(digest: str, dump: Path) -> None:
            if digest not in self._dumped:
                self._dumped.add(digest)
                dumps.extend(_dump(dump, place, self.number, digest, self._workload.store_names))

        self._met.wait()
        summary = {"records": 0, "seconds": 0.0, "failure": "", "over": False}
        row: dict[str, Any] = {}
        try:
            share = self._share(configuration, laps)
            figures = run(share, keep, meet=self._met.wait, code=self._site.child_code(), within=self._folder)
            summary |= {name: figures[name] for name in ("records", "seconds")}
            row = {"figures": json.dumps({**figures, "laps": laps}), "digest": figures["state_digest"]}
        except MeasurementFailedError as error:
            summary["failure"] = str(error)
            row = {"failure": str(error)}
        except TimeOverError:
            summary["over"] = True
        everywhere = [json.loads(each) for each in self._met.gather(json.dumps(summary))]
        if any(each["over"] for each in everywhere):
            return
        yield from dumps
        yield pa.RecordBatch.from_pylist([{"measurement": place, "partition": self.number, **row}], _SCHEMA)
        if self.number == 0:
            number, total = place + 1, len(self._trial.configurations)
            note_progress(self._site.progress, f"{number}/{total} {_subject(configuration)}: {_said(everywhere)}")


def _measurer(trial: ThroughputTrial, site: SparkSite, deadline: Deadline) -> Callable[[_Batches], _Batches]:
    def measure_partition(batches: _Batches) -> _Batches:
        with (
            temporary_folder("events", site.within()) as scratch,
            meeting(BarrierTaskContext.get()) as met,
            ended_by(deadline),
        ):
            partition = _Partition(trial, met, site, Path(scratch))
            partition.keep_events(batches)
            laps: dict[_Cell, int] = {}
            for place, configuration in enumerate(trial.configurations):
                if trial.laps:
                    times = trial.laps[place]
                elif (cell := _cell(configuration)) in laps:
                    times = laps[cell]
                else:
                    times = laps[cell] = partition.calibrated(cell, deadline)
                if partition.all_end(deadline):
                    break
                yield from partition.measured(place, configuration, times)

    return measure_partition


def _cell(configuration: Configuration) -> _Cell:
    return str(configuration.durability), configuration.records_per_commit


def _laps(work_s: float, lap_s: float) -> int:
    # The first lap begins with the warm-up, which does not count.
    return math.ceil(work_s / lap_s + 0.1)


def _said(partitions: Sequence[dict[str, Any]]) -> str:
    if failures := [each["failure"] for each in partitions if each["failure"]]:
        return f"failed: {failures[0]}"
    seconds = max(each["seconds"] for each in partitions)
    return f"{sum(each['records'] for each in partitions) / seconds if seconds else 0:,.0f} records/s"


def _dump(path: Path, number: int, partition: int, digest: str, stores: Sequence[str]) -> list[pa.RecordBatch]:
    pairs = list(read_pairs(path))
    rows = pa.table(
        {
            "measurement": pa.array([number] * len(pairs), pa.int32()),
            "partition": pa.array([partition] * len(pairs), pa.int32()),
            "figures": pa.nulls(len(pairs), pa.string()),
            "failure": pa.nulls(len(pairs), pa.string()),
            "digest": pa.array([digest] * len(pairs), pa.string()),
            "store": pa.array([stores[pair.number] for pair in pairs], pa.string()),
            "key": pa.array([pair.key for pair in pairs], pa.binary()),
            "value": pa.array([pair.value for pair in pairs], pa.binary()),
        }
    )
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=_PAIRS_PER_BATCH)
    return batches


def _compared(trial: ThroughputTrial, source: DataFrame, yielded: DataFrame) -> Outcome:
    shares = yielded.where("store is null").select("measurement", "partition", "figures", "failure", "digest").collect()
    states = {_state(share) for share in shares if share["digest"]}
    wrong = _wrong_states(trial, source, yielded, states)
    outcome = Outcome()
    for number, configuration in enumerate(trial.configurations):
        mine = [share for share in shares if share["measurement"] == number]
        outcome.count(MEASUREMENTS, bool(mine), 1)
        if not mine:
            continue
        problems = [share["failure"] for share in mine if share["failure"]]
        if not problems:
            problems = [wrong[state] for share in mine if (state := _state(share)) in wrong]
            figures = [json.loads(share["figures"]) for share in mine]
            outcome.rows.append(throughput_row(configuration, figures, "different" if problems else "equal"))
        alone = replace(trial, configurations=(configuration,), laps=trial.laps[number : number + 1])
        # A command cannot name a user's events.
        repeat = "" if trial.workload == EVENT_LOG else replay.command("throughput", alone)
        outcome.problems.extend(str(Failure(f"{_subject(configuration)}: {each}", repeat)) for each in problems)
    return outcome


def _wrong_states(
    trial: ThroughputTrial, source: DataFrame, yielded: DataFrame, states: set[_State]
) -> dict[_State, str]:
    """Return a description of each state of ``states`` that differs from the result of Spark SQL."""
    unread, wrong = set(states), {}
    while unread:
        # Compare one state of each partition at a time. There is only one unless backends disagree.
        laps = min(unread)[0]
        expected = expected_state(trial.workload, events.repeated(source, laps))
        digests = {partition: digest for of_laps, partition, digest in sorted(unread) if of_laps == laps}
        unread -= {(laps, partition, digest) for partition, digest in digests.items()}
        is_chosen = functools.reduce(
            operator.or_,
            ((F.col("partition") == partition) & (F.col("digest") == digest) for partition, digest in digests.items()),
        )
        actual = yielded.where("store is not null").where(is_chosen)
        wrong_keys = differences(actual, expected.where(F.col("partition").isin(list(digests))))
        first = F.min(F.struct("store", "key", "difference", "actual", "expected"))
        firsts = wrong_keys.groupBy("partition").agg(F.count("*").alias("keys"), first.alias("first"))
        for row in firsts.collect():
            state = laps, row["partition"], digests[row["partition"]]
            wrong[state] = _difference(row["partition"], row["keys"], row["first"])
    return wrong


def _state(share: Row) -> _State:
    return json.loads(share["figures"])["laps"], share["partition"], share["digest"]


def _difference(partition: int, keys: int, first: Row) -> str:
    is_, be = (None if value is None else bytes(value) for value in (first["actual"], first["expected"]))
    return (
        f"partition {partition} ends with {keys:,} keys that aren't what Spark SQL computes; the first, "
        f"{bytes(first['key'])!r} of store {first['store']!r}, is {first['difference']}: {is_!r} instead of {be!r}"
    )


def _subject(configuration: Configuration) -> str:
    return (
        f"{configuration.workload} on {configuration.backend}, {configuration.durability}, "
        f"{configuration.records_per_commit:,} records per commit, repeat {configuration.repeat}"
    )


HELLO_S = 60.0
"""The seconds in which all partitions must have connected. They all exist when the first one begins to wait."""
_LEFT = "another partition of this measurement has ended"


class PartitionLeftError(ConnectionError):
    """A partition ended while others waited for it. Its own task says why."""


class Meeting:
    """The partitions of a stage. ``others`` are connections: of the first partition to all, of each other to that."""

    def __init__(self, number: int, others: list[TextIO]) -> None:
        self.number, self._others = number, others

    def gather(self, text: str) -> list[str]:
        """Return the texts of all partitions, in their order, when each has called this.

        Raises: PartitionLeftError if one has ended.
        """
        gathered: list[str]
        if self.number:
            (first,) = self._others
            _send(first, text)
            gathered = _received(first)
            return gathered
        gathered = [text, *map(_received, self._others)]
        for other in self._others:
            _send(other, gathered)
        return gathered

    def wait(self) -> None:
        """Wait until every partition has called this. Raises: PartitionLeftError if one has ended."""
        self.gather("")


@contextmanager
def meeting(context: BarrierTaskContext) -> Iterator[Meeting]:
    """Yield the meeting of all partitions of a stage; each calls this once. The connections end with the block.

    The first partition listens at the address that its executor reports to Spark. Only who knows a secret of this
    stage, which Spark passes on, takes part.
    """
    number = context.partitionId()
    infos = context.getTaskInfos()
    host = infos[0].address.rpartition(":")[0].strip("[]")
    with ExitStack() as stack:
        if number == 0:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = stack.enter_context(socket.create_server((host, 0), family=family))
            secret = secrets.token_hex()
            context.allGather(json.dumps([listener.getsockname()[1], secret]))
            yield Meeting(0, _accepted(listener, len(infos) - 1, secret, stack))
        else:
            port, secret = json.loads(context.allGather("")[0])
            connection = stack.enter_context(socket.create_connection((host, port), HELLO_S))
            first = _opened(connection, stack)
            _send(first, [secret, number])
            connection.settimeout(None)
            yield Meeting(number, [first])


def _accepted(listener: socket.socket, count: int, secret: str, stack: ExitStack) -> list[TextIO]:
    """Return the connections of ``count`` other partitions, in their order."""
    listener.settimeout(HELLO_S)
    connections: dict[int, TextIO] = {}
    while len(connections) < count:
        connection = stack.enter_context(listener.accept()[0])
        connection.settimeout(HELLO_S)
        # A stranger is ignored; its connection ends with the others.
        with suppress(OSError, ValueError, TypeError):
            other = _opened(connection, stack)
            word, number = _received(other)
            if secrets.compare_digest(word, secret):
                connection.settimeout(None)
                connections[number] = other
    return [connections[number] for number in sorted(connections)]


def _opened(connection: socket.socket, stack: ExitStack) -> TextIO:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rw", encoding="utf-8")
    stack.callback(_close, stream)
    return stream


def _close(opened: TextIO) -> None:
    with suppress(OSError):  # Closing sends what an error has left unsent.
        opened.close()


def _send(to: TextIO, value: object) -> None:
    try:
        to.write(f"{json.dumps(value)}\n")
        to.flush()
    except ConnectionError as error:
        raise PartitionLeftError(_LEFT) from error


def _received(sender: TextIO) -> Any:
    try:
        line = sender.readline()
    except ConnectionError as error:
        raise PartitionLeftError(_LEFT) from error
    if not line.endswith("\n"):
        raise PartitionLeftError(_LEFT)
    return json.loads(line)
