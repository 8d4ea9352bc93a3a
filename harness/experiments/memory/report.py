"""The figures, the tables and the page of memory: commits that the limit asks for, and steps larger than it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.processes.load import is_busy
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures, distinct, grouped, in_order, median_of, values
from harness.report.page import Page, PageFinding, Table
from harness.report.rows import Row
from harness.report.text import level_order

KEY = ("durability", "backend", "limit_bytes")
_MEDIANS = ("records", "records_per_s", "commits", "predicted", "exceeded", "peak_memory_bytes")
EARLY_COMMITS = "Commits that only the limit asks for"
LARGE_STEPS = "One step larger than the limit"
"""The titles of the two parts of the page."""


_KEPT = {True: "yes", False: "**no**", None: text.NONE}
_EARLY_COMMITS = """\
The writes of a task since its last commit are staged in its stores. The limit (`uncommitted_max_bytes`) bounds their
memory: keys and values, 92 bytes for each entry, and 128 for each record that is held for the changelog. Nothing else
makes this task commit. It commits before the next record would exceed the limit, if that is as large as the largest
recent one, and after a record that has exceeded it.
"""

_LARGE_STEPS = """\
One input record may write more than the limit on memory allows, and stays one transaction. An indexed batch and a dual
store spill the writes beyond the limit to disk. `sqlite-native` has them in SQLite's own files. `rocksdb-direct`
isolates nothing, so that readers see the writes as they are made. Two backends keep the writes in memory:
`memory-indexed-batch` has no disk, and LMDB keeps the pages that its transaction has changed (`lmdb-native`). By a
constant of its build these are 131,071 pages, or 512 MiB, or as many values of more than half a page, whatever their
size. Besides, memory holds the buffers and caches that the engines are configured with. Native stores also hold each
key of the step with the length of its value.
"""
_METHOD = """\
The limit: one task of `count` over 50,000 records, with no commit interval. It commits only because of the limit on
staged writes: before a record that would exceed it (`PREDICTED`), else after it (`EXCEEDED`). If a limit is exceeded,
the run fails.

A large step: one record whose function puts pairs of 8,000 bytes through a task. It includes its commit, which the
limit causes immediately. Memory is anonymous memory above what the process had before, sampled every millisecond by
another process. RocksDB's write buffers and every cache are set to 4 MiB here, a copied part to 1 MiB. By default they
are 48 MiB and 50 MiB per engine, so that a step may take up to twice that more. A bound is computed beforehand. It is
the sum of:

* the limit;
* twice the engine's buffers and caches, because a spill has its own engine;
* four copied parts;
* 8 MiB for the changelog's producer;
* 200 bytes for each pair;
* 16 MiB of freed memory that allocators keep.

If a bound is exceeded, or a step is not one commit, the run fails.
"""


def early_commits(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend and limit: the largest staged size, and medians of the rest.

    ``against_none`` is the rate divided by the same backend's rate without a limit, or None if that was not measured.
    """
    figures = [
        {
            "kind": "early_commit",
            **key,
            "repeats": len(group),
            "busy": sum(map(is_busy, group)),
            "uncommitted_max_bytes": max(values(group, "uncommitted_max_bytes")),
            **{name: median_of(group, name) for name in _MEDIANS},
        }
        for key, group in grouped(rows, KEY)
    ]
    unlimited = {
        (figure["durability"], figure["backend"]): figure["records_per_s"]
        for figure in figures
        if figure["limit_bytes"] is None
    }
    for figure in figures:
        free = unlimited.get((figure["durability"], figure["backend"]))
        figure["against_none"] = figure["records_per_s"] / free if free else None
    return figures


def large_steps(rows: Iterable[Row]) -> list[Figure]:
    """Return the steps in order, each with ``bounded`` and ``atomic``.

    ``bounded`` is True if the step kept its memory bound, None if it has none. ``atomic`` is True if it was one commit:
    all of it is there afterwards, and a store with isolation showed nothing before.
    """
    return in_order(
        [
            {
                **row,
                "kind": "large_step",
                "bounded": None if row["bound_bytes"] is None else row["peak_bytes"] <= row["bound_bytes"],
                "atomic": row["state"] == "equal"
                and row["commits"] == 1
                and not (row["transactional"] and row["seen_early"]),
            }
            for row in rows
        ]
    )


def memory_findings(figures: Figures) -> tuple[PageFinding, ...]:
    """Return how many limits were kept, and how many steps were one commit within their bound."""
    limited = [figure for figure in figures["early_commit"] if figure["limit_bytes"] is not None]
    steps = figures["large_step"]
    return (
        PageFinding(
            "limits on the memory of uncommitted writes",
            len(limited),
            sum(figure["uncommitted_max_bytes"] <= figure["limit_bytes"] for figure in limited),
            "were never exceeded",
            EARLY_COMMITS,
        ),
        PageFinding(
            "steps larger than the limit",
            len(steps),
            sum(figure["atomic"] and figure["bounded"] is not False for figure in steps),
            "were one commit, and took no more memory than their bound where they have one",
            LARGE_STEPS,
        ),
    )


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


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page. ``failures`` are sentences of both parts."""
    measured = figures["early_commit"] or figures["large_step"]
    return Page(
        "memory",
        "Memory of uncommitted writes",
        ("The writes of a task since its last commit have a limit on their memory, and a single step may exceed it.",),
        _body(figures, failures) if measured else (),
        _METHOD,
        memory_findings(figures),
        (large_step_chart(figures["large_step"]),),
    )


def _body(figures: Figures, failures: Sequence[str]) -> list[str]:
    return [
        text.failures("Limits and bounds that did not hold", failures) if failures else "",
        f"## {EARLY_COMMITS}\n",
        *_part(_EARLY_COMMITS, early_commit_tables(figures)),
        f"## {LARGE_STEPS}\n",
        *_part(_LARGE_STEPS, large_step_tables(figures)),
    ]


def _part(words: str, made: Sequence[Table]) -> list[str]:
    return [words, *(table.folded() for table in made)] if made else [f"{text.NOT_MEASURED.capitalize()}.\n"]


def large_step_chart(figures: Sequence[Figure]) -> Chart:
    """Return a panel for each level and size of a step. It is not printed: the table has the same figures."""
    steps = sorted(
        grouped(figures, ("durability", "step_bytes", "limit_bytes")),
        key=lambda cell: (level_order(cell[0]["durability"]), cell[0]["step_bytes"], cell[0]["limit_bytes"]),
    )
    panels = [
        Panel(
            f"{cell['durability']}, a step of {text.size(cell['step_bytes'])}, limit {text.size(cell['limit_bytes'])}",
            [
                Mark(step["backend"], step[name] * 2.0**-20, measure=measure, shape=shape, hollow=True)
                for name, shape, measure in (
                    ("peak_bytes", "circle", "peak memory of step and commit"),
                    ("bound_bytes", "diamond", "its bound"),
                )
                for step in group
                if step[name] is not None
            ],
            cell["durability"],
            printed=False,
        )
        for cell, group in steps
    ]
    words = "large-step-memory", "Peak memory of a large step"
    return Chart(*words, "dots", panels, "memory, MiB", "MiB", more_is_better=False, hollow="one step of each")
