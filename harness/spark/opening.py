"""Opening trials on Spark: one trial per row of a range, with as many at once as there are slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from harness.experiments.opening.opening import OpeningTrial, run_opening
from harness.experiments.throughput.progress import Progress, note_progress
from harness.experiments.throughput.run import MeasurementFailedError
from harness.folders import temporary_folder
from harness.spark.session import code_path
from harness.spark.throughput import Outcome, Site

_SPARK_SCHEMA = "trial long, rows string, failure string"
_SCHEMA = pa.schema({"trial": pa.int64(), "rows": pa.string(), "failure": pa.string()})
_Batches = Iterator[pa.RecordBatch]


def measure_openings(
    spark: SparkSession,
    trials: Sequence[OpeningTrial],
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run the trials, and return rows of kind "opening" in order. ``folder`` and ``say`` are as for throughput."""
    with temporary_folder("opening") as scratch:
        target = (folder or Path(scratch) / "yield").absolute()
        numbers = spark.range(0, len(trials), 1, len(trials))
        with Progress(Path(scratch) / "progress", say) as progress:
            # The result is written once and read back, so that no trial runs twice.
            site = Site(Path(scratch), progress.path, code_path())
            yielded = numbers.mapInArrow(_runner(trials, site), _SPARK_SCHEMA)
            yielded.write.parquet(target.as_uri())
        results = {row["trial"]: row for row in spark.read.schema(_SPARK_SCHEMA).parquet(target.as_uri()).collect()}
    outcome = Outcome()
    for number, trial in enumerate(trials):
        row = results[number]
        outcome.rows.extend(json.loads(row["rows"] or "[]"))
        if row["failure"]:
            outcome.problems.append(f"{_subject(trial)}: {row['failure']}")
    return outcome


def _runner(trials: Sequence[OpeningTrial], site: Site) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                trial = trials[number]
                try:
                    rows = run_opening(trial, code=site.child_code(), within=site.within())
                    row: dict[str, Any] = {"rows": json.dumps(rows)}
                    result = ", ".join(f"{each['open_s'] + each['restore_s']:.3f} s" for each in rows)
                except MeasurementFailedError as error:
                    row, result = {"failure": str(error)}, f"failed: {error}"
                note_progress(site.progress, f"{_subject(trial)}: {result}")
                yield pa.RecordBatch.from_pylist([{"trial": number, **row}], _SCHEMA)

    return run


def _subject(trial: OpeningTrial) -> str:
    return f"opening {trial.records:,} records on {trial.backend}, {trial.durability}"
