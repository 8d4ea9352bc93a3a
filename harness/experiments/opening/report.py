"""The figures, the tables, the plot and the page about the time to open a store after a kill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from harness.processes.load import is_busy
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import (
    REPEATS_MIN,
    Figure,
    Figures,
    columns,
    distinct,
    grouped,
    intervals,
    median_of,
    with_interval,
)
from harness.report.page import Page, Table, tables
from harness.report.rows import Row
from harness.report.text import level_order

KEY = ("durability", "backend", "records")

READY_AFTER_A_KILL = "ready after a kill"
"""The time to open, recover and restore a store whose process was killed in a commit."""
_TIMES = ("open_s", "restore_s", "replayed", "ready_s", "alone_s", "bare_s", "mark_s")
_SPEEDS = ("replay_per_s", "restore_per_s")
_METHOD = """\
A store is filled, and ten commits of 1,000 records follow. The process is killed in one more commit, when the changelog
has it and the store does not. A fresh process opens the store. At level CHANGELOG an engine whose WAL is disabled may
lose the ten commits as well.

Stores of all backends are measured in rounds, in an order shuffled by the seed. *Store alone* is the time to open and
recover the killed store without changelog and task, and to look one key up. *Bare engine* is the time in which the
engine opens a copy of the files, with the same options, and looks that key up. Both ran in one process, in turns, after
each had opened a new store some times.

*Mark* is the time to write a small file that survives power loss, with two syncs: the store's mark that it is open.
After a kill, stores of LMDB and SQLite at CHANGELOG keep the mark of the killed process, and write none. *Rest* is what
remains. LMDB opens a file of any size in a fraction of a millisecond, less than the checks of the store's own files
take. *Replay* is the speed of the tail's restore.
*Whole restore* is the speed of the restore that filled the store.
"""


def opening(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend, level and size: medians over repeats, and the interval of the time until ready."""
    timed = [{**row, "ready_s": row["open_s"] + (row["restore_s"] or 0), **_speeds(row)} for row in rows]
    return [
        {
            "kind": "opening",
            **key,
            "repeats": len(group),
            "busy": sum(map(is_busy, group)),
            **{name: median_of(group, name) for name in (*_TIMES, *_SPEEDS)},
            **intervals(group, ("ready_s",)),
            "ready_s_high": max(row["ready_s"] for row in group),
        }
        for key, group in grouped(timed, KEY)
    ]


def _speeds(row: Row) -> dict[str, float | None]:
    """Return the records per second of the replay of the tail, and of the restore that filled the store."""
    whole_s = row.get("whole_restore_s")
    return {
        "replay_per_s": row["replayed"] / row["restore_s"] if row["restore_s"] else None,
        "restore_per_s": row["records"] / whole_s if whole_s else None,
    }


def largest_state(
    figures: Iterable[Figure], durability: str, candidates: Collection[str] | None = None
) -> list[Figure]:
    """Return the figures of the largest state that more than one of the ``candidates`` was opened with (None: all).

    A state that they were opened with often enough for an interval goes before a larger one.
    """
    by_size: dict[int, list[Figure]] = {}
    for figure in figures:
        if figure["durability"] == durability and (candidates is None or figure["backend"] in candidates):
            by_size.setdefault(figure["records"], []).append(figure)

    def weight(size: int) -> tuple[bool, bool, int]:
        opened = by_size[size]
        return sum(figure["repeats"] >= REPEATS_MIN for figure in opened) > 1, len(opened) > 1, size

    return by_size[max(by_size, key=weight)] if by_size else []


def opening_tables(figures: Figures) -> list[Table]:
    """Return one table per level."""
    head = (
        "backend",
        "records in the store",
        "n",
        "open",
        "restore",
        "replayed",
        READY_AFTER_A_KILL,
        "slowest",
    )
    return [
        Table(
            f"Level {durability}, killed with a commit open, then opened in a fresh process",
            head,
            [
                [
                    figure["backend"],
                    text.exact(figure["records"]),
                    text.exact(figure["repeats"]),
                    text.duration(figure["open_s"]),
                    text.duration(figure["restore_s"]),
                    text.exact(figure["replayed"]),
                    with_interval(figure, "ready_s", text.duration),
                    text.duration(figure["ready_s_high"]),
                ]
                for figure in figures["opening"]
                if figure["durability"] == durability
            ],
            range(1, 8),
        )
        for (durability,) in distinct(figures["opening"], "durability")
    ]


def parts_tables(figures: Figures) -> list[Table]:
    """Return one table per level: opening by itself beside the bare engine, and the replay beside a restore."""
    head = (
        "backend",
        "records in the store",
        "store alone",
        "bare engine",
        "mark",
        "rest",
        "replay, records/s",
        "whole restore, records/s",
    )
    return [
        Table(
            f"Level {durability}, the same files: opened and recovered without the changelog, and by the bare engine",
            head,
            [
                [
                    figure["backend"],
                    text.exact(figure["records"]),
                    *(text.duration(figure[name]) for name in ("alone_s", "bare_s", "mark_s")),
                    text.duration(_rest_s(figure)),
                    *(text.count(figure[name]) for name in ("replay_per_s", "restore_per_s")),
                ]
                for figure in figures["opening"]
                if figure["durability"] == durability
            ],
            range(1, 8),
        )
        for (durability,) in distinct(figures["opening"], "durability")
    ]


def _rest_s(figure: Figure) -> float | None:
    """Return what opening takes beyond the bare engine and the mark."""
    alone_s, bare_s, mark_s = (figure[name] for name in ("alone_s", "bare_s", "mark_s"))
    return None if None in (alone_s, bare_s) else max(0.0, alone_s - bare_s - (mark_s or 0.0))


def opening_chart(figures: Sequence[Figure]) -> Chart:
    """Return the seconds until a store is ready, a panel for each level and number of records in the store."""
    panels: dict[tuple[str, int], list[Mark]] = {}
    for figure in sorted(figures, key=lambda figure: (level_order(figure["durability"]), figure["records"])):
        low, high = (figure[end] for end in columns("ready_s"))
        mark = Mark(figure["backend"], figure["ready_s"], low, high, hollow=low is None)
        panels.setdefault((figure["durability"], figure["records"]), []).append(mark)
    return Chart(
        "opening",
        "Seconds until a store is ready after a kill, by the number of records in it",
        "dots",
        [Panel(f"{level}, {size:,} records in the store", marks, level) for (level, size), marks in panels.items()],
        f"seconds until {READY_AFTER_A_KILL}",
        "s",
        more_is_better=False,
    )


def page(figures: Figures) -> Page:
    """Return the page."""
    own = figures["opening"]
    return Page(
        "opening",
        "Time to open after a kill",
        (
            "A process is killed in a commit, and another one opens its store.",
            "The store recovers from its own files, and the tail of its changelog is restored.",
            _slowest(own),
        ),
        tables(*opening_tables(figures), *parts_tables(figures)) if own else (),
        _METHOD,
        plots=(opening_chart(own),),
    )


def _slowest(figures: Iterable[Figure]) -> str:
    """Return a sentence with the longest median."""
    slowest = max(figures, key=lambda figure: float(figure["ready_s"]), default=None)
    if slowest is None:
        return ""
    return (
        f"The longest median was {text.duration(slowest['ready_s'])}, for `{slowest['backend']}` at level "
        f"{slowest['durability']} with {text.exact(slowest['records'])} records."
    )
