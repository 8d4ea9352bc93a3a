"""Gangs on Spark: throughput of tasks whose partitions run at the same time.

Each partition has one task's events, and measures one configuration after another with them. All partitions run at once
(a barrier stage) and begin each configuration together (``harness.spark.meeting``). Their results are written once to
Parquet and read back, so nothing is measured twice, however often the frame is used.
"""

from __future__ import annotations

import functools
import json
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from harness import replay
from harness.budget import NEVER, Deadline, TimeOverError, ended_by
from harness.experiment import Failure, Outcome
from harness.experiments.throughput.experiment import records_per_s, run, throughput_row
from harness.experiments.throughput.measurement import Configuration, PartitionWork, read_pairs, write_pairs
from harness.experiments.throughput.plan import TRIAL_S, ThroughputTrial
from harness.folders import temporary_folder
from harness.processes.child import MeasurementFailedError, measured_processes
from harness.processes.fork_server import ForkServer
from harness.progress import ProgressFile, note_progress
from harness.report.rows import Row as Result
from harness.spark import events
from harness.spark.expected import differences, expected_state
from harness.spark.meeting import Meeting, meeting
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
CACHED_EVENTS_MAX = 100_000
"""Spark keeps the events of shorter trials in memory for further rounds over the same ones."""
_Batches = Iterator[pa.RecordBatch]
_State = tuple[int, int, str]
"""The end state of a partition: the number of laps, the partition, and the digest."""
Verified = dict[_State, str]
"""The end states over the same events that were compared, each with its difference from Spark SQL's, or ""."""


class Gangs:
    """Runs trials in one session. Rounds over the same events share these, and the end states that were compared.

    ``log`` has the events of the workload ``event_log``, ``say`` gets lines of progress.
    """

    def __init__(self, spark: SparkSession, seed: int, log: EventLog | None, say: Callable[[str], None]) -> None:
        self._spark, self._seed, self._log, self._say = spark, seed, log, say
        self._events: dict[tuple[str, int | None, int], tuple[DataFrame, Verified]] = {}
        self._notes: list[str] = []
        """The sentences that were said about the user's events."""

    def run(
        self,
        trials: Sequence[ThroughputTrial],
        deadline: Deadline = NEVER,
        interrupted: Callable[[list[Result]], None] = lambda _: None,
    ) -> Outcome:
        """Make every measurement of the trials, one trial after the other, until ``deadline``.

        If the run is interrupted, ``interrupted`` gets the rows of a trial that was not finished.
        """
        outcome = Outcome()
        for trial in trials:
            if deadline.remaining_s <= TRIAL_S:
                break
            source, verified = self._source(trial)
            outcome.add(
                measure(
                    self._spark,
                    trial,
                    source,
                    say=self._say,
                    deadline=deadline,
                    verified=verified,
                    interrupted=interrupted,
                )
            )
        outcome.add(Outcome(notes=self._notes))
        return outcome

    def _note(self, sentence: str) -> None:
        self._say(sentence)
        self._notes.append(sentence)

    def _source(self, trial: ThroughputTrial) -> tuple[DataFrame, Verified]:
        key = (trial.workload, trial.events, trial.partitions)
        if key not in self._events:
            if trial.workload == EVENT_LOG and self._log is not None:
                source = events.event_log(self._spark, self._log, trial.partitions, self._note)
            else:
                source = trial_events(self._spark, trial, self._seed)
            if trial.events is not None and trial.events <= CACHED_EVENTS_MAX:
                source = source.cache()
            self._events[key] = source, {}
        return self._events[key]


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
    verified: Verified | None = None,
    interrupted: Callable[[list[Result]], None] = lambda _: None,
) -> Outcome:
    """Make the measurements of ``trial`` with the events of ``source`` (as ``harness.spark.events`` makes them).

    Every end state is compared with what Spark SQL computes from the same events, unless ``verified`` has it; those
    that are compared are added to that. ``folder`` is created and gets the results of the partitions, so all executors
    must see it. Unless given, it is a temporary folder of this machine. ``say`` gets lines of progress. After
    ``deadline`` no measurement begins. If it is interrupted, ``interrupted`` gets the rows of the measurements that
    were finished, as far as they ran on this machine; their end states are not compared.

    Raises: ConfigError if the session has fewer cores than the trial has partitions.
    """
    master, cores = spark.sparkContext.master or "", spark.sparkContext.defaultParallelism
    if master.startswith("local") and cores < trial.partitions:
        raise ConfigError(
            f"{trial.partitions} partitions run at once, and {master} has {cores} cores: "
            f"ask for fewer partitions, or for local[{trial.partitions}]"
        )
    states = {} if verified is None else verified
    with temporary_folder("throughput") as scratch:
        target = (folder or scratch / "yield").absolute()
        shares: list[Mapping[str, Any]] = []

        def heard(line: str) -> None:
            if line.startswith("{"):
                shares.append(json.loads(line))
            else:
                say(line)

        try:
            with ProgressFile(scratch / "progress", heard) as progress:
                task = _measurer(trial, SparkSite(scratch, progress.path, code_path()), deadline, frozenset(states))
                source.mapInArrow(task, _SPARK_SCHEMA, barrier=True).write.parquet(target.as_uri())
        except KeyboardInterrupt:
            interrupted(_uncompared(trial, shares))
            raise
        return _compared(trial, source, spark.read.schema(_SPARK_SCHEMA).parquet(target.as_uri()), states)


class _Partition:
    """One partition of a trial in its Spark task: its events in a file, and its share of each measurement."""

    def __init__(
        self,
        trial: ThroughputTrial,
        met: Meeting,
        site: SparkSite,
        folder: Path,
        verified: frozenset[_State],
        fork_server: ForkServer | None,
    ) -> None:
        self._trial, self._met, self._site, self._folder = trial, met, site, folder
        self._workload, self._fork_server = workload(trial.workload), fork_server
        self._events, self._span_ms, self._path = 0, 0, folder / "events"
        self._known: dict[int, set[str]] = {}
        """The digests of end states by laps, of which no further dump is needed."""
        for laps, partition, digest in verified:
            if partition == met.number:
                self._known.setdefault(laps, set()).add(digest)
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

    def _share(self, configuration: Configuration, laps: int) -> PartitionWork:
        return PartitionWork(configuration, self._workload, self.number, self._path, self._events, laps, self._span_ms)

    def measured(self, place: int, configuration: Configuration, laps: int) -> Iterator[pa.RecordBatch]:
        """Yield the result of a measurement, and the end state if it is a new one; nothing if the time was over."""
        dumps: list[pa.RecordBatch] = []
        known = self._known.setdefault(laps, set())

        def keep(digest: str, dump: Path) -> None:
            known.add(digest)
            dumps.extend(_dump(dump, place, self.number, digest, self._workload.store_names))

        began = time.perf_counter()
        self._met.wait()
        summary = {"records": 0, "seconds": 0.0, "waited_s": 0.0, "failure": "", "over": False}
        row: dict[str, Any] = {}
        try:
            figures = run(
                self._share(configuration, laps),
                keep,
                known=known,
                meet=self._met.wait,
                within=self._folder,
                fork_server=self._fork_server,
                code=self._site.child_code(),
            )
            figures |= {"laps": laps, "took_s": time.perf_counter() - began}
            summary |= {name: figures[name] for name in ("records", "seconds", "waited_s")}
            row = {"figures": json.dumps(figures), "digest": figures["state_digest"]}
        except MeasurementFailedError as error:
            summary["failure"] = str(error)
            row = {"failure": str(error)}
        except TimeOverError:
            summary["over"] = True
        everywhere = [json.loads(each) for each in self._met.gather(json.dumps(summary))]
        if any(each["over"] for each in everywhere):
            return
        yield from dumps
        row |= {"measurement": place, "partition": self.number}
        yield pa.RecordBatch.from_pylist([row], _SCHEMA)
        note_progress(self._site.progress, json.dumps(row))
        if self.number == 0:
            number, total = place + 1, len(self._trial.configurations)
            note_progress(self._site.progress, f"{number}/{total} {_subject(configuration)}: {_said(everywhere)}")


def _measurer(
    trial: ThroughputTrial, site: SparkSite, deadline: Deadline, verified: frozenset[_State]
) -> Callable[[_Batches], _Batches]:
    def measure_partition(batches: _Batches) -> _Batches:
        with ExitStack() as stack:
            module = type(workload(trial.workload)).__module__
            server = stack.enter_context(measured_processes(module, site.child_code()))
            # The folder of a fork server is removed even if this process is killed, when its children are gone.
            folder = server.folder if server else stack.enter_context(temporary_folder("events", site.within()))
            met = stack.enter_context(meeting(BarrierTaskContext.get()))
            stack.enter_context(ended_by(deadline))
            partition = _Partition(trial, met, site, folder, verified, server)
            partition.keep_events(batches)
            for place, configuration in enumerate(trial.configurations):
                if partition.all_end(deadline):
                    break
                yield from partition.measured(place, configuration, trial.laps[place] if trial.laps else 1)

    return measure_partition


def _said(partitions: Sequence[dict[str, Any]]) -> str:
    if failures := [each["failure"] for each in partitions if each["failure"]]:
        return f"failed: {failures[0]}"
    return f"{records_per_s(partitions):,.0f} records/s"


def _dump(path: Path, number: int, partition: int, digest: str, stores: Sequence[str]) -> list[pa.RecordBatch]:
    pairs = list(read_pairs(path))
    keys, values, places = zip(*pairs, strict=True) if pairs else ((), (), ())
    rows = pa.table(
        {
            "measurement": pa.array([number] * len(pairs), pa.int32()),
            "partition": pa.array([partition] * len(pairs), pa.int32()),
            "figures": pa.nulls(len(pairs), pa.string()),
            "failure": pa.nulls(len(pairs), pa.string()),
            "digest": pa.array([digest] * len(pairs), pa.string()),
            "store": pa.array([stores[place] for place in places], pa.string()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=_PAIRS_PER_BATCH)
    return batches


def _compared(trial: ThroughputTrial, source: DataFrame, yielded: DataFrame, verified: Verified) -> Outcome:
    """Return the rows of the measurements, and add the end states that they compared to ``verified``."""
    shares = yielded.where("store is null").select("measurement", "partition", "figures", "failure", "digest").collect()
    states = {_state(share) for share in shares if share["digest"]} - verified.keys()
    wrong = _wrong_states(trial, source, yielded, states)
    verified |= {state: wrong.get(state, "") for state in states}
    outcome = Outcome()
    for number, configuration in enumerate(trial.configurations):
        mine = [share for share in shares if share["measurement"] == number]
        if not mine:
            continue
        problems = [share["failure"] for share in mine if share["failure"]]
        if not problems:
            problems = [verified[_state(share)] for share in mine if verified[_state(share)]]
            figures = [json.loads(share["figures"]) for share in mine]
            outcome.rows.append(throughput_row(configuration, figures, "different" if problems else "equal"))
        alone = replace(trial, configurations=(configuration,), laps=trial.laps[number : number + 1])
        # A command cannot name a user's events.
        repeat = "" if trial.workload == EVENT_LOG else replay.command("throughput", alone)
        outcome.problems.extend(str(Failure(f"{_subject(configuration)}: {each}", repeat)) for each in problems)
    return outcome


def _uncompared(trial: ThroughputTrial, shares: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return the rows of the measurements that all partitions have finished, from what these have said."""
    rows = []
    for number, configuration in enumerate(trial.configurations):
        figures = [
            json.loads(share["figures"]) for share in shares if share["measurement"] == number and "figures" in share
        ]
        if len(figures) == trial.partitions:
            rows.append(throughput_row(configuration, figures, "not compared"))
    return rows


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
