"""The stateful queries whose faults are tried, and their driver, which compares rows and state with Spark SQL's answer.

The command is ``python -m harness.spark.query_faults FOLDER``; the trial's folder has its arguments. A driver that is
killed is started again with the same ones, and continues.

``WORKLOADS`` has the queries by the names of ``harness.experiments.query_faults.experiment``. Two need no data set:
their events have names, and times that no two share. One counts events by key in a typed store, and gives out each
count. The rows of the other come from timers: each event registers one, which is due an hour and a half later. The
two others are workloads of tasks, with windows by the function of one record, and with sessions by that of batches.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.checkers.counting import wrong_records, wrong_rows, wrong_state, wrong_timers
from harness.experiments.query_faults.faults import BALLAST, FAULTS, Faulty, FaultyRecords, FaultyRows, QueryFault
from harness.experiments.query_faults.notes import Notes
from harness.processes.child import end_with_starter
from harness.spark import stateful_queries
from harness.spark.session import session
from harness.workloads.workload import records_of
from stores.changelog.files import Retention, VersionLog
from stores.config import StoreConfig
from stores.interface import Durability
from stores.records import INT64, STR, KeyValue, TimestampedKeyValue
from stores.spark import Context, Rows, stateful
from stores.spark.sources import StateTable


@dataclass(frozen=True)
class Given:
    """The trial in ``folder``, as its experiment has written it."""

    folder: Path
    workload: str
    fault: str
    backend: str
    mutant: str
    seed: int
    master: str
    batches: int
    killed_at: Sequence[str]

    @property
    def met(self) -> QueryFault:
        """The fault."""
        return FAULTS[self.fault]

    @property
    def durability(self) -> Durability:
        """The level of the stores."""
        return Durability(self.met.durability)

    def events(self, spark: SparkSession, schema: str) -> DataFrame:
        """Return the stream of events, one file in each batch."""
        events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return events.parquet(str(self.folder / "events"))

    def faulty(self, kind: type[Faulty], process: Callable[..., Any]) -> Faulty:
        """Return the function with the fault."""
        full, killed_at = str(self.folder / self.met.full), tuple(self.killed_at)
        return kind(process, str(self.folder), self.fault, self.met.partitions, killed_at, full, self.mutant)

    def arguments(self, kind: type[Faulty], process: Callable[..., Any]) -> dict[str, Any]:
        """Return arguments of ``stateful`` that are those of each query of rows."""
        return {"process": self.faulty(kind, process), **self.places()}

    def places(self) -> dict[str, Any]:
        """Return arguments of ``stateful`` that are those of each query."""
        return {
            "partitions": self.met.partitions,
            "state": self.folder / "state",
            "local": self.folder / "local" if self.met.shared_local else None,
            "retention": Retention(**self.met.retention),
        }


@dataclass(frozen=True)
class Comparison:
    """The comparison of a query's rows and states with the answer: the rows of the answer, and what is wrong.

    An empty text is a comparison that found nothing.
    """

    rows: int
    wrong: list[str]


class QueryWorkload(ABC):
    """A query whose faults are tried. Its folder has ``events``, ``state`` and ``sink``."""

    @abstractmethod
    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        """Write a file of events for each batch to ``folder``, which is new. Their names are in order."""

    @abstractmethod
    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        """Return the query with its fault."""

    @abstractmethod
    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Comparison:
        """Compare the sink, and the state as a table at each of ``versions``, with the answer of Spark SQL."""


def answer_rows(frame: DataFrame) -> list[list[Any]]:
    """Return rows of a name, a batch and a value."""
    return sorted([row["name"], row["batch"], row["value"]] for row in frame.collect())


def state_rows(spark: SparkSession, folder: Path, version: int) -> tuple[list[list[Any]], int]:
    """Return the state at a version as a table, and the number of its partitions.

    A row is a store, a key, a value, and its time in milliseconds, None for none.
    """
    location = folder / "state"
    table = spark.read.format("txstores").option("version", version).load(str(location))
    rows = table.selectExpr("store", "key", "value", "unix_millis(timestamp) as time_ms").collect()
    return [list(row) for row in rows], VersionLog.open(location).partitions


SCHEMA = "name string, at timestamp, batch long"
_ROWS, _NAMES = 60, 40


def write_batches(folder: Path, batches: int, seed: int) -> None:
    """Write a file for each batch to ``folder``, which is new: one hour after the other. The same for the same seed."""
    folder.mkdir(parents=True)
    for number in range(batches):
        choose = Random(f"events {seed} {number}")
        begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=number)
        at = [begin + datetime.timedelta(seconds=row) for row in range(_ROWS)]
        events = {
            "name": [f"N{choose.randrange(_NAMES)}" for _ in range(_ROWS)],
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "batch": pa.array([number] * _ROWS, pa.int64()),
        }
        pyarrow.parquet.write_table(pa.table(events), folder / f"{number:04d}.parquet")


COUNTS_OUTPUT = "name string not null, value long, batch long"
COUNTS_ANSWER = """
    select name, batch, sum(count(*)) over (partition by name order by batch) as value
    from events group by name, batch
"""
"""The rows that the sink must have, and the state: the count of each name after each of its batches, by Spark SQL."""


class Counting(QueryWorkload):
    """Counts in the store ``counts``. The store ``batches`` has the number of batches of each partition."""

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        write_batches(folder, batches, seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        return stateful(
            given.events(spark, SCHEMA),
            **given.arguments(FaultyRows, count),
            key="name",
            output=COUNTS_OUTPUT,
            stores=stores_of(given.backend, given.durability),
            order_by="at",
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Comparison:
        spark.read.schema(SCHEMA).parquet(str(folder / "events")).createOrReplaceTempView("events")
        answer = answer_rows(spark.sql(COUNTS_ANSWER))
        texts = [wrong_rows(answer, answer_rows(spark.read.parquet(str(folder / "sink"))))]
        for version in versions:
            texts.append(wrong_state(answer, *state_rows(spark, folder, version), version))
        return Comparison(len(answer), texts)


def stores_of(backend: str, level: Durability) -> Mapping[str, StoreConfig]:
    """Return the stores of the query: the counts, and one that has the number of batches of the partition."""
    counts = TimestampedKeyValue(key=STR, value=INT64)
    return {
        "counts": StoreConfig(backend, durability=level, records=counts),
        "batches": StoreConfig(backend, durability=level),
    }


def count(rows: Rows, context: Context) -> Iterator[tuple[str, int, int]]:
    """Count the events of each name, and give out its new count."""
    batches = context.store("batches")
    batches.put(b"number", b"%d" % (int(batches.get(b"number") or 0) + 1))
    latest: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    batch = 0
    for row in rows:
        latest[row.name] = row.at
        numbers[row.name] = numbers.get(row.name, 0) + 1
        batch = row.batch
    counts = context.store("counts")
    for name, number in numbers.items():
        before = counts.get(name)
        total = number + (0 if before is None else before.value)
        counts.put(name, total, int(latest[name].timestamp() * 1000))
        yield name, total, batch


TIMERS_OUTPUT = "name string, value long, batch long"
DUE_MS, LATE_MS = 90 * 60_000, 10 * 60_000
REGISTERED = f"select name, batch, unix_millis(at) + {DUE_MS} as value from events"
"""The timers, with the batch that registers each."""
TIMERS_ANSWER = f"""
    with latest as (select batch, max(unix_millis(at)) as latest from events group by batch),
         marks as (select batch, coalesce(max(latest) over (order by batch rows between unbounded preceding
                                                            and 1 preceding) - {LATE_MS}, 0) as watermark from latest)
    select name, min(marks.batch) as batch, value
    from ({REGISTERED}) as timers join marks on marks.batch >= timers.batch and marks.watermark >= value
    group by name, value
"""
"""The rows that the sink must have: each timer, with the first batch whose watermark has reached it, by Spark SQL. The
watermark of a batch is the latest time in the batches before it, less the delay."""


LARGE = {b"%03d" % number: Random(number).randbytes(64) for number in range(600)}
"""The records of a store that only the first batch changes, so that most snapshots are changes since a whole one."""


class TimerQuery(QueryWorkload):
    """Counts in the store ``fired`` how many timers of a name have fired. The store ``large`` stays as it is."""

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        write_batches(folder, batches, seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        fired = KeyValue(key=STR, value=INT64)
        return stateful(
            given.events(spark, SCHEMA).withWatermark("at", f"{LATE_MS} milliseconds"),
            **given.arguments(FaultyRows, register),
            key="name",
            output=TIMERS_OUTPUT,
            stores={
                "fired": StoreConfig(given.backend, durability=given.durability, records=fired),
                "large": StoreConfig(given.backend, durability=given.durability),
            },
            on_timer=fire,
            checkpoint=given.folder / "checkpoint",
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Comparison:
        spark.read.schema(SCHEMA).parquet(str(folder / "events")).createOrReplaceTempView("events")
        answer, registered = answer_rows(spark.sql(TIMERS_ANSWER)), answer_rows(spark.sql(REGISTERED))
        texts = [wrong_rows(answer, answer_rows(spark.read.parquet(str(folder / "sink"))))]
        for version in versions:
            rows, partitions = state_rows(spark, folder, version)
            texts.append(wrong_timers(answer, registered, rows, version))
            texts.append(wrong_records(rows, "large", LARGE, partitions))
        return Comparison(len(answer), texts)


def register(rows: Rows, context: Context) -> None:
    """Register a timer for each event."""
    large = context.store("large")
    if large.get(b"000") is None:
        large.put_many(LARGE)
    for row in rows:
        context.timers.register(row.name, int(row.at.timestamp() * 1000) + DUE_MS)


def fire(name: str, time_ms: int, context: Context) -> Iterator[tuple[str, int, int | None]]:
    """Count a timer, and give it out with the batch in which it fires."""
    fired = context.store("fired")
    fired.put(name, (fired.get(name) or 0) + 1)
    yield name, time_ms, context.batch_id


_EVENTS = 150
"""The events of a batch: enough for each partition."""
_SHOWN = 3


class TaskWorkload(QueryWorkload):
    """The workload of tasks with this name, by a function of records or of ``batches`` of them."""

    def __init__(self, name: str, *, batches: bool = False) -> None:
        self._name, self._batches = name, batches
        self._workload = stateful_queries.WORKLOADS[name]

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        stateful_queries.write_events(self._name, folder, batches=batches, count=_EVENTS * batches, seed=seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        kinds, process = records_of(self._workload), self._workload.process
        function: dict[str, Any] = (
            {"process_batch": given.faulty(FaultyRecords, stateful_queries.in_batches(process))}
            if self._batches
            else {"process_record": given.faulty(FaultyRecords, process)}
        )
        return stateful_queries.stateful_query(
            spark,
            self._name,
            given.folder,
            **function,
            batch_max_records=_EVENTS // 10,
            stores={
                name: StoreConfig(given.backend, durability=given.durability, records=kinds.get(name))
                for name in self._workload.store_names
            },
            **given.places(),
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Comparison:
        rows = stateful_queries.wrong_rows(spark, self._name, folder)
        texts = [f"{len(rows)} rows of the sink differ, first {rows[:_SHOWN]}" if rows else ""]
        for version in versions:
            different = stateful_queries.wrong_state(spark, self._name, folder, version)
            if different:
                texts.append(f"{len(different)} keys differ after batch {version}, first {different[:_SHOWN]}")
        files = (folder / "events").glob("*.parquet")
        return Comparison(sum(_EVENTS for _ in files), texts)


WORKLOADS: Mapping[str, QueryWorkload] = MappingProxyType(
    {
        "count": Counting(),
        "timers": TimerQuery(),
        "flights_by_hour": TaskWorkload("flights_by_hour"),
        "aircraft_sessions": TaskWorkload("aircraft_sessions", batches=True),
    }
)


ARGUMENTS, FIGURES = "arguments.json", "figures.json"
_STARTS_MAX = 4
"""A query that fails more often than its fault can explain is not started again."""
_SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stopTimeout": "30s"}


class Driver:
    """One life of the driver."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = Given(folder, **json.loads((folder / ARGUMENTS).read_text()))
        self._notes = Notes(folder)
        self._workload = WORKLOADS[self._given.workload]

    def run(self) -> None:
        """Feed all batches, and write the figures."""
        given, fault = self._given, self._given.met
        if not (self._folder / "batches").exists():
            self._workload.write_batches(self._folder / "batches", given.batches, given.seed)
        settings = {**_SETTINGS, **fault.settings}
        with session("query-faults", given.master, max_failures=fault.max_failures, settings=settings) as spark:
            errors: list[str] = []
            while not self._fed(spark, errors):
                (self._folder / fault.full / BALLAST).unlink(missing_ok=True)
                if len(errors) == _STARTS_MAX:
                    break
            figures = {**self._figures(spark), "errors": errors}
        (self._folder / FIGURES).write_text(json.dumps(figures))

    def _fed(self, spark: SparkSession, errors: list[str]) -> bool:
        """Start the query, and feed it batch by batch. Return False if it failed."""
        query = self._started(spark)
        try:
            for number, source in enumerate(sorted((self._folder / "batches").iterdir())):
                target = self._folder / "events" / source.name
                if not target.exists():
                    os.link(source, target)
                query.processAllAvailable()
                self._after(number)
        except StreamingQueryException as error:
            errors.append(str(error))
            return False
        finally:
            query.stop()
        return True

    def _started(self, spark: SparkSession) -> StreamingQuery:
        frame = self._workload.query(spark, self._given)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{self._folder}/checkpoint")
        return writer.option("path", f"{self._folder}/sink").start()

    def _after(self, number: int) -> None:
        """Do what the fault asks for between the batch ``number`` and the next one."""
        self._given.met.between(self._notes, number, self._given.batches, _end_driver)

    def _figures(self, spark: SparkSession) -> dict[str, Any]:
        """Return what is wrong with the sink and with the state at each kept version, and these versions."""
        spark.dataSource.register(StateTable)
        newest = VersionLog.open(self._folder / "state").newest_complete()
        oldest = max(0, (newest or 0) - self._given.met.retention.get("keep_versions", 2))
        versions = list(range(oldest, (newest or 0) + 1))
        try:
            comparison = self._workload.examine(spark, self._folder, versions)
        except (PySparkException, Py4JError) as error:
            comparison = Comparison(0, [f"the sink or the state cannot be read: {error}"])
        return {"rows": comparison.rows, "wrong": [each for each in comparison.wrong if each], "versions": versions}


def _end_driver() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_starter()
    # Imported: the tasks of Spark do not find the functions of ``__main__``.
    import_module("harness.spark.query_faults").Driver(Path(sys.argv[1])).run()
