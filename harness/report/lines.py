"""Line charts of percentiles or other steps: a panel for each thing that is timed, a line for each backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.report.drawing import Chart, Looks, is_drawable, new_canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Line:
    """The values of a backend, one for each step of the chart."""

    backend: str
    values: Sequence[float]


@dataclass(frozen=True)
class LinePanel:
    """The lines of one thing that is timed, with the properties by which a browser's page filters."""

    title: str
    lines: Sequence[Line]
    level: str = ""
    records_per_commit: int | None = None


@dataclass(frozen=True)
class LineChart(Chart):
    """Panels of lines over the same ``steps``, with a logarithmic scale each. ``label`` is that of the steps."""

    panels: Sequence[LinePanel]
    steps: Sequence[str]
    label: str
    unit: str
    unit_in_words: str

    def canvas(self, looks: Looks) -> Canvas | None:
        """Draw the panels side by side; None if there are none."""
        panels = self._filled()
        if not panels:
            return None
        canvas, drawn = _panels(panel.title for panel in panels)
        for (title, axes), panel in zip(drawn, panels, strict=True):
            for line in panel.lines:
                axes.plot(range(len(self.steps)), line.values, label=line.backend, **looks.of(line.backend))
            axes.set_yscale("log")
            axes.set_xticks(range(len(self.steps)), self.steps)
            _plain_numbers(axes)
            axes.set_xlabel(self.label)
            axes.set_title(title, fontsize=9, loc="left")
        drawn[0][1].set_ylabel(self.unit_in_words)
        _legend(canvas, drawn)
        return canvas

    def data(self) -> dict[str, Any] | None:
        """Return all panels that have lines."""
        panels = self._filled()
        return {"kind": "lines", **asdict(replace(self, panels=panels))} if panels else None

    def _filled(self) -> list[LinePanel]:
        """Return the panels that have lines, with those lines that have a place on a scale."""
        panels = (
            replace(panel, lines=[line for line in panel.lines if is_drawable(*line.values)]) for panel in self.panels
        )
        return [panel for panel in panels if panel.lines]


def _panels(names: Iterable[str]) -> tuple[Canvas, list[tuple[str, Axes]]]:
    titles = list(names)
    canvas = new_canvas(2.2 + 3.6 * len(titles), 3.8)
    axes = canvas.subplots(1, len(titles), sharey=False, squeeze=False)[0]
    return canvas, list(zip(titles, axes, strict=True))


def _plain_numbers(axes: Axes) -> None:
    # The ticks are plain numbers, also those between powers of ten where there are few.
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    low, high = axes.get_ylim()
    if high < 20 * low:
        labelled = "23456789" if high < 4 * low else "25"
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}" if f"{y:e}"[0] in labelled else ""))
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(canvas: Canvas, drawn: Sequence[tuple[str, Axes]]) -> None:
    found = {
        label: handle for _, axes in drawn for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = sorted(found, key=lambda label: (label[0].isdigit(), label))
    handles = [found[label] for label in labels]
    canvas.legend(handles, labels, loc="center left", bbox_to_anchor=(0.91, 0.5), frameon=False)
