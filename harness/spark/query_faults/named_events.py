"""The events of the queries that need no data set: names, and times that no two events share."""

from __future__ import annotations

import datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet

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
