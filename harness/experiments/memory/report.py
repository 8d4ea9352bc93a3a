"""The page about memory: commits caused only by the limit on staged writes, and steps larger than it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.memory.figures import EARLY_COMMITS, LARGE_STEPS, memory_findings
from harness.experiments.memory.plot import large_step_chart
from harness.experiments.memory.tables import early_commit_tables, large_step_tables
from harness.report import text
from harness.report.drawing import Plot
from harness.report.figures import Figures
from harness.report.page import Page
from harness.report.table import Table

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
        (Plot("large-step-memory", "Peak memory of a large step", large_step_chart(figures["large_step"])),),
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
