"""The workloads of tasks as queries under faults: windows and sessions, by the function of one record."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from harness.spark import stateful_queries
from harness.spark.query_faults.faulty import FaultyRecords
from harness.spark.query_faults.workload import Found, Given, Workload
from harness.workloads.workload import records_of
from stores.config import StoreConfig
from stores.interface import Durability

_EVENTS = 150
"""The events of a batch: enough for each partition."""
_SHOWN = 3


class TaskWorkload(Workload):
    """The workload of tasks with this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._workload = stateful_queries.WORKLOADS[name]

    def write_batches(self, folder: Path, batches: int, seed: int) -> None:
        stateful_queries.write_events(self._name, folder, batches=batches, count=_EVENTS * batches, seed=seed)

    def query(self, spark: SparkSession, given: Given) -> DataFrame:
        kinds, level = records_of(self._workload), Durability(given.durability)
        return stateful_queries.stateful_query(
            spark,
            self._name,
            given.folder,
            process_record=given.faulty(FaultyRecords, self._workload.process),
            stores={
                name: StoreConfig(given.backend, durability=level, records=kinds.get(name))
                for name in self._workload.store_names
            },
            **given.places(),
        )

    def examine(self, spark: SparkSession, folder: Path, versions: list[int]) -> Found:
        rows = stateful_queries.wrong_rows(spark, self._name, folder)
        found = [f"{len(rows)} rows of the sink differ, first {rows[:_SHOWN]}" if rows else ""]
        for version in versions:
            different = stateful_queries.wrong_state(spark, self._name, folder, version)
            if different:
                found.append(f"{len(different)} keys differ after batch {version}, first {different[:_SHOWN]}")
        files = (folder / "events").glob("*.parquet")
        return Found(sum(_EVENTS for _ in files), found)
