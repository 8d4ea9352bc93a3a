"""The figures, the table, the plot and the page about the latency of puts and commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import BASELINE, Figure, Figures, distinct
from harness.report.page import Page, Table, tables
from harness.report.rows import Row

_METHOD = """\
A store by itself, with random keys of 16 bytes and values of 100. Puts are timed one by one, and commits of a fixed
number of puts.
"""
_PERCENTILES = {"p50_us": "50", "p90_us": "90", "p99_us": "99", "p999_us": "99.9", "max_us": "100"}


def latency(rows: Iterable[Row]) -> list[Figure]:
    """Return percentiles of puts and of commits, each compared with the backend without isolation at the same level.

    ``against_baseline`` is the ratio of medians, or None if the baseline was not measured.
    """
    figures = [{**row, "kind": "latency"} for row in rows]
    own = [figure for figure in figures if figure["backend"] == BASELINE]
    medians = {(figure["durability"], figure["operation"]): figure["p50_us"] for figure in own}
    for figure in figures:
        baseline = medians.get((figure["durability"], figure["operation"]))
        figure["against_baseline"] = figure["p50_us"] / baseline if baseline else None
    return sorted(figures, key=lambda one: (one["durability"], one["operation"] != "put", one["backend"]))


def latency_tables(figures: Figures) -> list[Table]:
    """Return one table per durability level: a line per backend for puts, and one for commits."""
    head = (
        *("call", "backend", "records per commit", "calls", "median", "p90", "p99", "p99.9", "longest"),
        f"median / {BASELINE}",
    )
    return [
        Table(
            f"Level {durability}: how long a put and a commit take",
            head,
            [
                [
                    figure["operation"],
                    figure["backend"],
                    text.exact(figure["records_per_commit"]),
                    text.exact(figure["operations"]),
                    *(text.latency(figure[f"{name}_us"]) for name in ("p50", "p90", "p99", "p999", "max")),
                    text.ratio(figure["against_baseline"]),
                ]
                for figure in figures["latency"]
                if figure["durability"] == durability
            ],
            range(2, 10),
        )
        for (durability,) in distinct(figures["latency"], "durability")
    ]


def latency_chart(figures: Sequence[Figure]) -> Chart:
    """Return percentiles of puts and of commits: a panel for each and for each level, a line per backend."""
    panels = [
        Panel(
            f"{operation}, level {level}",
            [
                Mark(figure["backend"], figure[name], step=step, measure=step)
                for figure in figures
                if (figure["durability"], figure["operation"]) == (level, operation)
                for name, step in _PERCENTILES.items()
            ],
            level,
        )
        for level, operation in distinct(figures, "durability", "operation")
    ]
    title = "Percentiles of the time that a put takes, and a commit"
    return Chart("put-and-commit-latency", title, "lines", panels, "microseconds", "us", "percentile")


def page(figures: Figures) -> Page:
    """Return the page."""
    own = figures["latency"]
    return Page(
        "latency",
        "Latency of puts and commits",
        (
            "The time that a put takes, and a commit, from the median to the longest.",
            "A store that stages its writes does less in a put and more in a commit than one that writes at once "
            '(KIP-892, "Compatibility").',
            "A commit writes all staged records, so its time grows with their number.",
        ),
        tables(*latency_tables(figures)) if own else (),
        _METHOD,
        plots=(latency_chart(own),),
    )
