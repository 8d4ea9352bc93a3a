"""The tables of memory. Each names its durability level in its caption."""

from __future__ import annotations

from harness.report import text
from harness.report.figures import Figures, distinct
from harness.report.table import Table

_KEPT = {True: "yes", False: "**no**", None: text.NONE}


def early_commit_tables(figures: Figures) -> list[Table]:
    """Return one table per level: a line per backend and limit."""
    head = (
        "backend",
        "limit",
        "most staged",
        "staged / limit",
        "commits",
        "commits before the limit was passed",
        "commits after it",
        "records/s",
        "records/s against no limit",
        "peak memory of the process",
    )
    return [
        Table(
            f"Workload `count`, level {durability}, no commit interval",
            head,
            [
                [
                    figure["backend"],
                    "none" if figure["limit_bytes"] is None else text.size(figure["limit_bytes"]),
                    text.size(figure["uncommitted_max_bytes"]),
                    text.ratio(figure["limit_bytes"] and figure["uncommitted_max_bytes"] / figure["limit_bytes"]),
                    *(text.exact(figure[name]) for name in ("commits", "predicted", "exceeded")),
                    text.count(figure["records_per_s"]),
                    text.ratio(figure["against_none"]),
                    text.size(figure["peak_memory_bytes"]),
                ]
                for figure in figures["early_commit"]
                if figure["durability"] == durability
            ],
            range(1, 10),
        )
        for (durability,) in distinct(figures["early_commit"], "durability")
    ]


def large_step_tables(figures: Figures) -> list[Table]:
    """Return one table per level: a line per backend and size of the step."""
    head = (
        "backend",
        "limit",
        "the step wrote",
        "on disk when its commit began",
        "peak memory of step and commit",
        "peak / written",
        "its bound",
        "within it",
        "one commit",
        "took",
    )
    tables = []
    for (durability,) in distinct(figures["large_step"], "durability"):
        steps = sorted(
            (figure for figure in figures["large_step"] if figure["durability"] == durability),
            key=lambda figure: (figure["backend"], figure["step_bytes"]),
        )
        rows = [
            [
                figure["backend"],
                *(text.size(figure[name]) for name in ("limit_bytes", "step_bytes", "staged_disk_bytes", "peak_bytes")),
                text.ratio(figure["peak_bytes"] / figure["step_bytes"]),
                text.size(figure["bound_bytes"]),
                _KEPT[figure["bounded"]],
                _KEPT[figure["atomic"]] if figure["transactional"] else "seen as it is made",
                text.duration(figure["seconds"]),
            ]
            for figure in steps
        ]
        wrong = [place for place, figure in enumerate(steps) if figure["bounded"] is False or not figure["atomic"]]
        tables.append(
            Table(
                f"One step of a task, level {durability}; no bound where it is not spilled",
                head,
                rows,
                (1, 2, 3, 4, 5, 6, 9),
                notable=wrong,
            )
        )
    return tables
