"""The figures, the tables, the plot and the page about the time to open a store after a kill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.processes.load import is_busy
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy, by_round, interval_ends, medians
from harness.report.decision import ROUNDS_MIN
from harness.report.figures import Figure
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.ratios import ratio_of
from stores.registry import backend_named

KEY = ("durability", "backend", "records")

READY_AFTER_A_KILL = "ready after a kill"
"""The time to open, recover and restore a store whose process was killed in a commit."""
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


QUERY = f"""select durability, backend, records, count(*) as repeats,
        sum({busy("timed")}) as busy,
        {medians("open_s", "restore_s", "replayed", "ready_s", "alone_s", "bare_s", "mark_s")},
        median(replayed / restore_s) as replay_per_s, median(records / whole_restore_s) as restore_per_s,
        {interval_ends("ready_s")}, {by_round("ready_s")}, max(ready_s) as ready_s_high
    from opening_ready as timed
    group by durability, backend, records order by durability, backend, records"""
"""Medians over repeats for each backend, level and size; *replay* is the tail's, *restore* that of the whole store."""


BARE_AT_LEAST = 0.5
"""A store may take twice the CPU time of its engine to open the same files and recover."""
REPLAY_AT_LEAST = 0.8
"""The replay of the tail may be this much slower than a restore. It has fixed costs, and its keys are at random."""
REPLAY_FROM_RECORDS = 10_000
"""The smallest tail whose speed must be that of a restore. Fixed costs are most of the time of a smaller one."""


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio", for each backend and level that does not replay its whole changelog.

    The largest store opens within a second after a kill: more than 1 is faster. A store of any size, without the replay
    of the tail, opens and recovers at most twice as slowly as the bare engine opens the same files. The tail is
    replayed at the speed of a restore.
    """
    ready: dict[tuple[str, str], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["replayed"] >= row["records"]:
            continue
        by_size = ready.setdefault((row["backend"], row["durability"]), {})
        by_size.setdefault(row["records"], []).append(row)
    ratio_rows = []
    for (backend, durability), by_size in sorted(ready.items()):
        large = max(by_size)
        shared = {"kind": "ratio", "subject": backend, "durability": durability, "records_per_commit": None}
        ratio_rows.append(
            {
                **shared,
                "claim": f"open and restored after a kill, with {large:,} records, against one second",
                "yardstick": "one second",
                "at_least": 1.0,
                **ratio_of([1 / (row["open_s"] + row["restore_s"]) for row in by_size[large]], _busy(by_size[large])),
            }
        )
        for size, group in sorted(by_size.items()):
            of_size = (*_bare_ratios(backend_named(backend).engine, size, group), *_replay_ratio(size, group))
            ratio_rows += [{**shared, **ratio} for ratio in of_size]
    return ratio_rows


def _bare_ratios(engine: str, size: int, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratio to the bare engine and, for openings that write a mark, to the bare engine with such a mark."""
    compared = [row for row in rows if row["bare_s"] is not None]
    if not compared:
        return
    alone_s, bare_s = (median(row[name] for row in compared) for name in ("alone_s", "bare_s"))
    marked = [row for row in compared if row.get("mark_s") is not None]
    mark_s = median(row["mark_s"] for row in marked) if marked else None
    bare = _ratio_to_alone(compared, "bare")
    rest_s = max(0.0, alone_s - bare_s - (mark_s or 0.0))
    mark = "" if mark_s is None else f"mark {text.duration(mark_s)}, "
    lower = min(bare["ratio"], bare["cpu_ratio"] or bare["ratio"])
    reason = (
        None
        if lower >= BARE_AT_LEAST
        else f"{text.duration(alone_s)}: bare {text.duration(bare_s)}, {mark}rest {text.duration(rest_s)}"
    )
    yield {
        "claim": f"opening and recovering {size:,} records, against opening the files with the bare engine",
        "yardstick": f"bare {engine}",
        "at_least": BARE_AT_LEAST,
        "reason": reason,
        **bare,
    }
    if mark_s is not None:
        yield {
            "claim": f"opening and recovering {size:,} records, against the bare engine and a durable mark",
            "yardstick": f"bare {engine} and a mark",
            "at_least": BARE_AT_LEAST,
            **_ratio_to_alone(marked, "bare", "mark"),
        }


def _ratio_to_alone(rows: Sequence[Mapping[str, Any]], *parts: str) -> dict[str, Any]:
    """Return the ratio of the parts' times to that of the store alone, by the clock and on the CPU."""

    def repeats(clock: str) -> list[float]:
        timed = [row for row in rows if row.get(f"alone_{clock}")]
        return [sum(row[f"{part}_{clock}"] for part in parts) / row[f"alone_{clock}"] for row in timed]

    return ratio_of(repeats("s"), _busy(rows), repeats("cpu_s"))


def _replay_ratio(size: int, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratio of the speeds of the tail's replay and of the restore that filled the store."""
    timed = [row for row in rows if row["restore_s"] and row.get("whole_restore_s")]
    if timed:
        replayed = median(row["replayed"] for row in timed)
        speeds = [row["replayed"] / row["restore_s"] / (size / row["whole_restore_s"]) for row in timed]
        yield {
            "claim": f"records/s of the replay of a tail of {replayed:,.0f} records, against a restore of {size:,}",
            "yardstick": "its restore",
            "at_least": REPLAY_AT_LEAST if replayed >= REPLAY_FROM_RECORDS else None,
            **ratio_of(speeds, _busy(timed)),
        }


def _busy(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(map(is_busy, rows))


def largest_state(
    figures: Iterable[Figure], durability: str, candidates: Collection[str] | None = None
) -> list[Figure]:
    """Return the figures of the largest state that more than one of the ``candidates`` was opened with (None: all).

    A state that they were opened with often enough for a pick goes before a larger one.
    """
    by_size: dict[int, list[Figure]] = {}
    for figure in figures:
        if figure["durability"] == durability and (candidates is None or figure["backend"] in candidates):
            by_size.setdefault(figure["records"], []).append(figure)

    def weight(size: int) -> tuple[bool, bool, int]:
        of_size = by_size[size]
        return sum(figure["repeats"] >= ROUNDS_MIN for figure in of_size) > 1, len(of_size) > 1, size

    return by_size[max(by_size, key=weight)] if by_size else []


OPENED = Listing(
    "Level {durability}, killed with a commit open, then opened in a fresh process",
    "opening_figure",
    (
        Column("backend"),
        Column("records in the store", "records", text.exact),
        Column("n", "repeats", text.exact),
        Column("open", "open_s", text.duration),
        Column("restore", "restore_s", text.duration),
        Column("replayed", "replayed", text.exact),
        Column(READY_AFTER_A_KILL, "ready_s", text.duration, interval=True),
        Column("slowest", "ready_s_high", text.duration),
    ),
)
_BESIDE_THE_ENGINE = Listing(
    "Level {durability}, the same files: opened and recovered without the changelog, and by the bare engine",
    "opening_figure",
    (
        Column("backend"),
        Column("records in the store", "records", text.exact),
        Column("store alone", "alone_s", text.duration),
        Column("bare engine", "bare_s", text.duration),
        Column("mark", "mark_s", text.duration),
        Column("rest", "max(0.0, alone_s - bare_s - coalesce(mark_s, 0.0))", text.duration),
        Column("replay, records/s", "replay_per_s", text.count),
        Column("whole restore, records/s", "restore_per_s", text.count),
    ),
)
_MARKS = """select durability || ', ' || exact(records) || ' records in the store' as title,
    durability as level, backend, ready_s as value, ready_s_from as low, ready_s_to as high
    from opening_figure order by level_place(durability), durability, records"""

_SLOWEST = (
    "The longest median was {duration(ready_s)}, for `{backend}` at level {durability} with {exact(records)} records."
)
REPORT = Report(
    ("opening",),
    "opening",
    "Time to open after a kill",
    (
        "A process is killed in a commit, and another one opens its store.",
        "The store recovers from its own files, and the tail of its changelog is restored.",
        (_SLOWEST, "opening_figure order by ready_s desc limit 1"),
    ),
    (OPENED, _BESIDE_THE_ENGINE),
    _METHOD,
    (
        Plot(
            Chart(
                "opening",
                "Seconds until a store is ready after a kill, by the number of records in it",
                "dots",
                (),
                f"seconds until {READY_AFTER_A_KILL}",
                "s",
                more_is_better=False,
            ),
            _MARKS,
        ),
    ),
)
