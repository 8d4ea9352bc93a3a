"""The cells of tables in which a backend is more than twice as bad as the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from harness.experiments.needs import MEASURES, Backends, FigureColumn
from harness.experiments.opening.report import KEY as OPENING_KEY
from harness.experiments.throughput.report import KEY as THROUGHPUT_KEY
from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.page import TextTable
from harness.report.text import LEVELS

WORSE = 2.0
"""A backend loses a cell if the best of it is better by more than so many times."""
_KEYS: Mapping[str, Sequence[str]] = {"throughput": THROUGHPUT_KEY, "opening": OPENING_KEY}


@dataclass(frozen=True)
class LostCells:
    """The cells that a backend loses by one measure at one level, and the worst of them with its best backend."""

    backend: str
    level: str
    measure: FigureColumn
    cells: int
    lost: int
    times: float
    worst: Figure
    best: Figure

    @property
    def reason(self) -> str:
        """The reason of the worst cell, where its figures have one; else ""."""
        ready, restore, replayed = (self.worst.get(name) for name in ("ready_s", "restore_s", "replayed"))
        if self.measure.name != "ready_s" or not ready or not restore or restore < ready / 2:
            return ""
        return f"{restore / ready:.0%} of it is the restore of {text.exact(replayed)} records from the changelog"


def lost_cells(figures: Figures, backends: Backends) -> list[LostCells]:
    """Return what each backend loses, the largest loss first.

    Backends that keep nothing after a crash are left out: others pay for what those do not promise.
    """
    persistent = {name for name, facts in backends.items() if facts["persistent"]}
    rows = {measure: [row for row in figures[measure.kind] if row["backend"] in persistent] for measure in MEASURES}
    cells = [
        loss
        for measure in MEASURES
        for level in LEVELS
        for loss in _losses([row for row in rows[measure] if row["durability"] == level], level, measure)
    ]
    return sorted(cells, key=lambda loss: (-loss.times, loss.backend, loss.measure.name))


def _losses(rows: Sequence[Figure], level: str, measure: FigureColumn) -> list[LostCells]:
    cells: dict[tuple[Any, ...], list[Figure]] = {}
    for row in rows:
        if (value := row.get(measure.name)) and isfinite(value):
            key = tuple(row[name] for name in _KEYS[measure.kind] if name != "backend")
            cells.setdefault(key, []).append(row)
    by_backend: dict[str, list[tuple[float, Figure, Figure]]] = {}
    """For each cell of a backend: so many times worse than the best, its figure, and the best one."""
    for of_cell in cells.values():
        best = min(of_cell, key=lambda row: _cost(row, measure))
        for row in of_cell:
            times = _cost(row, measure) / _cost(best, measure)
            by_backend.setdefault(row["backend"], []).append((times, row, best))
    return [loss for name, ratios in by_backend.items() if (loss := _loss(name, level, measure, ratios)).lost]


def _loss(backend: str, level: str, measure: FigureColumn, ratios: Sequence[tuple[float, Figure, Figure]]) -> LostCells:
    times, worst, best = max(ratios, key=lambda each: each[0])
    lost = sum(each[0] > WORSE for each in ratios)
    return LostCells(backend, level, measure, len(ratios), lost, times, worst, best)


def _cost(row: Figure, measure: FigureColumn) -> float:
    """Return a figure so that less is better."""
    value = float(row[measure.name])
    return 1 / value if measure.more_is_better else value


def loss_table(lines: Sequence[LostCells]) -> TextTable:
    """Return a line for each loss."""
    rows = [
        [
            loss.backend,
            loss.level,
            loss.measure.words,
            f"{text.count(loss.times)} times",
            loss.measure.text(loss.worst),
            f"{loss.best['backend']}, {loss.measure.text(loss.best)}",
            _cell(loss),
            f"{loss.lost} of {loss.cells}",
            loss.reason or text.NONE,
        ]
        for loss in lines
    ]
    head = (
        "backend",
        "level",
        "by",
        "worse than the best",
        "its figure",
        "the best",
        "where",
        "cells lost",
        "reason",
    )
    return TextTable(f"More than {WORSE:g} times worse than the best of a cell", head, rows, (3, 7))


def _cell(loss: LostCells) -> str:
    if loss.measure.kind == "opening":
        return f"{text.exact(loss.worst['records'])} records in the store"
    row = loss.worst
    return (
        f"{row['workload']}, {text.exact(row['records_per_commit'])} records per commit, {row['partitions']} partitions"
    )
