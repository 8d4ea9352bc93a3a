"""The figures, the table and the page about the isolation of readers beside a writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.page import Finding, Page, tables
from harness.report.rows import Row
from harness.report.table import Table

_METHOD = """\
Each trial is a process of its own: a writer commits random writes for some seconds, and readers on other threads look
keys up, scan ranges and hold iterators at both isolation levels. The writer records its history. A checker that shares
no code with the stores compares every answer with it. Mutants must be detected: there `anomaly` is expected.
"""


def isolation(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per trial, unchanged, in order."""
    return sorted(({**row, "kind": "isolation"} for row in rows), key=lambda figure: str(figure["trial"]))


def reader_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line for each trial, with its parameters, and its result with the expected one if they differ."""
    return Table(
        "Readers beside a writer; every answer checked against the writer's history",
        ("backend", "level", "built in", "operations", "commits", "committed answers", "uncommitted answers", "result"),
        [
            (
                str(row["backend"]),
                str(row["durability"]),
                str(row["mutant"] or "nothing"),
                *(f"{row[name]:,}" for name in ("operations", "commits", "committed_answers", "uncommitted_answers")),
                f"{row['result']}{'' if row['result'] == row['expected'] else ', not ' + str(row['expected'])}",
            )
            for row in rows
        ],
        right=(3, 4, 5, 6),
    )


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    own = figures["isolation"]
    as_expected = sum(figure["result"] == figure["expected"] for figure in own)
    wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
    return Page(
        "isolation",
        "Isolation of readers",
        (
            "Readers on other threads ask a store while it is written, at both isolation levels.",
            "Every answer is compared with the history of the writer.",
        ),
        [*tables(reader_table(own)), wrong] if own else (),
        _METHOD,
        (Finding("trials of readers", len(own), as_expected, "ended as expected"),),
    )
