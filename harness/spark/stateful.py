"""The processes that measure streaming queries, which are fed one batch at a time, and timed.

One fills the state of all subjects in one session, then gives them batches in turns. After a kill another one gives a
query one batch.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from harness.processes.child import FIGURES_FILE, write_figures
from harness.processes.load import LoadWatch, load_columns, tree_cpu_s
from harness.spark.session import session
from harness.spark.stateful_subjects import CHECKPOINT, counted, state_of
from stores.errors import StoreError

INPUT, NEXT = "in", "next"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NOT_CONNECTED = "Python worker failed to connect back"
"""The error of a query whose Python process did not start within the 10 seconds that Spark has for it."""
STARTS_MAX = 5
"""The number of starts for the first batch. On a busy machine Python itself may need more than 10 seconds."""


def settings(partitions: int) -> dict[str, str]:
    """Return the settings of the session: the same for each subject."""
    return {
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-XX:-UsePerfData",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stopTimeout": "60s",
    }


class StatefulQuery:
    """The query of ``subject`` in ``folder``, which outlives it: ``start`` begins where the last one ended."""

    def __init__(
        self, spark: SparkSession, subject: str, folder: Path, partitions: int, local: Path | None = None
    ) -> None:
        self._spark, self.subject, self.folder = spark, subject, folder
        self._partitions, self._local = partitions, local
        self._running: StreamingQuery | None = None
        self._is_fed = False

    def start(self) -> None:
        """Start the query. It waits for a batch."""
        (self.folder / INPUT).mkdir(parents=True, exist_ok=True)
        events = self._spark.readStream.schema(SCHEMA).parquet(f"{self.folder / INPUT}/*")
        counts = counted(self.subject, events, self.folder, self._partitions, self._local)
        writer = counts.writeStream.format("noop").outputMode("update").trigger(processingTime="0 seconds")
        self._running = writer.option("checkpointLocation", str(self.folder / CHECKPOINT)).start()
        self._is_fed = False

    def feed(self, batch: Path) -> dict[str, Any]:
        """Give the query a batch, wait for its end, and return its figures.

        Before the first batch ``transformWithState`` starts a Python process on the driver, and fails if that takes
        long. Then the query is started again, and the seconds are those of the attempt that succeeded.

        Raises: StoreError if the query fails, has not read all events, or has not given out a row for each key.
        """
        assert self._running is not None
        events, keys = keys_in(batch)
        aside = self.folder / NEXT
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(batch, aside, copy_function=os.link)
        watch = LoadWatch(tree_cpu_s)
        aside.rename(self.folder / INPUT / batch.name)
        for start in range(STARTS_MAX):
            try:
                self._running.processAllAvailable()
                break
            except StreamingQueryException as error:
                if self._is_fed or NOT_CONNECTED not in str(error) or start + 1 == STARTS_MAX:
                    # Its text is Spark's to give, and gone with the session.
                    raise StoreError(f"{self.subject} failed in the batch {batch.name}: {_reasons(error)}") from None
                self.stop()
                self.start()
        self._is_fed = True
        load = watch.figures()
        progress = [each for each in self._running.recentProgress if each["numInputRows"]][-1]
        numbers = (progress["numInputRows"], progress["sink"]["numOutputRows"])
        if numbers != (events, keys):
            raise StoreError(
                f"{self.subject} has read {numbers[0]} events and given out {numbers[1]} rows in batch "
                f"{progress['batchId']}, of {events} events with {keys} keys"
            )
        return {
            "seconds": progress["durationMs"]["triggerExecution"] / 1000,
            "load": load,
            "batch_id": progress["batchId"],
        }

    def stop(self) -> None:
        """Stop the query."""
        if self._running is not None:
            self._running.stop()
            self._running = None


def _reasons(error: StreamingQueryException) -> str:
    """Return the lines of an error that name a reason, on one line: the first, and those of causes."""
    first, *more = str(error).splitlines() or [""]
    reasons = [line.strip() for line in more if re.match(r"\s*(Caused by:|[\w.]+(Error|Exception): )", line)]
    return " ".join(dict.fromkeys([first, *reasons]))


SCHEMA = "key string"
FILL_KEYS = 250_000
"""The most keys in one batch of those that fill the state."""


class Batches:
    """Writes batches below ``folder``, each a folder with a file for each of ``files`` tasks that read it."""

    def __init__(self, folder: Path, keys: int, seed: int, files: int) -> None:
        self._folder, self._keys, self._files = folder, keys, files
        self._random = np.random.default_rng(seed)
        self.made: list[Path] = []
        """The batches so far."""

    def fill(self) -> list[Path]:
        """Return batches that have each key once, in random order."""
        order = self._random.permutation(self._keys)
        return [self._write(order[at : at + FILL_KEYS]) for at in range(0, self._keys, FILL_KEYS)]

    def next(self, events: int) -> Path:
        """Return a batch of events whose keys are drawn with equal frequency."""
        return self._write(self._random.integers(0, self._keys, events))

    def _write(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Path:
        batch = self._folder / f"{len(self.made):06d}"
        batch.mkdir(parents=True)
        for number, part in enumerate(np.array_split(numbers, self._files)):
            keys = pa.array([f"key-{key:09d}" for key in part.tolist()], pa.string())
            pq.write_table(pa.table({"key": keys}), batch / f"{number}.parquet")
        self.made.append(batch)
        return batch


def keys_in(batch: Path) -> tuple[int, int]:
    """Return the number of events of a batch, and that of their keys."""
    keys = pq.read_table(batch).column("key")
    return len(keys), len(keys.unique())


WARM_BATCHES = 3
"""Batches of each subject after its state is filled, in which the JVM compiles what it calls often."""
CHECK_S, CHECKED_KEYS_PER_S = 10.0, 100_000.0
"""The time in which the states are read and compared, which is kept free: seconds, and keys per second."""
_MARGIN = 1.2


def measured(
    keys: int,
    seed: int,
    batch_events: list[int],
    rounds: int,
    subjects: list[str],
    partitions: int,
    seconds: float | None,
    kept: str,
    folder: Path,
) -> dict[str, Any]:
    """Return a row for each timed batch, and the state that each subject has at the end.

    No round begins that may not end within ``seconds``, but the first. The queries stay in the folder ``kept``, with
    two more batches of the smallest size.
    """
    began = monotonic()
    batches = Batches(Path(kept) / "batches", keys, seed, partitions)
    with session("stateful", f"local[{partitions}]", settings=settings(partitions)) as spark:
        queries = [StatefulQuery(spark, subject, Path(kept) / subject, partitions) for subject in subjects]
        fill = batches.fill()
        warm = [batches.next(min(batch_events)) for _ in range(WARM_BATCHES)]
        filled_s = {}
        for query in queries:
            query.start()
            filled_s[query.subject] = sum(query.feed(batch)["seconds"] for batch in fill)
            for batch in warm:
                query.feed(batch)
            query.stop()
        random = Random(seed)
        rows: list[dict[str, Any]] = []
        longest_s, check_s = 0.0, CHECK_S + keys * len(subjects) / CHECKED_KEYS_PER_S
        for number in range(rounds):
            left_s = None if seconds is None else seconds - (monotonic() - began)
            if number and left_s is not None and left_s < _MARGIN * longest_s + check_s:
                break
            begun = monotonic()
            rows += _round(random, queries, batches, batch_events, number)
            longest_s = max(longest_s, monotonic() - begun)
        expected = _summary(spark.read.schema(SCHEMA).parquet(*map(str, batches.made)).groupBy("key").count())
        states = {query.subject: _summary(state_of(query.subject, spark, query.folder)) for query in queries}
    more = [str(batches.next(min(batch_events))) for _ in range(2)]
    return {"rows": rows, "expected": expected, "states": states, "filled_s": filled_s, "more": more}


def _round(
    random: Random, queries: list[StatefulQuery], batches: Batches, batch_events: list[int], number: int
) -> list[dict[str, Any]]:
    """Give each query, in a random order, the same batches: one that is not timed, then one of each size."""
    first, timed = batches.next(min(batch_events)), [batches.next(events) for events in batch_events]
    rows = []
    for query in random.sample(queries, len(queries)):
        query.start()
        query.feed(first)
        for events, batch in zip(batch_events, timed, strict=True):
            figures = query.feed(batch)
            load = figures["load"]
            row = {"subject": query.subject, "batch_events": events, "round": number, "seconds": figures["seconds"]}
            rows.append({**row, "cpu_s": load["cpu_s"], **load_columns([load])})
        query.stop()
        shutil.rmtree(query.folder / INPUT)
    return rows


def _summary(state: DataFrame) -> list[int]:
    """Return the number of keys, the sum of their counts, and a checksum of all of them."""
    checksum = F.sum(F.xxhash64("key", "count").cast("decimal(38,0)"))
    [sums] = state.agg(F.count("*"), F.sum("count"), checksum).collect()
    return [0 if value is None else int(value) for value in sums]


def restarted(subject: str, query: str, batch: str, partitions: int, local: str | None, folder: Path) -> None:
    """Start Spark and the query, give it ``batch``, write to ``folder`` when things were done, and wait."""
    with session("stateful", f"local[{partitions}]", settings=settings(partitions)) as spark:
        begun = time()
        running = StatefulQuery(spark, subject, Path(query), partitions, None if local is None else Path(local))
        running.start()
        first_batch_s = running.feed(Path(batch))["seconds"]
        figures = {"session_at": begun, "done_at": time(), "first_batch_s": first_batch_s}
        write_figures(folder / FIGURES_FILE, figures)
        Event().wait()
