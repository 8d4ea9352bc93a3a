"""The measured processes: one fills the state of all subjects in one session, then gives them batches in turns.

After a kill another one gives a query one batch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic, time
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from harness.processes.child import FIGURES_FILE, write_figures
from harness.processes.load import load_columns
from harness.spark.session import session
from harness.spark.stateful.arms import state_of
from harness.spark.stateful.query import INPUT, SCHEMA, Batches, StatefulQuery, settings

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
            found = query.feed(batch)
            load = found["load"]
            row = {"subject": query.subject, "batch_events": events, "round": number, "seconds": found["seconds"]}
            rows.append({**row, "cpu_s": load["cpu_s"], **load_columns([load])})
        query.stop()
        shutil.rmtree(query.folder / INPUT)
    return rows


def _summary(state: DataFrame) -> list[int]:
    """Return the number of keys, the sum of their counts, and a checksum of all of them."""
    checksum = F.sum(F.xxhash64("key", "count").cast("decimal(38,0)"))
    [found] = state.agg(F.count("*"), F.sum("count"), checksum).collect()
    return [0 if value is None else int(value) for value in found]


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
