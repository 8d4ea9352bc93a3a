"""The stage of I/O faults: it runs all planned cases, and returns their rows for the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from harness.experiments.iofaults.plan import Convicted, Swept
from harness.spark.stages import Row, Say, now_and_then
from harness.spark.sweeps import finished_slices, run_sweeps


def effect_rows(spark: SparkSession, planned: Sequence[Swept | Convicted], folder: Path, say: Say) -> list[Row]:
    """Return rows of the kinds "effect", "effect_slice" and "mutant".

    ``folder``, which all executors must see, keeps the files that are needed to repeat an unexpected trial.
    """

    def tell() -> str:
        done, total = finished_slices(folder)
        return f"{done}/{total} slices" if total else "recording"

    with now_and_then(tell, say):
        rows = run_sweeps(spark, planned, folder)
    say(f"{sum(row['kind'] == 'effect' for row in rows):,} states and trials")
    return rows
