"""Ratios of two speeds of one run, with the threshold that some of them have. Any experiment may have such rows.

A row may have a ``reason``: why its threshold was missed.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.report import text
from harness.report.figures import Figure, Figures, in_order
from harness.report.page import Finding
from harness.report.rows import Row
from harness.report.table import Table

_MET = {True: "yes", False: "**no**", None: text.NONE}


def ratios(rows: Iterable[Row]) -> list[Figure]:
    """Return the ratios in order. ``met`` is True if the threshold is reached, None if there is none."""
    return in_order(
        {**row, "kind": "ratio", "met": None if row["at_least"] is None else row["ratio"] >= row["at_least"]}
        for row in rows
    )


def ratio_finding(figures: Figures) -> Finding:
    """Return how many ratios with a threshold reach it."""
    asked = [figure["met"] for figure in figures["ratio"] if figure["met"] is not None]
    return Finding("ratios with a threshold", len(asked), asked.count(True), "reached it")


def ratio_table(figures: Figures) -> Table:
    """Return each ratio with its threshold and its result. Those that miss their threshold are notable."""
    rows = [
        [
            figure["claim"],
            figure["durability"] or text.NONE,
            text.exact(figure["records_per_commit"]),
            figure["subject"],
            figure["yardstick"],
            text.ratio(figure["ratio"]),
            text.NONE if figure["at_least"] is None else f"{figure['at_least']:g}",
            _MET[figure["met"]] + (f": {figure['reason']}" if figure["met"] is False and figure.get("reason") else ""),
        ]
        for figure in figures["ratio"]
    ]
    head = ("claim", "level", "records per commit", "backend", "against", "ratio", "at least", "reached")
    caption = "Ratios of medians within this run; more than 1 is faster than the yardstick"
    missed = [place for place, figure in enumerate(figures["ratio"]) if figure["met"] is False]
    return Table(caption, head, rows, (2, 5, 6), (), missed)
