"""Charts: values in panels, drawn by one Vega-Lite specification of each kind, for SVG files and the page for browsers.

The specifications are ``web/charts/KIND.json``. They need values, a scale and colours, which the page's scripts give
them as well. The same figures give the same bytes. Source: https://vega.github.io/vega-lite/docs/
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

_SPECIFICATIONS = files("harness.report.web") / "charts"
_COLUMNS = 2
_LOG_FROM = 8
"""A panel whose largest value is more than so many times its smallest one has a logarithmic scale."""
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-right", "triangle-down")
_WORDS_WIDTH, _SHAPE_WIDTH, _KEY_WIDTH = 6.3, 34, 720
"""The width of a character, of a shape with its margins, and of a line of the key, in pixels."""


class CellResult(StrEnum):
    """The result of a cell of a matrix, from the best to the worst."""

    NO_STEP = "the backend has no such step"
    NOT_TRIED = "not tried in this run"
    VALID = "valid"
    UNKNOWN = "unknown"
    ANOMALY = "anomaly"


COLOURS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "light": {
        "backends": ("#0067a5", "#c2500a", "#00795a", "#a94f86", "#0090b0", "#9c6a00", "#7a4a3c", "#5f6368"),
        "outcomes": ("#ffffff", "#e3e6e9", "#d3ecdd", "#fbe9b7", "#f3b5ae"),
    },
    "dark": {
        "backends": ("#6a9cf5", "#f28e54", "#3fbf97", "#e29bc6", "#7fdcec", "#f0bd4a", "#cf9f90", "#b4b8bd"),
        "outcomes": ("#14171a", "#2d3238", "#1e4631", "#574713", "#702a25"),
    },
}
"""The colours of backends in the order of their names, and of results, each for light and dark paper."""
_INK, _SOFT, _LINE, _PAPER = "#222222", "#444444", "#dddddd", "#ffffff"
_STYLE: Mapping[str, Any] = {
    "background": _PAPER,
    "font": "DejaVu Sans, Verdana, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"domainColor": _LINE, "gridColor": _LINE, "labelColor": _INK, "titleColor": _INK, "ticks": False,
             "labelFontSize": 11, "labelPadding": 6, "labelLimit": 360, "titleFontWeight": "normal"},
    "axisX": {"tickCount": 5},
    "title": {"anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": "normal", "color": _INK},
    "text": {"color": _INK},
}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """A value of a subject, with its interval if there is one. ``backend`` determines the colour.

    The subject is the backend unless it has a name of its own. ``step`` is the place on an axis of steps. A subject may
    have several ``measure``s, each with a ``shape``. A ``hollow`` mark has no interval, or is of a ``busy`` machine. In
    a matrix the value is a part ``of`` a number of trials at a ``level``, and ``rank`` is the place of its result.
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
    level: str = ""
    of: int = 0
    rank: int | None = None


@dataclass(frozen=True)
class Panel:
    """The marks of one cell that is compared, with the properties by which a browser's page filters.

    ``printed`` is False for a panel that only that page shows.
    """

    title: str
    marks: Sequence[Mark]
    level: str = ""
    workload: str = ""
    records_per_commit: int | None = None
    printed: bool = True


@dataclass(frozen=True)
class Chart:
    """A chart: the name of its file without the ending, its title, and its panels.

    ``kind`` is ``dots``, ``lines``, ``history`` or ``matrix``. ``label`` is that of every scale, ``unit`` that of a
    value, and ``steps`` says what the steps are. The subjects of dots are sorted by their marks of the first measure,
    the best at the top. The key says what each measure's shape, a broad line (``spread``) and a ``hollow`` mark are.
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

    def data(self, backends: Collection[str], *, printed: bool = False) -> dict[str, Any] | None:
        """Return the chart as values that JSON can hold; None if there is nothing to draw.

        Marks with a number that has no place on a scale are left out. ``printed`` leaves out what is not printed.
        """
        panels = [self._panel(panel, sorted(backends)) for panel in self.panels if panel.printed or not printed]
        filled = [panel for panel in panels if panel["values"]]
        if not filled:
            return None
        words = {each: getattr(self, each) for each in ("name", "title", "kind", "label", "unit", "steps")}
        return {**words, "key": self._key([value for panel in filled for value in panel["values"]]), "panels": filled}

    def _panel(self, panel: Panel, backends: Sequence[str]) -> dict[str, Any]:
        marks = [mark for mark in panel.marks if is_drawable(mark.value, mark.low, mark.high)]
        ends = [end for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
        log = bool(ends) and min(ends) > 0 and (self.kind == "lines" or max(ends) > _LOG_FROM * min(ends))
        return {
            **{name: getattr(panel, name) for name in ("title", "level", "workload", "records_per_commit")},
            "scale": "log" if log else "linear",
            "ticks": _ticks(min(ends), max(ends)) if ends and min(ends) > 0 else None,
            "values": [self._value(mark, backends) for mark in (self._sorted(marks) if self.kind == "dots" else marks)],
        }

    def _sorted(self, marks: Sequence[Mark]) -> list[Mark]:
        first = {mark.subject or mark.backend: mark.value for mark in marks if mark.measure == marks[0].measure}
        sign = -1 if self.more_is_better else 1

        def place(mark: Mark) -> tuple[float, str]:
            subject = mark.subject or mark.backend
            return sign * (first.get(subject) or 0), subject

        return sorted(marks, key=place)

    def _value(self, mark: Mark, backends: Sequence[str]) -> dict[str, Any]:
        """Return the properties of a mark without those that have their default."""
        by_backend = "circle" if self.kind == "dots" else _SHAPES[_place(mark.backend, backends) % len(_SHAPES)]
        properties = {
            each.name: getattr(mark, each.name) for each in fields(mark) if getattr(mark, each.name) != each.default
        }
        return {**properties, "subject": mark.subject or mark.backend, "shape": mark.shape or by_backend}

    def _key(self, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the explanations of shapes and colours, each with its ``text``."""
        if self.kind == "matrix":
            return [{"shape": "square", "rank": rank, "text": result} for rank, result in enumerate(CellResult)]
        if self.kind == "dots":
            measures = dict.fromkeys((value["measure"], value["shape"]) for value in values if "measure" in value)
            key: list[dict[str, Any]] = [{"shape": shape, "text": measure} for measure, shape in measures]
        else:
            shapes = sorted({value["backend"]: value["shape"] for value in values}.items())
            key = [{"shape": shape, "backend": backend, "text": backend} for backend, shape in shapes]
        if any("low" in value for value in values):
            key.append({"shape": "spread", "text": self.spread})
        if any("hollow" in value for value in values):
            key.append({"shape": "circle", "hollow": True, "text": self.hollow})
        return key


def draw(charts: Iterable[Chart], backends: Collection[str], folder: Path, file_type: str = "svg") -> list[str]:
    """Draw every chart that has marks to print into ``folder``. Return the names of the files."""
    import vl_convert

    names = []
    for chart in charts:
        specification = printed_chart(chart, backends)
        if specification is not None:
            file = folder / f"{chart.name}.{file_type}"
            if file_type == "svg":
                file.write_text(vl_convert.vegalite_to_svg(specification), encoding="utf-8")
            else:
                file.write_bytes(vl_convert.vegalite_to_png(specification))
            names.append(file.name)
    return names


def printed_chart(chart: Chart, backends: Collection[str]) -> dict[str, Any] | None:
    """Return a chart for paper as Vega-Lite: its panels, two in a row, above its key; None if there is nothing."""
    data = chart.data(backends, printed=True)
    if data is None:
        return None
    panels = [_specified(data, panel, sorted(backends)) for panel in data["panels"]]
    return {
        "config": _STYLE,
        "spacing": 18,
        "vconcat": [{"concat": panels, "columns": _COLUMNS}, _printed_key(data["key"], sorted(backends))],
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


@cache
def specifications() -> dict[str, Any]:
    """Return each kind of chart without values. Words in capitals stand for its scale, its ticks and its colours."""
    specification_files = sorted(_SPECIFICATIONS.iterdir(), key=lambda file: file.name)
    texts = {
        file.name.removesuffix(".json"): file.read_text("utf-8")
        for file in specification_files
        if file.name.endswith(".json")
    }
    return {kind: json.loads(text) for kind, text in texts.items()}


def is_drawable(*numbers: float | None) -> bool:
    """Return True if no number is infinite or NaN: neither a scale nor JSON has a place for those."""
    return all(number is None or math.isfinite(number) for number in numbers)


def _place(backend: str, backends: Sequence[str]) -> int:
    """Return the place of a backend's look. Those that are not among the known ones share one."""
    return backends.index(backend) if backend in backends else len(backends)


def _colour(backend: str, backends: Sequence[str]) -> str:
    colours = COLOURS["light"]["backends"]
    return colours[_place(backend, backends) % len(colours)]


def _specified(data: Mapping[str, Any], panel: Mapping[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    """Return a panel in Vega-Lite, as ``drawing.js`` makes it for the page."""
    log = panel["scale"] == "log"
    words = {
        "SCALE": {"type": "log", "nice": False, "padding": 14} if log else {"type": "linear"},
        "TICKS": panel["ticks"] if log else None,
        "RESULTS": COLOURS["light"]["outcomes"],
        "LABEL": data["label"],
        "STEPS": data["steps"],
    }
    text = json.dumps(specifications()[data["kind"]])
    for word, replacement in words.items():
        text = text.replace(json.dumps(word), json.dumps(replacement))
    specification: dict[str, Any] = json.loads(text)
    if specification["width"] == "container":
        specification["width"] = 300
    specification["title"] = panel["title"]
    return _with_values(specification, [_coloured(value, backends) for value in panel["values"]])


def _coloured(value: Mapping[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    colour = _colour(value["backend"], backends)
    ends = {"low": value["value"], "high": value["value"]}
    return {**ends, **value, "colour": colour, "fill": _PAPER if value.get("hollow") else colour}


def _printed_key(key: Sequence[Mapping[str, Any]], backends: Sequence[str]) -> dict[str, Any]:
    values: list[dict[str, Any]] = []
    x, line = 0.0, 0
    for item in key:
        width = _SHAPE_WIDTH + _WORDS_WIDTH * len(item["text"])
        if x and x + width > _KEY_WIDTH:
            x, line = 0.0, line + 1
        colour = _colour(item["backend"], backends) if "backend" in item else _SOFT
        fill = COLOURS["light"]["outcomes"][item["rank"]] if "rank" in item else _PAPER if "hollow" in item else colour
        values.append({**item, "x": x, "to": x + 12, "line": line, "fill": fill, "colour": colour})
        x += width
    return _with_values(specifications()["key"], values)


def _with_values(specification: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**specification, "data": {"values": values}}


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 or 1, 3 or 1 of each power of ten, as many as a logarithmic axis has room for; else all digits."""
    steps = (1,) if high > 1_000 * low else (1, 3) if high > 30 * low else (1, 2, 5) if high > 5 * low else range(1, 10)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        tick for power in powers for step in steps if 0.8 * low <= (tick := float(f"{step}e{power}")) <= 1.25 * high
    ]
