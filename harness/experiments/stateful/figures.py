"""The figures and the ratios of stateful queries, from rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from harness.experiment import RATIO
from harness.experiments.stateful.trial import APPLY, JVM, OURS, OURS_IN_ARROW, PANDAS, ROWS
from harness.processes.load import is_busy
from harness.report.figures import Figure, Interval, grouped, in_order, interval, intervals
from harness.report.ratios import ratio_of
from harness.report.rows import Row

GOAL_KEYS = 100_000
"""The number of keys for which the goals hold."""
GOALS = {APPLY: 10.0, PANDAS: 3.0, ROWS: 3.0, JVM: 0.7}
"""The least ratio of the time of a batch over that of ``OURS``."""
_CELL = ("keys", "batch_events", "partitions", "seed")


def batches(rows: Iterable[Row]) -> list[Figure]:
    """Return the medians of each subject, keys and batch size, with the ratios of its times over those of ``OURS``."""
    made = []
    for cell, of_cell in grouped(rows, _CELL):
        by_subject = dict(_by_subject(of_cell))
        own = by_subject.get(OURS, [])
        for subject, repeats in by_subject.items():
            figure = {
                "kind": "stateful",
                **cell,
                "subject": subject,
                "repeats": len(repeats),
                "busy": sum(map(is_busy, repeats)),
                "seconds": median(row["seconds"] for row in repeats),
                "cpu_s": median(counted) if (counted := [row["cpu_s"] for row in repeats if _counts(row)]) else None,
                **intervals(repeats, ("seconds",)),
            }
            pairs = _pairs(repeats, own) if subject != OURS else []
            figure |= _ratio("seconds_ratio", [other["seconds"] / ours["seconds"] for other, ours in pairs])
            counted_pairs = [(other, ours) for other, ours in pairs if _counts(other) and _counts(ours)]
            figure |= _ratio("cpu_s_ratio", [other["cpu_s"] / ours["cpu_s"] for other, ours in counted_pairs])
            made.append({**figure, "events_per_s": cell["batch_events"] / figure["seconds"]})
    return in_order(made)


def _counts(row: Row) -> bool:
    """Return False if the CPU time is unknown: a process that ends in a batch takes all of its own away."""
    return row["cpu_s"] > 0  # type: ignore[no-any-return]


def restarts(rows: Iterable[Row]) -> list[Figure]:
    """Return the medians over restarts."""
    return in_order(
        {
            "kind": "stateful_restart",
            **cell,
            "repeats": len(repeats),
            **{name: median(row[name] for row in repeats) for name in ("ready_s", "start_s", "first_batch_s")},
            **intervals(repeats, ("ready_s",)),
        }
        for cell, repeats in grouped(rows, ("subject", "keys", "copies", "batch_events", "seed"))
    )


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio": times of Spark's own ways over ours in the same round, with the goals."""
    made = []
    for cell, of_cell in grouped(rows, _CELL):
        by_subject = dict(_by_subject(of_cell))
        for yardstick, goal in GOALS.items():
            for subject in (OURS, OURS_IN_ARROW) if yardstick == JVM else (OURS,):
                pairs = _pairs(by_subject.get(yardstick, []), by_subject.get(subject, []))
                if pairs:
                    busy = sum(is_busy(theirs) or is_busy(own) for theirs, own in pairs)
                    made.append(
                        {
                            "kind": RATIO,
                            "claim": f"a batch of {cell['batch_events']:,} events, with {cell['keys']:,} keys",
                            "subject": subject,
                            "yardstick": yardstick,
                            "durability": None,
                            "records_per_commit": cell["batch_events"],
                            "at_least": goal if cell["keys"] == GOAL_KEYS else None,
                            "reason": "",
                            **ratio_of([theirs["seconds"] / own["seconds"] for theirs, own in pairs], busy),
                        }
                    )
    return made


def _by_subject(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return [(cell["subject"], repeats) for cell, repeats in grouped(rows, ("subject",))]


def _pairs(theirs: Sequence[Row], ours: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the rows of the rounds that both have."""
    own = {row["round"]: row for row in ours}
    return [(row, own[row["round"]]) for row in theirs if row["round"] in own]


def _ratio(name: str, found: Sequence[float]) -> dict[str, float | None]:
    """Return the median of ratios with its interval; None for what is not known."""
    bounds: Interval | None = interval(found)
    return {
        name: median(found) if found else None,
        f"{name}_from": bounds.low if bounds else None,
        f"{name}_to": bounds.high if bounds else None,
    }
