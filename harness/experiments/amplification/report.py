"""The figures, the table and the page about read and write amplification."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report import text
from harness.report.figures import Figure, Figures, in_order
from harness.report.page import Page, Table, tables
from harness.report.rows import Row

_METHOD = """\
Counted at the engines of a store alone, in a transaction that fits into a buffer of 256 KiB and in one that does not,
where a strategy has such a buffer. The bytes that engines make of this, in logs, flushes and compactions, are part of
what a task's process has written.
"""


def amplification(rows: Iterable[Row]) -> list[Figure]:
    """Return the counts in order, each with the bytes that an engine was given per byte put into its store."""
    return in_order(
        [{**row, "kind": "amplification", "written_per_byte": row["bytes_written"] / row["bytes_put"]} for row in rows]
    )


def amplification_table(figures: Figures) -> Table:
    """Return one line per backend and size of the open transaction."""
    head = (
        "backend",
        "level",
        "records in the open transaction",
        "staged",
        "just committed",
        "committed before",
        "absent",
        "bytes written per byte put",
    )
    rows = [
        [
            figure["backend"],
            figure["durability"],
            text.exact(figure["staged_records"]),
            *(text.ratio(figure[f"lookups_{place}"]) for place in ("staged", "just_committed", "committed", "absent")),
            text.ratio(figure["written_per_byte"]),
        ]
        for figure in figures["amplification"]
    ]
    return Table("Lookups in an engine per get, by where the key is, and bytes given to it", head, rows, range(2, 8))


def page(figures: Figures) -> Page:
    """Return the page."""
    own = figures["amplification"]
    return Page(
        "amplification",
        "Read and write amplification of a store",
        (
            "A get of a store may look a key up in its engine more than once, and a commit may write a byte twice.",
            "The table counts both, for keys that are staged, committed or absent.",
            _most(own),
        ),
        tables(amplification_table(figures)) if own else (),
        _METHOD,
    )


def _most(figures: Iterable[Figure]) -> str:
    """Return a sentence with the largest of the counts."""
    places = ("staged", "just_committed", "committed", "absent")
    lookups = max((figure[f"lookups_{place}"] for figure in figures for place in places), default=None)
    written = max((figure["written_per_byte"] for figure in figures), default=None)
    return f"At most, a get took {text.ratio(lookups)} lookups, and a byte was written {text.ratio(written)} times."
