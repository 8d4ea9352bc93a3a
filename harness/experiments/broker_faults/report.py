"""The tables and the page about tasks over a Kafka broker under faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.page import Finding, Page, tables
from harness.report.table import Table

_METHOD = """\
Each trial has a broker of its own, with one replica of each partition. Tasks count keys in two stores, and send one
output for each input. The fault strikes at a place in one of ten commits, which the seed chooses, or in a rebalance of
two workers. Processes are killed by SIGKILL and stopped by SIGSTOP. A proxy on loopback stalls and cuts connections.
Then a successor finishes the input.

A consumer with `isolation.level=read_committed`, in a process that shares no code with the library, reads the outputs.
Exactly once, each input has one output, with the count of a model. At least once, each input has an output. The stores,
and stores that are restored whole from the changelogs, are those of the model. A zombie must be fenced, and a task that
was only delayed must not.
"""


def broker_tables(figures: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table of faults, and one of mutants; without those that have no rows."""
    sound, mutants = ([row for row in figures if bool(row["mutant"]) is built_in] for built_in in (False, True))
    made = []
    if sound:
        head = ("fault", "place", "guarantee", "backend", "inputs", "outputs", "lost", "repeated", "result")
        wrong = [number for number, row in enumerate(sound) if row["result"] != row["expected"]]
        lines = [_line(row) for row in sound]
        made.append(Table("Tasks over a broker under faults", head, lines, range(4, 8), notable=wrong))
    if mutants:
        columns = ("mutant", "fault", "place", "result", "found")
        made.append(Table("Mutants over a broker, which must be detected", columns, [_mutant(row) for row in mutants]))
    return made


def _line(row: Mapping[str, Any]) -> list[str]:
    result = row["result"] if row["result"] == row["expected"] else f"{row['result']}, not {row['expected']}"
    numbers = [text.exact(row[name]) for name in ("inputs", "outputs", "lost", "repeated")]
    return [row["meaning"], row["place"], row["guarantee"].replace("_", " "), row["backend"], *numbers, result]


def _mutant(row: Mapping[str, Any]) -> list[str]:
    return [f"`{row['mutant']}`", row["fault"], row["place"], row["result"], row["detail"][:200]]


def page(figures: Sequence[Mapping[str, Any]], failures: Sequence[str], missing: str) -> Page:
    """Return the page. ``missing`` is the reason why nothing could be tried, or ""."""
    good = sum(row["result"] == row["expected"] for row in figures)
    wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
    return Page(
        "broker-faults",
        "Tasks over a broker under faults",
        (
            "Tasks, workers and the broker are killed, stopped or cut off at each step of a commit over Kafka.",
            "Committed outputs and stores are compared with a model.",
        ),
        [*tables(*broker_tables(figures)), wrong] if figures else (),
        _METHOD,
        (Finding("trials over a broker", len(figures), good, "ended as expected"),),
        absent=f"not measured: {missing}" if missing else text.NOT_MEASURED,
    )
