"""Dot plots: a panel for each thing that is compared, a line for each subject, the best at the top, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from harness.report.drawing import Chart, Looks, is_drawable, new_canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_COLUMNS = 2
_WIDTH, _HEAD, _LINE = 4.6, 0.85, 0.24
"""The size of a panel in inches: its width, its height without lines, and that of a line."""
_LOG_FROM = 8
"""A panel whose largest value is more than so many times its smallest one has a logarithmic scale."""


@dataclass(frozen=True)
class Dot:
    """A median of a subject, with its interval if there is one. ``backend`` determines the colour.

    ``mark`` is the shape: a subject may have several dots on its line, such as a median and a percentile. A dot without
    an interval is hollow.
    """

    subject: str
    backend: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = "o"


@dataclass(frozen=True)
class Panel:
    """The dots of one cell that is compared, with the properties by which a browser's page filters.

    ``printed`` is False for a panel that only that page shows.
    """

    title: str
    dots: Sequence[Dot]
    level: str = ""
    workload: str = ""
    records_per_commit: int | None = None
    printed: bool = True


@dataclass(frozen=True)
class DotChart(Chart):
    """Panels of dots, each with a scale of its own.

    Lines are sorted by their dots of the first shape, the best at the top. ``label`` is that of every scale, ``unit``
    that of a value. The legend says what each shape (``marks``), a broad line (``spread``) and a ``hollow`` dot are.
    """

    panels: Sequence[Panel]
    label: str
    unit: str
    more_is_better: bool
    marks: Mapping[str, str] = field(default_factory=dict)
    spread: str = "interval of the median"
    hollow: str = "fewer than 5 repeats"

    def canvas(self, looks: Looks) -> Canvas | None:
        """Draw the panels, two in a row; None if there are none."""
        filled = [panel for panel in self._filled() if panel.printed]
        if not filled:
            return None
        columns = min(_COLUMNS, len(filled))
        rows = [filled[at : at + columns] for at in range(0, len(filled), columns)]
        heights = [_HEAD + _LINE * max(len(_subjects(panel.dots)) for panel in row) for row in rows]
        canvas = new_canvas(_WIDTH * columns, sum(heights) + 0.4)
        canvas.set_layout_engine("constrained")
        grid = canvas.subplots(len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
        for line, row in zip(grid, rows, strict=True):
            for axes in line[len(row) :]:
                axes.set_axis_off()
            for axes, panel in zip(line, row, strict=False):
                _draw(axes, panel.dots, looks, more_is_better=self.more_is_better)
                axes.set_title(panel.title, fontsize=9, loc="left")
                axes.set_xlabel(self.label)
        _legend(canvas, filled, self.marks, self.spread, self.hollow)
        return canvas

    def data(self) -> dict[str, Any] | None:
        """Return all panels, those that are not printed as well."""
        filled = self._filled()
        if not filled:
            return None
        return {
            "kind": "dots",
            "label": self.label,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "marks": dict(self.marks),
            "spread": self.spread,
            "hollow": self.hollow,
            "panels": [
                {**asdict(replace(panel, dots=())), "dots": [asdict(dot) for dot in panel.dots]} for panel in filled
            ],
        }

    def _filled(self) -> list[Panel]:
        """Return the panels that have dots, with those dots that have a place on a scale."""
        panels = (
            replace(panel, dots=[dot for dot in panel.dots if is_drawable(dot.value, dot.low, dot.high)])
            for panel in self.panels
        )
        return [panel for panel in panels if panel.dots]


def _draw(axes: Axes, dots: Sequence[Dot], looks: Looks, *, more_is_better: bool) -> None:
    subjects = _subjects(dots, more_is_better=more_is_better)
    values = [end for dot in dots for end in (dot.value, dot.low, dot.high) if end is not None]
    if min(values) > 0 and max(values) > _LOG_FROM * min(values):
        axes.set_xscale("log")
        _plain_ticks(axes, min(values), max(values))
    else:
        axes.set_xlim(0, 1.08 * max(values) or 1)
        axes.xaxis.set_major_formatter(_plain)
        axes.locator_params(axis="x", nbins=5)
    for dot in dots:
        y, colour = subjects.index(dot.subject), looks.of(dot.backend)["color"]
        measured = dot.low is not None and dot.high is not None
        if dot.low is not None and dot.high is not None:
            axes.hlines(y, dot.low, dot.high, color=colour, linewidth=3.5, alpha=0.45)
        face = colour if measured else "white"
        axes.plot(dot.value, y, marker=dot.mark, color=colour, markerfacecolor=face, markersize=6, linestyle="none")
    axes.set_yticks(range(len(subjects)), subjects)
    axes.set_ylim(-0.6, len(subjects) - 0.4)
    axes.grid(visible=True, axis="y", linestyle=":")
    axes.tick_params(axis="y", length=0)


def _subjects(dots: Sequence[Dot], *, more_is_better: bool = True) -> list[str]:
    """Return the subjects from the bottom to the top."""
    first = {dot.subject: dot.value for dot in reversed(dots) if dot.mark == dots[0].mark}
    sign = 1 if more_is_better else -1
    return sorted({dot.subject: None for dot in dots}, key=lambda name: (sign * first.get(name, 0), name))


def _plain_ticks(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    steps = (1.0,) if high > 1_000 * low else (1.0, 3.0) if high > 30 * low else (1.0, 2.0, 5.0)
    axes.set_xlim(low / 1.3, high * 1.3)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(_plain)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _plain(value: float, _place: float = 0) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * scale or (unit == "M" and value >= scale):
            return f"{value / scale:g} {unit}"
    return f"{value:,.10g}"


def _legend(canvas: Canvas, panels: Sequence[Panel], marks: Mapping[str, str], spread: str, hollow: str) -> None:
    from matplotlib.lines import Line2D

    dots = [dot for panel in panels for dot in panel.dots]

    def shape(mark: str, meaning: str, face: str | None = None) -> Line2D:
        return Line2D([], [], linestyle="none", color="#444444", marker=mark, markerfacecolor=face, label=meaning)

    handles = [shape(mark, meaning) for mark, meaning in marks.items()]
    if any(dot.low is not None for dot in dots):
        handles.append(Line2D([], [], color="#444444", linewidth=3.5, alpha=0.45, label=spread))
    if any(dot.low is None for dot in dots):
        handles.append(shape("o", hollow, "white"))
    if handles:
        canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
