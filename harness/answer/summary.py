"""The tables that span experiments: the picks, and all backends side by side. Each names its durability level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.answer.choice import Choice
from harness.experiments.crash.tables import crash_count
from harness.experiments.throughput.figures import reference
from harness.report import text
from harness.report.figures import Figures
from harness.report.table import Table


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
        "Worked out from the figures below",
        ("need", "level", "pick", "why: its figure", "next best", "note"),
        rows,
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


def _kept(facts: Mapping[str, Any]) -> str:
    if not facts:
        return text.NONE
    if not facts["persistent"]:
        return "nothing left: rebuilt whole"
    return "whole; the tail is replayed" if facts["transactional"] else "wiped and rebuilt whole"
