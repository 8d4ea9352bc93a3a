"""The figures, the table and the page about the time until readers see a write."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report import text
from harness.report.figures import Figure, Figures, distinct, in_order
from harness.report.page import Page, Table, tables
from harness.report.rows import Row

_METHOD = """\
A writer numbers its writes to one key, about a hundred a second, and commits once per interval. A reader at each level
looks the key up all the time. Lookups beside commits and the cost of iterators are among the ratios and suites of a
store by itself.
"""


def lags(rows: Iterable[Row]) -> list[Figure]:
    """Return the times until writes were seen, unchanged, in order."""
    return in_order([{**row, "kind": "visibility"} for row in rows])


def visibility_tables(figures: Figures) -> list[Table]:
    """Return one table per durability level: a line per backend, commit interval and isolation level."""
    head = (
        "backend",
        "committed by",
        "every",
        "isolation level",
        "writes",
        "seen after, median",
        "p99",
        "longest",
        "p99 / interval",
    )
    return [
        Table(
            f"Level {durability}: how long a write takes to be seen by a reader on another thread",
            head,
            [
                [
                    figure["backend"],
                    figure["committed_by"],
                    text.duration(figure["commit_interval_s"]),
                    figure["isolation_level"],
                    text.exact(figure["writes"]),
                    *(text.duration(figure[f"lag_{name}_s"]) for name in ("p50", "p99", "max")),
                    text.ratio(figure["lag_p99_s"] / figure["commit_interval_s"]),
                ]
                for figure in sorted(
                    figures["visibility"],
                    key=lambda one: (
                        one["isolation_level"],
                        one["backend"],
                        one["committed_by"],
                        one["commit_interval_s"],
                    ),
                )
                if figure["durability"] == durability
            ],
            (2, 4, 5, 6, 7, 8),
        )
        for (durability,) in distinct(figures["visibility"], "durability")
    ]


def page(figures: Figures) -> Page:
    """Return the page."""
    own = figures["visibility"]
    return Page(
        "readers",
        "Readers on other threads",
        (
            "A reader at READ_COMMITTED sees a write once it is committed, which takes up to one commit interval.",
            "A reader at READ_UNCOMMITTED sees it at once.",
            _latest(own),
        ),
        tables(*visibility_tables(figures)) if own else (),
        _METHOD,
    )


def _latest(figures: Iterable[Figure]) -> str:
    """Return a sentence with the longest time, in commit intervals, until a committed write was seen."""
    shares = (
        figure["lag_p99_s"] / figure["commit_interval_s"]
        for figure in figures
        if figure["isolation_level"] == "READ_COMMITTED"
    )
    longest = max(shares, default=None)
    return f"The longest 99th percentile at READ_COMMITTED was {text.ratio(longest)} commit intervals."
