"""The tables of a report about crash trials. Each names its durability level."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import text
from harness.report.figures import Figure, Figures, distinct
from harness.report.table import Table


def crash_count(figures: Figures, backend: str, durability: str) -> str:
    """Return a backend's crash trials at a level as ``120 of 120``, without mutants."""
    cells = [
        figure
        for figure in figures["crash"]
        if figure["backend"] == backend and figure["durability"] == durability and figure["expected"] == "valid"
    ]
    if not cells:
        return text.NONE
    return f"{sum(cell['as_expected'] for cell in cells)} of {sum(cell['trials'] for cell in cells)}"


def crash_tables(figures: Figures, *, expected: str) -> list[Table]:
    """Return one table per scenario, guarantee and level: backends by failpoint, with counts by result."""
    cells = [figure for figure in figures["crash"] if figure["expected"] == expected]
    tables = []
    for scenario, guarantee, durability in distinct(cells, "scenario", "guarantee", "durability"):
        own = [
            cell
            for cell in cells
            if (cell["scenario"], cell["guarantee"], cell["durability"]) == (scenario, guarantee, durability)
        ]
        names = sorted({cell["backend"] for cell in own})
        rows: list[list[str]] = []
        wrong: list[int] = []
        for place in sorted({place_of(cell) for cell in own}):
            counts = [
                _results([cell for cell in own if place_of(cell) == place and cell["backend"] == name])
                for name in names
            ]
            if any(cell["as_expected"] < cell["trials"] for cell in own if place_of(cell) == place):
                wrong.append(len(rows))
            rows.append([f"`{place}`", *counts])
        caption = f"`{scenario}`, {guarantee.replace('_', ' ')}, level {durability}"
        tables.append(Table(caption, ("failpoint or fault", *names), rows, range(1, 1 + len(names)), (), wrong))
    return tables


def place_of(cell: Figure) -> str:
    """Return the failpoint at which a trial's process is killed, or its other fault."""
    return str(cell["failpoint"] or cell["fault"])


def _results(cells: Sequence[Figure]) -> str:
    if not cells:
        return ""
    counts = {name: sum(cell[name] for cell in cells) for name in ("valid", "anomaly", "unknown")}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)
