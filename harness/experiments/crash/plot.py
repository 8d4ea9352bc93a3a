"""The crash matrix as a plot: backends by failpoint or fault, with the results of their trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.experiments.crash.tables import place_of
from harness.report.drawing import Looks, new_canvas
from harness.report.figures import Figure
from harness.report.levels import level_order
from stores.registry import backends

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_RESULTS = ("the backend has no such step", "not tried in this run", "valid", "unknown", "anomaly")
_RESULT_COLOURS = ("#FFFFFF", "#D0D0D0", "#B7E1CD", "#FCE8B2", "#E67C73")
_NO_STEP, _NOT_TRIED, _VALID, _UNKNOWN, _ANOMALY = range(5)


def crash_plot(figures: Sequence[Figure], _looks: Looks) -> Canvas | None:
    """Plot the results of the trials of all levels; None if there were none. Mutants are left out."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    cells = [cell for cell in figures if cell["expected"] == "valid"]
    if not cells:
        return None
    names, places = sorted({cell["backend"] for cell in cells}), sorted({place_of(cell) for cell in cells})
    grid = [
        [
            _worst([cell for cell in cells if cell["backend"] == backend and place_of(cell) == place], backend, place)
            for backend in names
        ]
        for place in places
    ]
    canvas = new_canvas(2.6 + 1.05 * len(names), 1.6 + 0.26 * len(places))
    axes = canvas.subplots()
    colours = ListedColormap(_RESULT_COLOURS)
    axes.imshow(
        [[worst for worst, _ in line] for line in grid], cmap=colours, vmin=_NO_STEP, vmax=_ANOMALY, aspect="auto"
    )
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
    levels = sorted({cell["durability"] for cell in cells}, key=level_order)
    axes.set_xlabel(f"trials that ended valid, of all; {', '.join(levels)}")
    handles = [
        Patch(facecolor=colour, edgecolor="#999999", label=name)
        for name, colour in zip(_RESULTS, _RESULT_COLOURS, strict=True)
    ]
    canvas.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.9, 0.85), frameon=False)
    return canvas


def _worst(cells: Sequence[Figure], backend: str, place: str) -> tuple[int, str]:
    if not cells:
        return (_NOT_TRIED if _has_step(backend, place) else _NO_STEP), ""
    valid, trials = sum(cell["valid"] for cell in cells), sum(cell["trials"] for cell in cells)
    if any(cell["anomaly"] for cell in cells):
        return _ANOMALY, f"{valid}/{trials}"
    return (_UNKNOWN if any(cell["unknown"] for cell in cells) else _VALID), f"{valid}/{trials}"


def _has_step(backend: str, place: str) -> bool:
    """Return False for a failpoint that other backends have, and this one has not."""
    known = backends()
    return (
        backend not in known
        or place in known[backend].failpoints
        or not any(place in each.failpoints for each in known.values())
    )
