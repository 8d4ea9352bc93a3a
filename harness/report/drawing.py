"""Building blocks of plots: looks of backends, charts, SVG files.

The same figures give the same bytes. matplotlib is imported by the first plot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C564B", "#7F7F7F")
"""Distinguishable by colour-blind readers. Source: Okabe and Ito, "Color Universal Design" (the first six)."""
_MARKERS = "osD^vPX*"
_STYLE: Any = {
    "svg.hashsalt": "report",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "lines.markersize": 4.5,
}


class Looks:
    """A colour and a marker for each backend, the same in every plot of a report."""

    def __init__(self, backends: Iterable[str]) -> None:
        self._places = {backend: place for place, backend in enumerate(sorted(backends))}

    def of(self, backend: str) -> dict[str, Any]:
        """Return the arguments of a line for a backend. Backends that are not among the known ones share a look."""
        place = self._places.get(backend, len(self._places))
        return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "linewidth": 1.5}


class Chart(ABC):
    """Figures to be drawn, as plain values, from which the SVG files and the page for browsers are made."""

    @abstractmethod
    def canvas(self, looks: Looks) -> Canvas | None:
        """Draw the chart for an SVG file; None if there is nothing for one."""

    @abstractmethod
    def data(self) -> dict[str, Any] | None:
        """Return the chart as values that JSON can hold, for the page for browsers; None if there is nothing to draw.

        ``kind`` names the way to draw it: a file of ``harness/report/web/charts``.
        """


class Plot(NamedTuple):
    """A plot: the name of its file without the ending, its title, and its chart."""

    name: str
    title: str
    chart: Chart


def draw(plots: Iterable[Plot], looks: Looks, folder: Path, file_type: str = "svg") -> list[str]:
    """Draw every plot that has figures into ``folder``. Return the names of the files."""
    import matplotlib as mpl

    drawn = []
    with mpl.rc_context(_STYLE):
        for plot in plots:
            canvas = plot.chart.canvas(looks)
            if canvas is not None:
                metadata = {"Date": None, "Creator": None} if file_type == "svg" else None
                canvas.savefig(folder / f"{plot.name}.{file_type}", metadata=metadata, bbox_inches="tight", dpi=110)
                drawn.append(f"{plot.name}.{file_type}")
    return drawn


def is_drawable(*numbers: float | None) -> bool:
    """Return True if no number is infinite or NaN: neither a scale nor JSON has a place for those."""
    return all(number is None or math.isfinite(number) for number in numbers)


def new_canvas(width: float, height: float) -> Canvas:
    """Return an empty canvas of a size in inches."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height))
