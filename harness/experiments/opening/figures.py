"""The figures of opening: medians over repeats of the time until a store is ready."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from harness.report.figures import Figure, grouped, median_of
from harness.report.rows import Row

KEY = ("durability", "backend", "records")


def opening(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend, level and size: medians over repeats, and the slowest time until ready."""
    return [
        {
            "kind": "opening",
            **key,
            "repeats": len(group),
            **{name: median_of(group, name) for name in ("open_s", "restore_s", "replayed")},
            "ready_s": median([_ready_s(row) for row in group]),
            "ready_s_high": max(_ready_s(row) for row in group),
        }
        for key, group in grouped(rows, KEY)
    ]


def _ready_s(row: Row) -> float:
    return float(row["open_s"]) + float(row["restore_s"] or 0)
