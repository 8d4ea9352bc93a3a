"""The figures of opening: medians over repeats of the time until a store is ready."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness.processes.load import is_busy
from harness.report.figures import Figure, grouped, intervals, median_of
from harness.report.rows import Row

KEY = ("durability", "backend", "records")

READY_AFTER_A_KILL = "ready after a kill"
"""The time to open, recover and restore a store whose process was killed in a commit."""
_MEDIANS = ("open_s", "restore_s", "replayed", "ready_s", "alone_s", "bare_s")


def opening(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend, level and size: medians over repeats, and the interval of the time until ready."""
    timed = [{**row, "ready_s": row["open_s"] + (row["restore_s"] or 0)} for row in rows]
    return [
        {
            "kind": "opening",
            **key,
            "repeats": len(group),
            "busy": sum(map(is_busy, group)),
            **{name: median_of(group, name) for name in _MEDIANS},
            **intervals(group, ("ready_s",)),
            "ready_s_high": max(row["ready_s"] for row in group),
        }
        for key, group in grouped(timed, KEY)
    ]


def largest_state(
    figures: Iterable[Figure], durability: str, candidates: Collection[str] | None = None
) -> list[Figure]:
    """Return the figures of the largest state that more than one of the ``candidates`` was opened with (None: all)."""
    by_size: dict[int, list[Figure]] = {}
    for figure in figures:
        if figure["durability"] == durability and (candidates is None or figure["backend"] in candidates):
            by_size.setdefault(figure["records"], []).append(figure)
    return max(by_size.items(), key=lambda item: (len(item[1]) > 1, item[0]))[1] if by_size else []
