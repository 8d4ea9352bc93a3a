"""The table of the trials of readers beside a writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.table import Table


def reader_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line for each trial, with its parameters, and its result with the expected one if they differ."""
    return Table(
        "Readers beside a writer; every answer judged against the writer's history",
        ("backend", "level", "built in", "operations", "commits", "committed answers", "uncommitted answers", "found"),
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
