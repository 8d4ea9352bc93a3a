"""The figures of scale: one for each row, with what follows from it."""

from __future__ import annotations

from collections.abc import Iterable

from harness.processes.load import is_busy
from harness.report.figures import Figure, in_order
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


def _times(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None
