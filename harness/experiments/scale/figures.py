"""The figures of scale: one for each row, with what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.processes.load import is_busy
from harness.processes.time_over import TIME_OVER
from harness.report.figures import Figure, in_order
from harness.report.page import Finding
from harness.report.rows import Row


def scale(rows: Iterable[Row]) -> list[Figure]:
    """Return a figure for each store, with ``disk_times``, its bytes on disk over those of its keys and values."""
    return in_order(
        {**row, "kind": "scale", "busy": is_busy(row), "disk_times": _times(row["bytes_on_disk"], row["state_bytes"])}
        for row in rows
    )


def parts(rows: Iterable[Row]) -> list[Figure]:
    """Return a figure for each part of the puts."""
    return in_order({**row, "kind": "scale_part"} for row in rows)


def is_cut(row: Mapping[str, Any]) -> bool:
    """Return True if the time was over before all of a row was measured. That is no failure."""
    return str(row["problem"]).startswith(TIME_OVER)


def finding(figures: Sequence[Figure]) -> Finding:
    """Return how many stores showed what was put. Those whose time was over, or that had no limit, do not count."""
    tried = [figure for figure in figures if not is_cut(figure) and not figure["unlimited"]]
    good = sum(not figure["problem"] for figure in tried)
    return Finding("stores of many records", len(tried), good, "showed every record, in the memory that they may use")


def _times(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None
