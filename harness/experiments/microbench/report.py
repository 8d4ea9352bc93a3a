"""The figures, the tables, the plot and the page about stores by themselves."""

from __future__ import annotations

from harness.report import text
from harness.report.charts import Chart
from harness.report.figures import Figures, distinct
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import FIRST_PAGE, TextTable

YARDSTICK = "plain-"
"""The prefix of the names of subjects that are no backends."""
UNCHECKED = "-unchecked"
"""The end of the names of benchmarks of a store without checksums."""
_YCSB = "ycsb-"
QUERY = """select * from benchmark order by distribution, durability, iqr_s, median_s, name, records,
    records_per_commit, records_per_s, rounds, subject, suite"""
_METHOD = """\
A store alone, no task, changelog or Spark, timed with pytest-benchmark, each case in a fresh process. YCSB: each core
workload on 10,000 records of 1,000 bytes, with a commit after 1,000 operations.
"""


def ycsb_tables(figures: Figures) -> list[TextTable]:
    """Return one table per level: a line per backend, a column per core workload."""
    measured = [figure for figure in figures["benchmark"] if figure["suite"].startswith(_YCSB)]
    suites = sorted({figure["suite"] for figure in measured})
    speed = {
        (figure["subject"], figure["durability"], figure["suite"]): text.count(figure["records_per_s"])
        for figure in measured
    }
    return [
        TextTable(
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


BENCHMARKS = Listing(
    f"Suite `{{suite}}`, level {{coalesce(durability, '{text.NONE}')}}",
    f"benchmark_figure where suite not like '{_YCSB}%'",
    (
        Column("benchmark", "name"),
        Column("subject"),
        Column("records per commit", "records_per_commit", text.exact),
        Column("keys", f"coalesce(nullif(distribution, ''), '{text.NONE}')"),
        Column("records/s", "records_per_s", text.count),
        Column("median of a round", "median_s", text.duration),
        Column("interquartile range", "iqr_s", text.duration),
        Column("rounds", "rounds", text.exact),
    ),
)
_MARKS = f"""select durability || ', ' || exact(records_per_commit) || ' records per commit' as title,
    durability as level, records_per_commit, subject as backend, records_per_s as value,
    subject || iif(name like '%{UNCHECKED}', ', no checksums', '') as subject,
    iif(rounds > 1, records / (median_s + iqr_s / 2), null) as low,
    iif(rounds > 1, records / (median_s - iqr_s / 2), null) as high
    from benchmark_figure where suite = 'commit' and subject not like '{YARDSTICK}%'
    order by level_place(durability), durability, records_per_commit"""


REPORT = Report(
    ("benchmark",),
    "stores",
    "Throughput of a store by itself",
    (
        "Each backend is timed as a store alone: puts and commits, lookups, scans, iterators and YCSB's workloads.",
        "A suite may have a yardstick: the engine without this library, or another backend.",
        f"The [ratios]({FIRST_PAGE}#ratios) on the first page compare them.",
    ),
    (BENCHMARKS,),
    _METHOD,
    (
        # The line of a dot is the interquartile range of its rounds.
        Plot(
            Chart(
                "store-throughput",
                "Records per second of a store against records per commit",
                "dots",
                (),
                "records/s of puts and commits",
                "records/s",
                spread="interquartile range of rounds",
                hollow="a single round",
            ),
            _MARKS,
        ),
    ),
)
