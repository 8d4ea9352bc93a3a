"""The tables and the page about stateful queries under faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.page import Finding, Page, tables
from harness.report.table import Table

_NUMBERS = {
    "struck": "struck",
    "batches": "batches",
    "drivers": "drivers",
    "restarts": "restarts",
    "late": "late",
    "restored": "restored_versions",
    "bytes": "restored_bytes",
}
"""The columns of numbers, by their captions."""
_METHOD = """\
Queries with a file sink run on Spark in local mode, or on a standalone cluster of two workers on loopback with local
files of their own. `count` counts events by name in a typed store, `timers` registers a timer for each event,
`flights_by_hour` and `aircraft_sessions` are the workloads of tasks, with windows and sessions. Each batch is one file
of events. After the last batch the rows, and the state as a table at each kept version, are compared with the answer of
Spark SQL over the same events: each row counts once, and each partition has counted each batch once. *Struck* is how
many times the fault came. *Late* attempts were not the first at their version: they were refused, or gave out the rows
of the first. *Restored* are the versions that local copies took from the log, and the bytes of their records.

Checkers also see that no store commits a version before its log has it; that a zombie's version is refused; that after
a failed batch only the partition that failed is computed again; and that after the loss of a machine the other one
restores just the versions that its copies lack.
"""


def query_tables(figures: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of faults, and one of mutants; without those that have no rows."""
    sound, mutants = ([row for row in figures if bool(row["mutant"]) is built_in] for built_in in (False, True))
    made = []
    if sound:
        head = ("query", "fault", "backend", *_NUMBERS, "result")
        numbers = range(3, 3 + len(_NUMBERS))
        notable = [place for place, row in enumerate(sound) if row["result"] != row["expected"]]
        lines = [_line(row) for row in sound]
        made.append(Table("Stateful queries under faults", head, lines, numbers, notable=notable))
    if mutants:
        lines = [[f"`{row['mutant']}`", row["fault"], row["result"], row["detail"][:200]] for row in mutants]
        made.append(Table("Mutants of queries, which must be detected", ("mutant", "fault", "result", "found"), lines))
    return made


def _line(row: Mapping[str, Any]) -> list[str]:
    result = row["result"] if row["result"] == row["expected"] else f"{row['result']}, not {row['expected']}"
    numbers = [text.exact(row[name]) for name in _NUMBERS.values()]
    return [row["workload"], row["meaning"], row["backend"], *numbers, result]


def page(figures: Sequence[Mapping[str, Any]], failures: Sequence[str]) -> Page:
    """Return the page."""
    good = sum(row["result"] == row["expected"] for row in figures)
    wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
    return Page(
        "query-faults",
        "Stateful queries under faults",
        (
            "Workers, executors and drivers of a stateful query are killed, stalled, or without disk space.",
            "Its rows and its state are compared with Spark SQL.",
        ),
        [*tables(*query_tables(figures)), wrong] if figures else (),
        _METHOD,
        (Finding("trials of stateful queries", len(figures), good, "ended as expected"),),
    )
