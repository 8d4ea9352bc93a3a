"""The figures of memory: commits caused only by the limit on staged writes, and steps larger than it."""

from __future__ import annotations

from collections.abc import Iterable

from harness.processes.load import is_busy
from harness.report.figures import Figure, Figures, grouped, in_order, median_of, values
from harness.report.page import Finding
from harness.report.rows import Row

KEY = ("durability", "backend", "limit_bytes")
_MEDIANS = ("records", "records_per_s", "commits", "predicted", "exceeded", "peak_memory_bytes")
EARLY_COMMITS = "Commits that only the limit asks for"
LARGE_STEPS = "One step larger than the limit"
"""The titles of the two parts of the page."""


def early_commits(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend and limit: the largest staged size, and medians of the rest.

    ``against_none`` is the rate divided by the same backend's rate without a limit, or None if that was not measured.
    """
    figures = [
        {
            "kind": "early_commit",
            **key,
            "repeats": len(group),
            "busy": sum(map(is_busy, group)),
            "uncommitted_max_bytes": max(values(group, "uncommitted_max_bytes")),
            **{name: median_of(group, name) for name in _MEDIANS},
        }
        for key, group in grouped(rows, KEY)
    ]
    unlimited = {
        (figure["durability"], figure["backend"]): figure["records_per_s"]
        for figure in figures
        if figure["limit_bytes"] is None
    }
    for figure in figures:
        free = unlimited.get((figure["durability"], figure["backend"]))
        figure["against_none"] = figure["records_per_s"] / free if free else None
    return figures


def large_steps(rows: Iterable[Row]) -> list[Figure]:
    """Return the steps in order, each with ``bounded`` and ``atomic``.

    ``bounded`` is True if the step kept its memory bound, None if it has none. ``atomic`` is True if it was one commit:
    all of it is there afterwards, and a store with isolation showed nothing before.
    """
    return in_order(
        [
            {
                **row,
                "kind": "large_step",
                "bounded": None if row["bound_bytes"] is None else row["peak_bytes"] <= row["bound_bytes"],
                "atomic": row["state"] == "equal"
                and row["commits"] == 1
                and not (row["transactional"] and row["seen_early"]),
            }
            for row in rows
        ]
    )


def memory_findings(figures: Figures) -> tuple[Finding, ...]:
    """Return how many limits were kept, and how many steps were one commit within their bound."""
    limited = [figure for figure in figures["early_commit"] if figure["limit_bytes"] is not None]
    steps = figures["large_step"]
    return (
        Finding(
            "limits on the memory of uncommitted writes",
            len(limited),
            sum(figure["uncommitted_max_bytes"] <= figure["limit_bytes"] for figure in limited),
            "were never exceeded",
            EARLY_COMMITS,
        ),
        Finding(
            "steps larger than the limit",
            len(steps),
            sum(figure["atomic"] and figure["bounded"] is not False for figure in steps),
            "were one commit, and took no more memory than their bound where they have one",
            LARGE_STEPS,
        ),
    )
