"""The processes that measure streaming queries, which are fed one batch at a time, and timed.

One fills the state of all subjects in one session, then gives them batches in turns. After a kill another one gives a
query one batch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from math import expm1
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

from harness.experiments.stateful.trial import ROWS_FILE
from harness.processes.child import FIGURES_FILE, write_figures
from harness.processes.load import LoadWatch, load_columns, tree_cpu_s
from harness.progress import PROGRESS_FILE, note_progress
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


ROUND_BATCHES = 2
"""The batches of each subject in a round, between a start and a stop of its query."""
WARM_BATCHES = 1 + ROUND_BATCHES
"""Batches of each subject after its state is filled, in which the JVM compiles what it calls often.

The last ones are given as in a round: the first round is expected to take as long.
"""
CHECK_S, CHECKED_KEYS_PER_S = 30.0, 30_000.0
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

    All rounds of the smallest batches come first. No round begins that may not end within ``seconds``. The queries
    stay in the folder ``kept``, with two more batches of the smallest size, and its ``ROWS_FILE`` has each row at once.
    """
    began = monotonic()
    smallest = min(batch_events)
    batches, progress = Batches(Path(kept) / "batches", keys, seed, partitions), Path(kept) / PROGRESS_FILE
    with session("stateful", f"local[{partitions}]", settings=settings(partitions)) as spark:
        queries = [StatefulQuery(spark, subject, Path(kept) / subject, partitions) for subject in subjects]
        fill = batches.fill()
        warm = [batches.next(smallest) for _ in range(WARM_BATCHES)]
        filled_s, round_s = {}, 0.0
        for query in queries:
            filled_s[query.subject] = sum(_fed(query, [*fill, *warm[:-ROUND_BATCHES]])[: len(fill)])
            note_progress(progress, f"the state of {query.subject} was filled in {filled_s[query.subject]:.1f} s")
            begun = monotonic()
            _fed(query, warm[-ROUND_BATCHES:])
            round_s += monotonic() - begun
        random = Random(seed)
        rows: list[dict[str, Any]] = []
        times = RoundTimes(keys, {smallest: round_s})
        check_s = CHECK_S + keys * len(subjects) / CHECKED_KEYS_PER_S
        for events, number in ((events, number) for events in sorted(batch_events) for number in range(rounds)):
            if seconds is not None and seconds - (monotonic() - began) < _MARGIN * times.expected_s(events) + check_s:
                break
            begun = monotonic()
            for row in _round(random, queries, batches, (smallest, events), number):
                rows.append(row)
                note_progress(progress, f"round {number + 1}/{rounds}: {row['subject']} {row['seconds']:.2f} s")
                with (Path(kept) / ROWS_FILE).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            times.add(events, monotonic() - begun)
        expected = _summary(spark.read.schema(SCHEMA).parquet(*map(str, batches.made)).groupBy("key").count())
        states = {query.subject: _summary(state_of(query.subject, spark, query.folder)) for query in queries}
    more = [str(batches.next(smallest)) for _ in range(2)]
    return {"rows": rows, "expected": expected, "states": states, "filled_s": filled_s, "more": more}


def _fed(query: StatefulQuery, batches: Sequence[Path]) -> list[float]:
    """Start a query, give it some batches, stop it, and return the seconds of each."""
    query.start()
    seconds = [query.feed(batch)["seconds"] for batch in batches]
    query.stop()
    return seconds


class RoundTimes:
    """The longest round of each size of batches so far, in seconds, of which the next one is expected."""

    def __init__(self, keys: int, longest_s: Mapping[int, float]) -> None:
        self._keys, self._longest_s = keys, dict(longest_s)

    def add(self, events: int, seconds: float) -> None:
        """Add a round."""
        self._longest_s[events] = max(seconds, self._longest_s.get(events, 0.0))

    def expected_s(self, events: int) -> float:
        """Return the time of a round: longer than that of smaller batches as it has more keys, for calls are by key."""
        if events in self._longest_s:
            return self._longest_s[events]
        largest = max(self._longest_s)
        return self._longest_s[largest] * self._keys_among(events) / self._keys_among(largest)

    def _keys_among(self, events: int) -> float:
        """Return how many keys a batch has on average."""
        return self._keys * -expm1(-events / self._keys)


def _round(
    random: Random, queries: list[StatefulQuery], batches: Batches, batch_events: tuple[int, int], number: int
) -> Iterator[dict[str, Any]]:
    """Give each query, in a random order, the same two batches: one that is not timed, and one that is."""
    first, timed = (batches.next(events) for events in batch_events)
    for query in random.sample(queries, len(queries)):
        query.start()
        query.feed(first)
        figures = query.feed(timed)
        query.stop()
        shutil.rmtree(query.folder / INPUT)
        load = figures["load"]
        row = {"subject": query.subject, "batch_events": batch_events[1], "round": number}
        yield {**row, "seconds": figures["seconds"], "cpu_s": load["cpu_s"], **load_columns([load])}


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
