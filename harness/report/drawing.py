"""Building blocks of plots: looks of backends, panels, axes, legends, SVG files.

The same figures give the same bytes. matplotlib is imported by the first plot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


class Plot(NamedTuple):
    """A plot: the name of its file without the ending, its title, and the function that draws it, or returns None."""

    name: str
    title: str
    draw: Callable[[Looks], Canvas | None]


def draw(plots: Iterable[Plot], looks: Looks, folder: Path, file_type: str = "svg") -> list[str]:
    """Draw every plot that has figures into ``folder``. Return the names of the files."""
    import matplotlib as mpl

    drawn = []
    with mpl.rc_context(_STYLE):
        for plot in plots:
            canvas = plot.draw(looks)
            if canvas is not None:
                metadata = {"Date": None, "Creator": None} if file_type == "svg" else None
                canvas.savefig(folder / f"{plot.name}.{file_type}", metadata=metadata, bbox_inches="tight", dpi=110)
                drawn.append(f"{plot.name}.{file_type}")
    return drawn


def new_canvas(width: float, height: float) -> Canvas:
    """Return an empty canvas of a size in inches."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height))


def panels(names: Iterable[str], *, shared_y: bool = True) -> tuple[Canvas, list[tuple[str, Axes]]]:
    """Return a canvas with a panel for each name, side by side."""
    titles = list(names)
    canvas = new_canvas(2.2 + 3.6 * len(titles), 3.8)
    axes = canvas.subplots(1, len(titles), sharey=shared_y, squeeze=False)[0]
    return canvas, list(zip(titles, axes, strict=True))


def plain_numbers(axes: Axes) -> None:
    """Write the ticks of a logarithmic y axis as plain numbers, and those between powers of ten where there are few."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    low, high = axes.get_ylim()
    if high < 20 * low:
        labelled = "23456789" if high < 4 * low else "25"
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}" if f"{y:e}"[0] in labelled else ""))
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())


def legend(canvas: Canvas, drawn: Sequence[tuple[str, Axes]]) -> None:
    """Put one legend for all panels to the right of them."""
    found = {
        label: handle for _, axes in drawn for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = sorted(found, key=lambda label: (label[0].isdigit(), label))
    handles = [found[label] for label in labels]
    canvas.legend(handles, labels, loc="center left", bbox_to_anchor=(0.91, 0.5), frameon=False)
