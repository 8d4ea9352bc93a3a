"""The tables that span experiments: the picks, and all backends side by side. Each names its durability level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.answer.choice import Choice
from harness.experiments.crash.report import crash_count
from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.figures import reference
from harness.report import text
from harness.report.figures import Figures
from harness.report.interval import REPEATS_MIN, with_interval
from harness.report.table import Table


def choice_table(found: Sequence[Choice]) -> Table:
    """Return the picks: need, level, backend or why there is none, figures, the next best, and a note."""
    rows = [
        [
            choice.need,
            choice.durability,
            choice.answer,
            choice.figure,
            choice.next_best,
            choice.remark,
        ]
        for choice in found
    ]
    return Table(
        "Worked out from the figures below; in brackets, the interval of the median",
        ("need", "level", "pick", "why: median and interval", "next best", "note"),
        rows,
    )


def summary_table(
    figures: Figures,
    backends: Mapping[str, Mapping[str, Any]],
    durability: str = "CHANGELOG",
    *,
    intervals: bool = True,
) -> Table:
    """Return one line per backend at one level: the table of README, without ``intervals``, and of the terminal."""
    at = reference(figures["throughput"], durability)
    rates = {figure["backend"]: figure for figure in figures["throughput"] if at is not None and at.holds(figure)}
    opened = {figure["backend"]: figure for figure in largest_state(figures["opening"], durability)}
    names = sorted({*rates, *(figure["backend"] for figure in figures["crash"] if figure["durability"] == durability)})
    shown = with_interval if intervals else _median
    rows = []
    for name in sorted(names, key=lambda name: -(rates[name]["records_per_s"] if name in rates else 0)):
        figure = rates.get(name, {})
        facts = backends.get(name, {})
        rows.append(
            [
                name,
                _kept(facts),
                shown(figure, "records_per_s", text.count),
                shown(figure, "commit_p99_us", text.latency),
                shown(opened.get(name, {}), "ready_s", text.duration),
                shown(figure, "peak_memory_bytes", text.size),
                shown(figure, "bytes_on_disk", text.size),
                crash_count(figures, name, durability),
            ]
        )
    size = next((figure["records"] for figure in opened.values()), 0)
    times = _times([figure["repeats"] for figure in rates.values()], intervals=intervals)
    what = f", {at.text}{times}" if at is not None else ""
    head = (
        "backend",
        "after a crash",
        "records/s",
        "commit, p99",
        f"{READY_AFTER_A_KILL}{f', {size:,} records' if size else ''}",
        "peak memory",
        "on disk",
        "crash trials as expected",
    )
    return Table(f"Level {durability}{what}", head, rows, range(2, 8))


def _median(figure: Mapping[str, Any], name: str, unit: Callable[[float | None], str]) -> str:
    return unit(figure.get(name))


def _times(repeats: Sequence[int], *, intervals: bool) -> str:
    """Return the numbers of repeats of a table's lines, from the fewest to the most, and if any has an interval."""
    if not repeats:
        return ""
    fewest, most = min(repeats), max(repeats)
    from_ = "" if fewest >= REPEATS_MIN else f" from {REPEATS_MIN} on"
    what = f", with intervals of medians{from_}" if most >= REPEATS_MIN else ""
    what = what if intervals else ", medians"
    return f", n = {fewest}{what}" if fewest == most else f", n = {fewest} to {most}{what}"


def _kept(facts: Mapping[str, Any]) -> str:
    if not facts:
        return text.NONE
    if not facts["persistent"]:
        return "nothing left: rebuilt whole"
    return "whole; the tail is replayed" if facts["transactional"] else "wiped and rebuilt whole"
