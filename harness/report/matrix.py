"""A matrix of results: a line for each place, a column for each backend, the numbers of trials in the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from harness.report.drawing import Chart, Looks, new_canvas
from harness.report.levels import level_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Result(StrEnum):
    """The result of a cell, from the best to the worst."""

    NO_STEP = "the backend has no such step"
    NOT_TRIED = "not tried in this run"
    VALID = "valid"
    UNKNOWN = "unknown"
    ANOMALY = "anomaly"


_COLOURS = ("#FFFFFF", "#D0D0D0", "#B7E1CD", "#FCE8B2", "#E67C73")


@dataclass(frozen=True)
class Cell:
    """The trials of one backend at one place and level, and the worst result among them."""

    place: str
    backend: str
    level: str
    trials: int
    valid: int
    result: Result


@dataclass(frozen=True)
class Matrix(Chart):
    """The cells of all levels. ``blank`` has the places and backends without a cell, and the reason."""

    cells: Sequence[Cell]
    blank: Sequence[tuple[str, str, Result]]
    label: str

    def canvas(self, looks: Looks) -> Canvas | None:
        """Draw one matrix for all levels together; None if there were no trials."""
        if not self.cells:
            return None
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        names, places = sorted({cell.backend for cell in self.cells}), sorted({cell.place for cell in self.cells})
        grid = [[self._together(place, name) for name in names] for place in places]
        canvas = new_canvas(2.6 + 1.05 * len(names), 1.6 + 0.26 * len(places))
        axes = canvas.subplots()
        results = list(Result)
        worst = [[results.index(result) for result, _ in line] for line in grid]
        axes.imshow(worst, cmap=ListedColormap(_COLOURS), vmin=0, vmax=len(results) - 1, aspect="auto")
        for y, line in enumerate(grid):
            for x, (_, shown) in enumerate(line):
                axes.text(x, y, shown, ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(places)), places)
        axes.xaxis.tick_top()
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for edge in axes.spines.values():
            edge.set_visible(False)
        axes.set_xticks([x + 0.5 for x in range(len(names) - 1)], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(places) - 1)], minor=True)
        axes.grid(visible=True, which="minor", color="white", linewidth=2)
        axes.tick_params(which="minor", length=0)
        levels = sorted({cell.level for cell in self.cells}, key=level_order)
        axes.set_xlabel(f"{self.label}; {', '.join(levels)}")
        handles = [
            Patch(facecolor=colour, edgecolor="#999999", label=result)
            for result, colour in zip(results, _COLOURS, strict=True)
        ]
        canvas.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.9, 0.85), frameon=False)
        return canvas

    def data(self) -> dict[str, Any] | None:
        """Return the cells of each level by itself."""
        return {"kind": "matrix", "outcomes": list(Result), **asdict(self)} if self.cells else None

    def _together(self, place: str, backend: str) -> tuple[Result, str]:
        """Return the worst result of all levels, and its text."""
        own = [cell for cell in self.cells if (cell.place, cell.backend) == (place, backend)]
        if not own:
            return next(result for *where, result in self.blank if where == [place, backend]), ""
        results = list(Result)
        worst = max((cell.result for cell in own), key=results.index)
        return worst, f"{sum(cell.valid for cell in own)}/{sum(cell.trials for cell in own)}"
