"""The shape of a query under faults: its events, its DataFrame, and the comparison with Spark SQL's answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from harness.spark.query_faults.faulty import Faulty
from stores.changelog.files import Retention, VersionLog


@dataclass(frozen=True)
class Given:
    """The settings of a trial that its query needs."""

    folder: Path
    fault: str
    backend: str
    durability: str
    partitions: int
    killed_at: tuple[str, ...]
    full: str
    mutant: str
    retention: Mapping[str, int]
    shared_local: bool

    def events(self, spark: SparkSession, schema: str) -> DataFrame:
        """Return the stream of events, one file in each batch."""
        events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return events.parquet(str(self.folder / "events"))

    def faulty(self, kind: type[Faulty], process: Callable[..., Any]) -> Faulty:
        """Return the function with the fault."""
        full = str(self.folder / self.full)
        return kind(process, str(self.folder), self.fault, self.partitions, self.killed_at, full, self.mutant)

    def arguments(self, kind: type[Faulty], process: Callable[..., Any]) -> dict[str, Any]:
        """Return arguments of ``stateful`` that are those of each query of rows."""
        return {"process": self.faulty(kind, process), **self.places()}

    def places(self) -> dict[str, Any]:
        """Return arguments of ``stateful`` that are those of each query."""
        return {
            "partitions": self.partitions,
            "state": self.folder / "state",
            "local": self.folder / "local" if self.shared_local else None,
            "retention": Retention(**self.retention),
        }


@dataclass(frozen=True)
class Found:
    """The comparison of a query's rows and states with the answer: the rows of the answer, and what is wrong.

    An empty text is a comparison that found nothing.
    """

    rows: int
    wrong: list[str]


class Workload(ABC):
    """A query whose faults are tried. Its folder has ``events``, ``state`` and ``sink``."""

    @abstractmethod
    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        """Write a file of events for each batch to ``folder``, which is new. Their names are in order."""

    @abstractmethod
    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        """Return the query with its fault."""

    @abstractmethod
    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Found:
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
