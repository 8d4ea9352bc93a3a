"""The tables of a report about tasks, and its summaries: picks, ratios, all backends side by side.

Each names its durability level, in its caption or in a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.choice import Choice, reference
from harness.report.crash_tables import crash_count
from harness.report.figures import Figure, distinct
from harness.report.table import Table

Figures = Mapping[str, Sequence[Figure]]


def choice_table(found: Sequence[Choice]) -> Table:
    """Return the picks: need, level, backend, figure, the next best backend, and a note."""
    rows = [
        [
            choice.need,
            choice.durability,
            f"**{choice.backend}**" if choice.backend else text.NOT_MEASURED,
            choice.figure,
            choice.next_best,
            choice.remark,
        ]
        for choice in found
    ]
    return Table(
        "Worked out from the figures below", ("need", "level", "pick", "why: its figure", "next best", "note"), rows
    )


def summary_table(figures: Figures, backends: Mapping[str, Mapping[str, Any]], durability: str = "CHANGELOG") -> Table:
    """Return one line per backend at one level: the table of README and of the terminal."""
    at = reference(figures["throughput"], durability)
    rates = {figure["backend"]: figure for figure in figures["throughput"] if at is not None and at.holds(figure)}
    names = sorted({*rates, *(figure["backend"] for figure in figures["crash"] if figure["durability"] == durability)})
    rows = []
    for name in sorted(names, key=lambda name: -(rates[name]["records_per_s"] if name in rates else 0)):
        figure = rates.get(name, {})
        facts = backends.get(name, {})
        rows.append(
            [
                name,
                _kept(facts),
                text.count(figure.get("records_per_s")),
                text.latency(figure.get("commit_p99_us")),
                text.duration(figure.get("open_after_kill_s")),
                text.size(figure.get("peak_memory_bytes")),
                text.size(figure.get("bytes_on_disk")),
                crash_count(figures, name, durability),
            ]
        )
    what = f", {at.text}" if at is not None else ""
    head = (
        "backend",
        "after a crash",
        "records/s",
        "commit, p99",
        "ready after a kill",
        "peak memory",
        "on disk",
        "crash trials as expected",
    )
    return Table(f"Level {durability}{what}", head, rows, range(2, 8))


def throughput_tables(figures: Figures) -> list[Table]:
    """Return one table per workload, level and number of partitions."""
    tables = []
    for workload, durability, partitions in distinct(figures["throughput"], "workload", "durability", "partitions"):
        own = [
            figure
            for figure in figures["throughput"]
            if (figure["workload"], figure["durability"], figure["partitions"]) == (workload, durability, partitions)
        ]
        rows = [
            [
                figure["backend"],
                text.exact(figure["records_per_commit"]),
                text.count(figure["records_per_s"]),
                f"{text.count(figure['records_per_s_low'])} to {text.count(figure['records_per_s_high'])}",
                text.latency(figure["commit_p50_us"]),
                text.latency(figure["commit_p99_us"]),
                text.latency(figure["commit_max_us"]),
                text.size(figure["bytes_written"]),
                text.size(figure["bytes_on_disk"]),
                text.size(figure["peak_memory_bytes"]),
                text.exact(figure["open_files"]),
                text.duration(figure["open_after_kill_s"]),
                figure["end_state"],
            ]
            for figure in own
        ]
        repeats = max(figure["repeats"] for figure in own)
        records = max(figure["records"] for figure in own)
        caption = (
            f"Workload `{workload}`, level {durability}, {partitions} partition{'s' * (partitions != 1)}, "
            f"{text.exact(records)} records, {f'medians of {repeats}' if repeats > 1 else 'measured once'}"
        )
        head = (
            "backend",
            "records per commit",
            "records/s",
            "lowest to highest",
            "commit p50",
            "p99",
            "longest",
            "written",
            "on disk",
            "peak memory",
            "open files",
            "ready after a kill",
            "end state against Spark SQL",
        )
        different = [place for place, figure in enumerate(own) if figure["end_state"] == "different"]
        tables.append(Table(caption, head, rows, range(1, 12), (1, 12), different))
    return tables


def ratio_table(figures: Figures) -> Table:
    """Return each ratio with its threshold and its result."""
    met = {True: "yes", False: "**no**", None: text.NONE}
    rows = [
        [
            figure["claim"],
            figure["durability"] or text.NONE,
            text.exact(figure["records_per_commit"]),
            figure["subject"],
            figure["yardstick"],
            text.ratio(figure["ratio"]),
            text.NONE if figure["at_least"] is None else f"{figure['at_least']:g}",
            met[figure["met"]],
        ]
        for figure in figures["ratio"]
    ]
    head = ("claim", "level", "records per commit", "backend", "against", "ratio", "at least", "reached")
    caption = "Ratios of medians within this run; more than 1 is faster than the yardstick"
    missed = [place for place, figure in enumerate(figures["ratio"]) if figure["met"] is False]
    return Table(caption, head, rows, (2, 5, 6), (), missed)


def _kept(facts: Mapping[str, Any]) -> str:
    if not facts:
        return text.NONE
    if not facts["persistent"]:
        return "nothing left: rebuilt whole"
    return "whole; the tail is replayed" if facts["transactional"] else "wiped and rebuilt whole"
