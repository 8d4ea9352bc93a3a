"""The driver of a stateful query under a fault: it feeds batches in turn, and compares rows and state at the end.

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

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.experiments.query_faults.faults import BALLAST, FAULTS
from harness.experiments.query_faults.notes import Notes
from harness.processes.child import end_with_starter
from harness.spark.query_faults.queries import WORKLOADS, Comparison, Given
from harness.spark.session import session
from stores.changelog.files import VersionLog
from stores.spark.sources import StateTable

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
        self._workload = WORKLOADS[self._given["workload"]]

    def run(self) -> None:
        """Feed all batches, and write the figures."""
        given = self._given
        if not (self._folder / "batches").exists():
            self._workload.write_batches(self._folder / "batches", given["batches"], given["seed"])
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
        given, folder = self._given, self._folder
        names = ("fault", "backend", "durability", "partitions", "full", "mutant", "retention", "shared_local")
        frame = self._workload.query(
            spark, Given(folder, killed_at=tuple(given["killed_at"]), **{name: given[name] for name in names})
        )
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        return writer.option("path", f"{folder}/sink").start()

    def _after(self, number: int) -> None:
        """Do what the fault asks for between the batch ``number`` and the next one."""
        FAULTS[self._given["fault"]].between(self._notes, number, self._given["batches"], _end_driver)

    def _figures(self, spark: SparkSession) -> dict[str, Any]:
        """Return what is wrong with the sink and with the state at each kept version, and these versions."""
        spark.dataSource.register(StateTable)
        newest = VersionLog.open(self._folder / "state").newest_complete()
        oldest = max(0, (newest or 0) - self._given["retention"].get("keep_versions", 2))
        versions = list(range(oldest, (newest or 0) + 1))
        try:
            found = self._workload.examine(spark, self._folder, versions)
        except (PySparkException, Py4JError) as error:
            found = Comparison(0, [f"the sink or the state cannot be read: {error}"])
        return {"rows": found.rows, "wrong": [each for each in found.wrong if each], "versions": versions}


def _end_driver() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_starter()
    Driver(Path(sys.argv[1])).run()
