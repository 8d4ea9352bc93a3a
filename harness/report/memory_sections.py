"""The report's sections on memory: commits caused only by the limit on staged writes, and steps larger than it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report import text
from harness.report.figures import Figure, distinct
from harness.report.table import Table

Figures = Mapping[str, Sequence[Figure]]

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

_KEPT = {True: "yes", False: "**no**", None: text.NONE}


def memory_sections(figures: Figures) -> list[str]:
    """Return both sections with their titles."""
    return [
        "## Memory: commits that only the limit asks for\n",
        *_told(_EARLY_COMMITS, early_commit_tables(figures)),
        "## Memory: one step larger than the limit\n",
        *_told(_LARGE_STEPS, large_step_tables(figures)),
    ]


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


def wrong_step_lines(large_steps: Sequence[Figure]) -> list[str]:
    """Return a sentence for every large step that exceeded its memory bound or was not one commit."""
    lines = []
    for figure in large_steps:
        step = f"{figure['backend']} at {figure['durability']}, one step of {text.size(figure['step_bytes'])}"
        if figure["bounded"] is False:
            lines.append(f"{step}: took {text.size(figure['peak_bytes'])}, above {text.size(figure['bound_bytes'])}")
        if not figure["atomic"]:
            lines.append(
                f"{step}: {figure['commits']} commits, {figure['seen_early']} of the keys looked up were seen before, "
                f"and the state after a reopening is {figure['state']}"
            )
    return lines


def _told(words: str, tables: Sequence[Table]) -> list[str]:
    return [words, *(table.folded() for table in tables)] if tables else [f"{text.NOT_MEASURED.capitalize()}.\n"]
