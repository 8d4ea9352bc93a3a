"""The driver of a stateful query under a fault: it feeds batches in turn, and reports rows and state at the end.

The command is ``python -m harness.spark.query_faults.program FOLDER``; the trial's folder has its arguments. A driver
that is killed is started again with the same ones, and continues.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.processes.child import end_with_starter
from harness.spark.query_faults.counting import ANSWER, KEY, ORDER, OUTPUT, SCHEMA, count, stores
from harness.spark.query_faults.faulty import BALLAST, ZOMBIES, Faulty
from harness.spark.query_faults.notes import Notes
from harness.spark.session import session
from stores.changelog.files import Retention, VersionLog
from stores.spark import stateful
from stores.spark.table import StateTable

ARGUMENTS, FIGURES = "arguments.json", "figures.json"
_STARTS_MAX = 4
"""A query that fails more often than its fault can explain is not started again."""
_SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stopTimeout": "30s"}


class Driver:
    """One life of the driver."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: dict[str, Any] = json.loads((folder / ARGUMENTS).read_text())
        self._notes = Notes(folder)

    def run(self) -> None:
        """Feed all batches, and write the figures."""
        given = self._given
        settings = {**_SETTINGS, **given["settings"]}
        with session("query-faults", given["master"], max_failures=given["max_failures"], settings=settings) as spark:
            errors: list[str] = []
            while not self._fed(spark, errors):
                (self._folder / given["full"] / BALLAST).unlink(missing_ok=True)
                if len(errors) == _STARTS_MAX:
                    break
            figures = {**self._figures(spark), "errors": errors}
        (self._folder / FIGURES).write_text(json.dumps(figures))

    def _fed(self, spark: SparkSession, errors: list[str]) -> bool:
        """Start the query, and feed it batch by batch. Return False if it failed."""
        query = self._started(spark)
        try:
            for number in range(self._given["batches"]):
                source, target = self._folder / f"events/{number}.parquet", self._folder / f"in/{number}.parquet"
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
        given, folder = self._given, self._folder
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        process = Faulty(
            count,
            str(folder),
            given["fault"],
            given["partitions"],
            tuple(given["killed_at"]),
            str(folder / given["full"]),
            given["mutant"],
        )
        counted = stateful(
            events,
            key=KEY,
            process=process,
            output=OUTPUT,
            stores=stores(given["backend"], given["durability"]),
            partitions=given["partitions"],
            state=folder / "state",
            order_by=ORDER,
            local=folder / "local" if given["shared_local"] else None,
            retention=Retention(**given["retention"]),
        )
        writer = counted.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        return writer.option("path", f"{folder}/sink").start()

    def _after(self, number: int) -> None:
        """Do what the fault asks for between the batch ``number`` and the next one."""
        fault = self._given["fault"]
        if fault == "driver killed between batches" and number % 2 and self._notes.once(f"killed {number}"):
            gateway = SparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stalled attempt":
            for version in ZOMBIES:
                # Two batches later its version is removed, and its name is free.
                if number == version + 2 and self._notes.once(f"wake {version}"):
                    self._notes.wait(f"zombie {version} ended")
        if fault == "machine lost" and number == self._given["batches"] // 2 and self._notes.once("lose a machine"):
            self._notes.wait("lost")

    def _figures(self, spark: SparkSession) -> dict[str, Any]:
        """Return the rows in the sink, in the state at each kept version, and in the answer of Spark SQL."""
        spark.read.schema(SCHEMA).parquet(str(self._folder / "in")).createOrReplaceTempView("events")
        spark.dataSource.register(StateTable)
        newest = VersionLog.open(self._folder / "state").newest_complete()
        oldest = max(0, (newest or 0) - self._given["retention"].get("keep_versions", 2))
        return {
            "answer": _rows(spark.sql(ANSWER)),
            "sink": _rows(spark.read.parquet(str(self._folder / "sink"))),
            "states": {str(version): self._state(spark, version) for version in range(oldest, (newest or 0) + 1)},
        }

    def _state(self, spark: SparkSession, version: int) -> list[list[str]]:
        """Return the state at a version, as a table."""
        table = spark.read.format("txstores").option("version", version).load(str(self._folder / "state"))
        return [[row["store"], row["key"], row["value"]] for row in table.collect()]


def _rows(frame: DataFrame) -> list[list[Any]]:
    return sorted([row["name"], row["batch"], row["value"]] for row in frame.collect())


if __name__ == "__main__":
    end_with_starter()
    Driver(Path(sys.argv[1])).run()
