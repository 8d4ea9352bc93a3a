"""The figures, the tables, the plot and the page about stores by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures, distinct, in_order
from harness.report.page import FIRST_PAGE, Page, Table, tables
from harness.report.rows import Row
from harness.report.text import level_order

YARDSTICK = "plain-"
"""The prefix of the names of subjects that are no backends."""
UNCHECKED = "-unchecked"
"""The end of the names of benchmarks of a store without checksums."""
_YCSB = "ycsb-"
_METHOD = """\
A store alone, no task, changelog or Spark, timed with pytest-benchmark, each case in a fresh process. YCSB: each core
workload on 10,000 records of 1,000 bytes, with a commit after 1,000 operations.
"""


def benchmarks(rows: Iterable[Row]) -> list[Figure]:
    """Return store-level figures unchanged, in order."""
    return in_order([{**row, "kind": "benchmark"} for row in rows])


def ycsb_tables(figures: Figures) -> list[Table]:
    """Return one table per level: a line per backend, a column per core workload."""
    measured = [figure for figure in figures["benchmark"] if figure["suite"].startswith(_YCSB)]
    suites = sorted({figure["suite"] for figure in measured})
    speed = {
        (figure["subject"], figure["durability"], figure["suite"]): text.count(figure["records_per_s"])
        for figure in measured
    }
    return [
        Table(
            f"YCSB's core workloads, level {durability}, operations/s",
            ["backend", *(suite.removeprefix(_YCSB).upper() for suite in suites)],
            [
                [subject, *(speed.get((subject, durability, suite), text.NONE) for suite in suites)]
                for (subject, level) in distinct(measured, "subject", "durability")
                if level == durability
            ],
            range(1, 1 + len(suites)),
        )
        for (durability,) in distinct(measured, "durability")
    ]


def benchmark_tables(figures: Figures) -> list[Table]:
    """Return one table per suite and level, without those of YCSB."""
    plain = [figure for figure in figures["benchmark"] if not figure["suite"].startswith(_YCSB)]
    head = (
        "benchmark",
        "subject",
        "records per commit",
        "keys",
        "records/s",
        "median of a round",
        "interquartile range",
        "rounds",
    )
    return [
        Table(
            f"Suite `{suite}`, level {durability or text.NONE}",
            head,
            [
                [
                    figure["name"],
                    figure["subject"],
                    text.exact(figure["records_per_commit"]),
                    figure["distribution"] or text.NONE,
                    text.count(figure["records_per_s"]),
                    text.duration(figure["median_s"]),
                    text.duration(figure["iqr_s"]),
                    text.exact(figure["rounds"]),
                ]
                for figure in plain
                if (figure["suite"], figure["durability"]) == (suite, durability)
            ],
            (2, 4, 5, 6, 7),
        )
        for suite, durability in distinct(plain, "suite", "durability")
    ]


def store_chart(figures: Iterable[Figure]) -> Chart:
    """Return records per second of puts and commits, a panel for each level and number of records per commit.

    The line of a dot is the interquartile range of its rounds.
    """
    rows = [figure for figure in figures if figure["suite"] == "commit" and not figure["subject"].startswith(YARDSTICK)]
    panels: dict[tuple[str, int], list[Mark]] = {}
    for row in sorted(rows, key=lambda row: (level_order(row["durability"]), row["records_per_commit"])):
        without = f"{row['subject']}, no checksums"
        label = without if row["name"].endswith(UNCHECKED) else row["subject"]
        quarter_s = row["iqr_s"] / 2
        slow, fast = (row["records"] / (row["median_s"] + around) for around in (quarter_s, -quarter_s))
        low, high = (slow, fast) if row["rounds"] > 1 else (None, None)
        mark = Mark(row["subject"], row["records_per_s"], low, high, label, hollow=low is None)
        panels.setdefault((row["durability"], row["records_per_commit"]), []).append(mark)
    return Chart(
        "store-throughput",
        "Records per second of a store against records per commit",
        "dots",
        [
            Panel(f"{level}, {size:,} records per commit", marks, level, records_per_commit=size)
            for (level, size), marks in panels.items()
        ],
        "records/s of puts and commits",
        "records/s",
        spread="interquartile range of rounds",
        hollow="a single round",
    )


def page(figures: Figures) -> Page:
    """Return the page."""
    own = figures["benchmark"]
    return Page(
        "stores",
        "Throughput of a store by itself",
        (
            "Each backend is timed as a store alone: puts and commits, lookups, scans, iterators and YCSB's workloads.",
            "A suite may have a yardstick: the engine without this library, or another backend.",
            f"The [ratios]({FIRST_PAGE}#ratios) on the first page compare them.",
        ),
        tables(*benchmark_tables(figures), *ycsb_tables(figures)) if own else (),
        _METHOD,
        plots=(store_chart(own),),
    )
