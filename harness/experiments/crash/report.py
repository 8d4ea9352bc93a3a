"""The page about crash trials."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.crash.figures import crash_finding
from harness.experiments.crash.plot import crash_chart
from harness.experiments.crash.tables import crash_tables
from harness.report import text
from harness.report.drawing import Plot
from harness.report.figures import Figures
from harness.report.page import Page, tables

_METHOD = """\
A task works through a seeded input over two stores and is killed with SIGKILL at a named failpoint; fresh processes
recover (some are killed again) and finish the input. Checkers that share no code with the stores check atomicity,
durability, visibility of uncommitted writes, convergence with the changelog, exactly-once outputs and the length of the
restore. *Unknown* fails as *anomaly* does. Stores of bytes, of timestamped values, of windows and of sessions take
turns.
"""


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    plot = Plot(
        "crash-matrix",
        "Backends by failpoints: how many trials ended valid",
        crash_chart(figures["crash"]),
    )
    return Page(
        "crashes",
        "Crashes",
        (
            "A task is killed at a failpoint or stopped by another fault, and fresh processes recover its stores.",
            "Checkers compare the stores, the changelog and the outputs with what the task acknowledged.",
        ),
        _body(figures, failures) if figures["crash"] else (),
        _METHOD,
        (crash_finding(figures),),
        (plot,),
    )


def _body(figures: Figures, failures: Sequence[str]) -> list[str]:
    mutants = crash_tables(figures, expected="anomaly")
    parts = tables(*crash_tables(figures, expected="valid"))
    parts.append(
        text.failures("Trials that did not end as expected", failures)
        if failures
        else "Every trial ended as expected.\n"
    )
    if mutants:
        parts.append("## Mutants in crash trials\n")
        parts.append("Each of these must be detected: here `anomaly` is the expected result.\n")
        parts += tables(*mutants)
    return parts
