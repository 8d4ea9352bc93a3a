"""The tables of a report about stores alone, without a task. Each names its durability level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report import text
from harness.report.figures import BASELINE, Figure, distinct
from harness.report.table import Table

Figures = Mapping[str, Sequence[Figure]]

_YCSB = "ycsb-"


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


def visibility_tables(figures: Figures) -> list[Table]:
    """Return one table per durability level: a line per backend, commit interval and isolation level."""
    head = (
        "backend",
        "committed by",
        "every",
        "isolation level",
        "writes",
        "seen after, median",
        "p99",
        "longest",
        "p99 / interval",
    )
    return [
        Table(
            f"Level {durability}: how long a write takes to be seen by a reader on another thread",
            head,
            [
                [
                    figure["backend"],
                    figure["committed_by"],
                    text.duration(figure["commit_interval_s"]),
                    figure["isolation_level"],
                    text.exact(figure["writes"]),
                    *(text.duration(figure[f"lag_{name}_s"]) for name in ("p50", "p99", "max")),
                    text.ratio(figure["lag_p99_s"] / figure["commit_interval_s"]),
                ]
                for figure in sorted(
                    figures["visibility"],
                    key=lambda one: (
                        one["isolation_level"],
                        one["backend"],
                        one["committed_by"],
                        one["commit_interval_s"],
                    ),
                )
                if figure["durability"] == durability
            ],
            (2, 4, 5, 6, 7, 8),
        )
        for (durability,) in distinct(figures["visibility"], "durability")
    ]


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


def opening_tables(figures: Figures) -> list[Table]:
    """Return one table per level."""
    head = ("backend", "records in the store", "open", "restore", "replayed", "ready, median", "ready, slowest")
    return [
        Table(
            f"Level {durability}, killed with a commit open, then opened in a fresh process",
            head,
            [
                [
                    figure["backend"],
                    text.exact(figure["records"]),
                    text.duration(figure["open_s"]),
                    text.duration(figure["restore_s"]),
                    text.exact(figure["replayed"]),
                    text.duration(figure["ready_s"]),
                    text.duration(figure["ready_s_high"]),
                ]
                for figure in figures["opening"]
                if figure["durability"] == durability
            ],
            range(1, 7),
        )
        for (durability,) in distinct(figures["opening"], "durability")
    ]
