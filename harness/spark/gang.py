"""Gangs on Spark: throughput of tasks whose partitions run at the same time.

Each partition has one task's events, and measures one configuration after another with them. All partitions run at once
(a barrier stage) and begin each configuration together. Their results are written once to Parquet and read back, so
nothing is measured twice, however often the frame is used.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from harness import replay
from harness.experiment import Failure, Outcome
from harness.experiments.throughput.configuration import Configuration
from harness.experiments.throughput.pairs import read_pairs, write_pairs
from harness.experiments.throughput.partition_work import PartitionWork
from harness.experiments.throughput.plan import ThroughputTrial
from harness.experiments.throughput.run import run
from harness.experiments.throughput.totals import throughput_row
from harness.folders import temporary_folder
from harness.processes.measured import MeasurementFailedError
from harness.progress_file import ProgressFile, note_progress
from harness.spark import events
from harness.spark.expected import differences, expected_state
from harness.spark.runner import Site
from harness.spark.session import code_path
from harness.workloads.departures import Departures
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.registry import workload
from harness.workloads.workload import EventSource, Workload
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
_Batches = Iterator[pa.RecordBatch]


def run_gangs(
    spark: SparkSession, trials: Sequence[ThroughputTrial], seed: int, log: EventLog | None, say: Callable[[str], None]
) -> Outcome:
    """Run every measurement of the trials. ``log`` has the events of the workload ``event_log``."""
    done = Outcome()
    for trial in trials:
        if trial.workload == EVENT_LOG and log is not None:
            source = events.event_log(spark, log, trial.partitions, say)
        else:
            source = trial_events(spark, trial, seed)
        part = measure(spark, trial, source, say=say)
        done.rows.extend(part.rows)
        done.problems.extend(part.problems)
    return done


def trial_events(spark: SparkSession, trial: ThroughputTrial, seed: int) -> DataFrame:
    """Return the events of a trial over a shipped workload. Raises: ConfigError if the workload has no events."""
    chosen = workload(trial.workload)
    if isinstance(chosen, Departures):
        return events.flights(spark, trial.partitions, trial.events, late_ms=chosen.late_ms, seed=seed)
    if isinstance(chosen, EventSource) and trial.events is not None:
        return events.generated(spark, chosen, seed, trial.events, trial.partitions)
    raise ConfigError(f"the workload {chosen.name!r} needs events of your own: give --events PATH and --key COLUMN")


def measure(
    spark: SparkSession,
    trial: ThroughputTrial,
    source: DataFrame,
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Make the measurements of ``trial`` with the events of ``source`` (as ``harness.spark.events`` makes them).

    Every end state is compared with what Spark SQL computes from the same events. ``folder`` is created and gets the
    results of the partitions, so all executors must see it. Unless given, it is a temporary folder of this machine.
    ``say`` gets lines of progress.

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
            site = Site(Path(scratch), progress.path, code_path())
            task = _measurer(trial.configurations, workload(trial.workload), site)
            source.mapInArrow(task, _SPARK_SCHEMA, barrier=True).write.parquet(target.as_uri())
        return _compared(trial, source, spark.read.schema(_SPARK_SCHEMA).parquet(target.as_uri()))


def _measurer(configurations: Sequence[Configuration], work: Workload, site: Site) -> Callable[[_Batches], _Batches]:
    def measure_partition(batches: _Batches) -> _Batches:
        context = BarrierTaskContext.get()
        partition = context.partitionId()
        with temporary_folder("events", site.within()) as scratch:
            path = Path(scratch) / "events"
            count = write_pairs(path, _pairs(batches))
            dumped: set[str] = set()
            for number, configuration in enumerate(configurations):
                dumps: list[pa.RecordBatch] = []

                def keep(digest: str, dump: Path, number: int = number, dumps: list[pa.RecordBatch] = dumps) -> None:
                    if digest not in dumped:
                        dumped.add(digest)
                        dumps += _dump(dump, number, partition, digest, work.store_names)

                context.barrier()
                try:
                    share = PartitionWork(configuration, work, partition, path, count)
                    figures = run(share, keep, code=site.child_code(), within=Path(scratch))
                    row = {"figures": json.dumps(figures), "digest": figures["state_digest"]}
                    result = f"{figures['records'] / figures['seconds'] if figures['records'] else 0:,.0f} records/s"
                except MeasurementFailedError as error:
                    row = {"failure": str(error)}
                    result = f"failed: {error}"
                yield from dumps
                yield pa.RecordBatch.from_pylist([{"measurement": number, "partition": partition, **row}], _SCHEMA)
                if partition == 0:
                    note_progress(
                        site.progress, f"{number + 1}/{len(configurations)} {_subject(configuration)}: {result}"
                    )

    return measure_partition


def _pairs(batches: _Batches) -> Iterator[tuple[bytes, bytes, int]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("key", "value", "timestamp_ms"))
        yield from zip(*columns, strict=True)


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
    states = {(share["partition"], share["digest"]) for share in shares if share["digest"]}
    wrong = _wrong_states(trial, source, yielded, states)
    outcome = Outcome()
    for number, configuration in enumerate(trial.configurations):
        mine = [share for share in shares if share["measurement"] == number]
        problems = [share["failure"] for share in mine if share["failure"]]
        if not problems:
            problems = [wrong[state] for share in mine if (state := (share["partition"], share["digest"])) in wrong]
            figures = [json.loads(share["figures"]) for share in mine]
            outcome.rows.append(throughput_row(configuration, figures, "different" if problems else "equal"))
        alone = replace(trial, configurations=(configuration,))
        # A command cannot name a user's events.
        repeat = "" if trial.workload == EVENT_LOG else replay.command("throughput", alone)
        outcome.problems.extend(str(Failure(f"{_subject(configuration)}: {each}", repeat)) for each in problems)
    return outcome


def _wrong_states(
    trial: ThroughputTrial, source: DataFrame, yielded: DataFrame, states: set[tuple[int, str]]
) -> dict[tuple[int, str], str]:
    """Return a description of each (partition, digest) of ``states`` that differs from the result of Spark SQL."""
    expected = expected_state(trial.workload, source)
    left, wrong = set(states), {}
    while left:
        # Compare one state of each partition at a time. There is only one unless backends disagree.
        chosen = dict(sorted(left))
        left -= set(chosen.items())
        is_chosen = functools.reduce(
            operator.or_,
            ((F.col("partition") == partition) & (F.col("digest") == digest) for partition, digest in chosen.items()),
        )
        actual = yielded.where("store is not null").where(is_chosen)
        found = differences(actual, expected.where(F.col("partition").isin(list(chosen))))
        first = F.min(F.struct("store", "key", "difference", "actual", "expected"))
        firsts = found.groupBy("partition").agg(F.count("*").alias("keys"), first.alias("first"))
        for row in firsts.collect():
            wrong[row["partition"], chosen[row["partition"]]] = _difference(row["partition"], row["keys"], row["first"])
    return wrong


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
