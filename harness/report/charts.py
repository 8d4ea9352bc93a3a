"""Charts as values: panels of marks with intervals, and the look of each backend. ``drawing`` draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

_LOG_FROM = 8
"""A panel whose largest value is more than so many times its smallest one has a logarithmic scale."""
BAR = "bar"
"""The shape of a further measure of a subject: a line across, in the backend's colour."""


class CellResult(StrEnum):
    """The result of a cell of a matrix, from the best to the worst."""

    NO_STEP = "the backend has no such step"
    NOT_TRIED = "not tried in this run"
    VALID = "valid"
    UNKNOWN = "unknown"
    ANOMALY = "anomaly"


class Look(NamedTuple):
    """The look of the marks of a backend: the colours on light and on dark paper, and the shape."""

    light: str
    dark: str
    shape: str


LOOKS: Mapping[str, Look] = {
    "rocksdb-indexed-batch": Look("#1746b8", "#5b9bff", "circle"),
    "rocksdb-direct": Look("#5f6368", "#b4b8bd", "cross"),
    "rocksdb-dual-store": Look("#0b7285", "#7ddbf8", "diamond"),
    "rocksdb-sst-ingest": Look("#8f2be0", "#b184f0", "triangle-up"),
    "lmdb-indexed-batch": Look("#e0500a", "#fba94a", "circle"),
    "lmdb-native": Look("#a8702a", "#f5793a", "square"),
    "sqlite-indexed-batch": Look("#05936c", "#9eefbb", "circle"),
    "sqlite-native": Look("#46520a", "#d1f45f", "square"),
    "memory-indexed-batch": Look("#7a0c4c", "#f0419f", "circle"),
}
"""The look of each backend in every chart. The shape stands for the strategy, a family of colours for the engine."""
OTHER = Look("#444444", "#d0d4d8", "triangle-down")
"""The look of what is no backend of the registry."""

RESULTS: Mapping[str, Sequence[str]] = {
    "light": ("none", "#d3d8dd", "#7fc3a0", "#d98e00", "#b3261e"),
    "dark": ("none", "#3c4249", "#2f7d57", "#f0b545", "#ff7a6e"),
}
"""The colours of the results of cells, in the order of ``CellResult``, on light and dark paper."""


def look(backend: str) -> Look:
    """Return the look of a backend, or of anything else that is measured."""
    return LOOKS.get(backend, OTHER)


@dataclass(frozen=True)
class Mark:
    """A value of a subject, with its interval if there is one. ``backend`` determines the look.

    The subject is the backend unless it has a name of its own. ``step`` is the place on an axis of steps. A subject may
    have several ``measure``s; those after the first have the ``shape`` ``BAR``. A ``hollow`` mark has no interval, or
    is of a ``busy`` machine. In a matrix the value is a part ``of`` a number of trials, and ``rank`` is the place of
    its result.
    """

    backend: str
    value: float
    low: float | None = None
    high: float | None = None
    subject: str = ""
    step: str = ""
    measure: str = ""
    shape: str = ""
    hollow: bool = False
    busy: bool = False
    of: int = 0
    rank: int | None = None

    @property
    def name(self) -> str:
        """The subject."""
        return self.subject or self.backend

    @property
    def ends(self) -> list[float]:
        """The value, and the ends of its interval if there is one."""
        return [each for each in (self.value, self.low, self.high) if each is not None]

    @property
    def is_drawable(self) -> bool:
        """True if no number is infinite or NaN: a scale has no place for those."""
        return is_drawable(*self.ends)


@dataclass(frozen=True)
class Panel:
    """The marks of one cell that is compared, with the properties by which a browser's page filters.

    ``printed`` is False for a panel that only that page shows. ``absent`` are the subjects of panels of the same level
    and workload that have no mark here: they were not measured.
    """

    title: str
    marks: Sequence[Mark]
    level: str = ""
    workload: str = ""
    records_per_commit: int | None = None
    printed: bool = True
    absent: Sequence[str] = ()

    @property
    def ends(self) -> list[float]:
        """All numbers that the scale of the panel contains."""
        return [end for mark in self.marks for end in mark.ends]

    @property
    def subjects(self) -> list[str]:
        """The subjects that have a mark, in the order of their marks."""
        return list(dict.fromkeys(mark.name for mark in self.marks))


@dataclass(frozen=True)
class Chart:
    """A chart: the name of its file without the ending, its title, and its panels.

    ``kind`` is ``dots``, ``lines``, ``history`` or ``matrix``. ``label`` is that of every scale, ``unit`` that of a
    value, and ``steps`` says what the steps are. The subjects of dots are sorted by their marks of the first measure,
    the best at the top. The key says what a broad line (``spread``) and a ``hollow`` mark are.
    """

    name: str
    title: str
    kind: str
    panels: Sequence[Panel]
    label: str
    unit: str
    steps: str = ""
    more_is_better: bool = True
    spread: str = "interval of the median"
    hollow: str = "fewer than 5 repeats"

    def filled(self, *, printed: bool = False) -> list[Panel]:
        """Return the panels that have marks to draw, these in order, and with what was not measured there.

        Marks with a number that has no place on a scale are left out. ``printed`` leaves out what is not printed.
        """
        drawable = [
            replace(panel, marks=self._sorted([mark for mark in panel.marks if mark.is_drawable]))
            for panel in self.panels
            if panel.printed or not printed
        ]
        names = self.kind in ("dots", "lines")
        return [replace(panel, absent=_absent(panel, drawable) if names else ()) for panel in drawable if panel.marks]

    def _sorted(self, marks: Sequence[Mark]) -> Sequence[Mark]:
        if self.kind != "dots" or not marks:
            return marks
        first = {mark.name: mark.value for mark in marks if mark.measure == marks[0].measure}
        sign = -1 if self.more_is_better else 1
        return sorted(marks, key=lambda mark: (sign * (first.get(mark.name) or 0), mark.name))

    def is_log(self, panel: Panel) -> bool:
        """Return True if the scale of a panel is logarithmic."""
        ends = panel.ends
        return bool(ends) and min(ends) > 0 and (self.kind == "lines" or max(ends) > _LOG_FROM * min(ends))


def _absent(panel: Panel, beside: Sequence[Panel]) -> list[str]:
    of_cell = [each for each in beside if (each.level, each.workload) == (panel.level, panel.workload)]
    return sorted({name for each in of_cell for name in each.subjects} - set(panel.subjects))


def is_drawable(*numbers: float | None) -> bool:
    """Return True if no number is infinite or NaN: neither a scale nor JSON has a place for those."""
    return all(number is None or math.isfinite(number) for number in numbers)
