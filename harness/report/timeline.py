"""Timelines: a panel for each thing that runs have measured, a line for each backend over the runs.

Only the page for browsers has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.report.drawing import Chart, Looks, is_drawable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Point:
    """The median of one backend in one run, with its interval if there is one.

    ``step`` names the run: its time, a bar, and the label for a tick. ``busy`` is True if the machine did other work.
    """

    step: str
    backend: str
    value: float
    low: float | None
    high: float | None
    busy: bool = False


@dataclass(frozen=True)
class TimelinePanel:
    """The points of one thing that is measured, in the order of the runs."""

    title: str
    points: Sequence[Point]
    level: str = ""


@dataclass(frozen=True)
class Timeline(Chart):
    """Panels of lines over runs. ``label`` is that of the axis, ``unit`` that of a value."""

    panels: Sequence[TimelinePanel]
    label: str
    unit: str

    def canvas(self, looks: Looks) -> Canvas | None:
        """Return None: a history is not printed."""
        return None

    def data(self) -> dict[str, Any] | None:
        """Return all panels that have points."""
        panels = [
            replace(panel, points=[point for point in panel.points if is_drawable(point.value, point.low, point.high)])
            for panel in self.panels
        ]
        drawn = replace(self, panels=[panel for panel in panels if panel.points])
        return {"kind": "history", **asdict(drawn)} if drawn.panels else None
