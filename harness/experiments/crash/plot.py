"""The crash matrix as a chart: backends by failpoint or fault, with the results of their trials."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.crash.tables import place_of
from harness.report.figures import Figure, grouped
from harness.report.levels import level_order
from harness.report.matrix import Cell, Matrix, Result
from harness.report.rows import Row
from stores.registry import backends


def crash_chart(figures: Sequence[Figure]) -> Matrix:
    """Return the results of the trials of all levels. Mutants are left out."""
    placed = [{**cell, "place": place_of(cell)} for cell in figures if cell["expected"] == "valid"]
    cells = [
        Cell(
            key["place"],
            key["backend"],
            key["durability"],
            sum(cell["trials"] for cell in group),
            sum(cell["valid"] for cell in group),
            _worst(group),
        )
        for key, group in grouped(placed, ("place", "backend", "durability"))
    ]
    tried = {(cell.place, cell.backend) for cell in cells}
    blank = [
        (place, backend, Result.NOT_TRIED if _has_step(backend, place) else Result.NO_STEP)
        for place in sorted({cell.place for cell in cells})
        for backend in sorted({cell.backend for cell in cells})
        if (place, backend) not in tried
    ]
    cells.sort(key=lambda cell: (cell.place, cell.backend, level_order(cell.level)))
    return Matrix(cells, blank, "trials that ended valid, of all")


def _worst(cells: Sequence[Row]) -> Result:
    if any(cell["anomaly"] for cell in cells):
        return Result.ANOMALY
    return Result.UNKNOWN if any(cell["unknown"] for cell in cells) else Result.VALID


def _has_step(backend: str, place: str) -> bool:
    """Return False for a failpoint that other backends have, and this one has not."""
    known = backends()
    return (
        backend not in known
        or place in known[backend].failpoints
        or not any(place in each.failpoints for each in known.values())
    )
