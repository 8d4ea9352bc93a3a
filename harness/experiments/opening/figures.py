"""The figures of opening: medians over repeats of the time until a store is ready."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness.processes.load import is_busy
from harness.report.figures import Figure, grouped, intervals, median_of
from harness.report.interval import REPEATS_MIN
from harness.report.rows import Row

KEY = ("durability", "backend", "records")

READY_AFTER_A_KILL = "ready after a kill"
"""The time to open, recover and restore a store whose process was killed in a commit."""
_TIMES = ("open_s", "restore_s", "replayed", "ready_s", "alone_s", "bare_s", "mark_s")
_SPEEDS = ("replay_per_s", "restore_per_s")


def opening(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend, level and size: medians over repeats, and the interval of the time until ready."""
    timed = [{**row, "ready_s": row["open_s"] + (row["restore_s"] or 0), **_speeds(row)} for row in rows]
    return [
        {
            "kind": "opening",
            **key,
            "repeats": len(group),
            "busy": sum(map(is_busy, group)),
            **{name: median_of(group, name) for name in (*_TIMES, *_SPEEDS)},
            **intervals(group, ("ready_s",)),
            "ready_s_high": max(row["ready_s"] for row in group),
        }
        for key, group in grouped(timed, KEY)
    ]


def _speeds(row: Row) -> dict[str, float | None]:
    """Return the records per second of the replay of the tail, and of the restore that filled the store."""
    whole_s = row.get("whole_restore_s")
    return {
        "replay_per_s": row["replayed"] / row["restore_s"] if row["restore_s"] else None,
        "restore_per_s": row["records"] / whole_s if whole_s else None,
    }


def largest_state(
    figures: Iterable[Figure], durability: str, candidates: Collection[str] | None = None
) -> list[Figure]:
    """Return the figures of the largest state that more than one of the ``candidates`` was opened with (None: all).

    A state that they were opened with often enough for an interval goes before a larger one.
    """
    by_size: dict[int, list[Figure]] = {}
    for figure in figures:
        if figure["durability"] == durability and (candidates is None or figure["backend"] in candidates):
            by_size.setdefault(figure["records"], []).append(figure)

    def weight(size: int) -> tuple[bool, bool, int]:
        opened = by_size[size]
        return sum(figure["repeats"] >= REPEATS_MIN for figure in opened) > 1, len(opened) > 1, size

    return by_size[max(by_size, key=weight)] if by_size else []
