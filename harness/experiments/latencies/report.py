"""The figures, the table, the plot and the page about the latency of puts and commits."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report import text
from harness.report.charts import Chart
from harness.report.database import query
from harness.report.figures import BASELINE, Figure, Figures
from harness.report.listing import Column, Listing, panels
from harness.report.page import Page, tables
from harness.report.rows import Row

_METHOD = """\
A store by itself, with random keys of 16 bytes and values of 100. Puts are timed one by one, and commits of a fixed
number of puts.
"""


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


LATENCIES = Listing(
    "Level {durability}: how long a put and a commit take",
    "latency_figure",
    (
        Column("call", "operation"),
        Column("backend"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("calls", "operations", text.exact),
        Column("median", "p50_us", text.latency),
        Column("p90", "p90_us", text.latency),
        Column("p99", "p99_us", text.latency),
        Column("p99.9", "p999_us", text.latency),
        Column("longest", "max_us", text.latency),
        Column(f"median / {BASELINE}", "against_baseline", text.ratio),
    ),
)
_PERCENTILES = """with percentile(step) as (values ('50'), ('90'), ('99'), ('99.9'), ('100'))
    select operation || ', level ' || durability as title, durability as level, backend, step, step as measure,
        case step when '50' then p50_us when '90' then p90_us when '99' then p99_us when '99.9' then p999_us
            else max_us end as value
    from latency_figure, percentile order by latency_figure.rowid, cast(step as real)"""


def latency_chart(figures: Figures) -> Chart:
    """Return percentiles of puts and of commits: a panel for each and for each level, a line per backend."""
    title = "Percentiles of the time that a put takes, and a commit"
    marks = panels(query(figures, _PERCENTILES))
    return Chart("put-and-commit-latency", title, "lines", marks, "microseconds", "us", "percentile")


def page(figures: Figures) -> Page:
    """Return the page."""
    return Page(
        "latency",
        "Latency of puts and commits",
        (
            "The time that a put takes, and a commit, from the median to the longest.",
            "A store that stages its writes does less in a put and more in a commit than one that writes at once "
            '(KIP-892, "Compatibility").',
            "A commit writes all staged records, so its time grows with their number.",
        ),
        tables(*LATENCIES.tables(figures)) if figures["latency"] else (),
        _METHOD,
        plots=(latency_chart(figures),),
    )
