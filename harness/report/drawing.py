"""Charts as SVG: a panel for the page for browsers, and a file of all panels of a chart above its key.

A panel is 360 units wide, about as many pixels as a telephone has. Its colours are classes: the page has a style for
light and one for dark paper, and a file has its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from harness.report import text
from harness.report.charts import BAR, LOOKS, OTHER, RESULTS, CellResult, Chart, Mark, Panel, look
from harness.report.scales import AxisScale, scale_of, tick_text

WIDTH = 360
_ROW, _TOP, _MATRIX_TOP, _CHARACTER = 20, 34, 18, 6.2
_NAMES_MAX, _VALUES_MIN = 200, 62
_LINES_HEIGHT, _LINES_LEFT, _LINES_TOP, _LINES_BOTTOM = 250, 48, 26, 36
_KEY_ROW, _CAPTION, _GAP = 20, 24, 24
_OTHER_STEPS, _APART = "others", 17
_OUTLINES: Mapping[str, str] = {
    "circle": "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0",
    "square": "m-4-4h8v8h-8z",
    "diamond": "m0-5.5 5.5 5.5-5.5 5.5-5.5-5.5z",
    "triangle-up": "m0-5.5 5 9h-10z",
    "triangle-down": "m0 5.5 5-9h-10z",
    "cross": "m-1.6-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
    BAR: "m-1-6h2v12h-2z",
}
_ID: Mapping[str, str] = {name: f"m{place}" for place, name in enumerate(_OUTLINES)}
SHAPES = "<defs>" + "".join(f'<path id="{_ID[name]}" d="M0 0{path}"/>' for name, path in _OUTLINES.items()) + "</defs>"
"""The definitions of the shapes of marks: once in a file, or in a page."""


class KeyEntry(NamedTuple):
    """An explanation of a mark: its SVG, at most 22 wide and 12 high, and its words."""

    svg: str
    words: str


def style(prefix: str = "", *, dark: bool = False) -> str:
    """Return the style rules of the colours of marks on light or dark paper, within elements of a selector."""
    looks = [*LOOKS.values(), OTHER]
    colours = [f"{prefix}.b{place}{{color:{each.dark if dark else each.light}}}" for place, each in enumerate(looks)]
    results = RESULTS["dark" if dark else "light"]
    return "".join([*colours, *(f"{prefix}.r{place}{{fill:{colour}}}" for place, colour in enumerate(results))])


SHAPE_STYLE = (
    "text{font-size:11px;fill:var(--ink,#1c2024)}.s{fill:var(--soft,#5a6169)}.e{text-anchor:end}.c{text-anchor:middle}"
    ".g{stroke:var(--line,#d9dde1);fill:none}.i{stroke:currentColor;stroke-width:5;stroke-linecap:round;opacity:.38}"
    ".l{stroke:currentColor;stroke-width:1.6;fill:none}.m{fill:currentColor;stroke:currentColor;stroke-width:1.6}"
    ".h{fill:var(--paper,#fff)}.p{stroke:var(--paper,#fff)}"
    f".n{{transform:translateY(4px)}}.v{{text-anchor:end;transform:translate({WIDTH}px,4px)}}"
)
"""The style rules of lines, marks and words. Colours of the paper are variables of the page, and light in a file."""
_PAPER_COLOUR = re.compile(r"var\(--\w+,([^)]+)\)")


def panel_svg(chart: Chart, panel: Panel) -> str:
    """Return a panel as an SVG element whose name says what it shows."""
    height, body = _DRAWN[chart.kind](chart, panel)
    words = escape(f"{chart.title}. {panel.title}. {_summary(chart, panel)}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" tabindex="0" aria-label="{words}"'
        f' data-kind="{chart.kind}">{body}</svg>'
    )


def key_of(chart: Chart) -> list[KeyEntry]:
    """Return the explanations of the shapes and colours of a chart."""
    marks = [mark for panel in chart.filled() for mark in panel.marks]
    if chart.kind == "matrix":
        shown = list(CellResult)[1:]
        return [KeyEntry(f'<path class="r{rank}" d="M5 0h12v12h-12z"/>', words) for rank, words in enumerate(shown, 1)]
    if chart.kind == "dots":
        shapes = dict.fromkeys((mark.measure, mark.shape or "circle") for mark in marks if mark.measure)
        entries = [KeyEntry(mark_svg(shape, 11, 6, "m s"), measure) for measure, shape in shapes]
    else:
        entries = [KeyEntry(backend_mark(name), name) for name in sorted({mark.backend for mark in marks})]
    if any(mark.low is not None for mark in marks):
        entries.append(KeyEntry('<path class="i" d="M3 6H19"/>', chart.spread))
    if any(mark.hollow for mark in marks):
        entries.append(KeyEntry(mark_svg("circle", 11, 6, "m h"), chart.hollow))
    return entries


def backend_mark(backend: str) -> str:
    """Return the mark of a backend in a key."""
    return mark_svg(look(backend).shape, 11, 6, f"m {backend_class(backend)}")


def mark_id(shape: str) -> str:
    """Return the identifier of a shape in ``SHAPES``."""
    return _ID[shape]


def mark_svg(shape: str, x: float, y: float, classes: str, more: str = "") -> str:
    """Return a mark of a shape, which is one of ``SHAPES``, with its middle at a place."""
    above = f' y="{y:.0f}"' if y else ""
    return f'<use class="{classes}" href="#{mark_id(shape)}" x="{x:.0f}"{above}{more}/>'


def subject_of(backend: str) -> str:
    """Return the attribute that names what is measured; "" for a backend of ``LOOKS``, which has its class."""
    return "" if backend in LOOKS else f' data-b="{escape(backend)}"'


def draw(charts: Iterable[Chart], folder: Path) -> list[str]:
    """Draw every chart that has marks to print into ``folder``. Return the names of the files."""
    names = []
    for chart in charts:
        if panels := chart.filled(printed=True):
            (folder / f"{chart.name}.svg").write_text(_file(chart, panels), encoding="utf-8")
            names.append(f"{chart.name}.svg")
    return names


def _file(chart: Chart, panels: Sequence[Panel]) -> str:
    """Return a chart for paper: its panels, two in a row, above its key."""
    width = (WIDTH + _GAP) * min(2, len(panels)) - 8
    body, y = _rows_of_panels(chart, panels)
    key, y = _placed_key(key_of(chart), width, y)
    rules = _PAPER_COLOUR.sub(r"\1", SHAPE_STYLE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y:g}" width="{width}" height="{y:g}" '
        f'font-family="DejaVu Sans, Verdana, Arial, sans-serif"><title>{escape(chart.title)}</title>'
        f"<style>svg{{color:#5a6169}}{rules}{style()}</style>{SHAPES}"
        f'<path d="M0 0H{width}V{y:g}H0z" fill="#fff"/>{body}{key}</svg>\n'
    )


def _rows_of_panels(chart: Chart, panels: Sequence[Panel]) -> tuple[str, float]:
    """Return the panels with their titles, and the place below the last row."""
    parts, y = [], 8.0
    for first in range(0, len(panels), 2):
        row = [(panel.title, *_DRAWN[chart.kind](chart, panel)) for panel in panels[first : first + 2]]
        for column, (title, _, body) in enumerate(row):
            x = column * (WIDTH + _GAP) + 8
            parts.append(f'<text x="{x}" y="{y + 14:g}" font-weight="600">{escape(title)}</text>')
            parts.append(f'<g transform="translate({x} {y + _CAPTION:g})">{body}</g>')
        y += _CAPTION + max(height for _, height, _ in row) + 12
    return "".join(parts), y


def _placed_key(entries: Sequence[KeyEntry], width: float, y: float) -> tuple[str, float]:
    parts, x = [], 8.0
    for entry in entries:
        needed = 44 + _CHARACTER * len(entry.words)
        if x > 8 and x + needed > width:
            x, y = 8.0, y + _KEY_ROW
        parts.append(
            f'<g transform="translate({x:g} {y:g})">{entry.svg}<text x="26" y="10">{escape(entry.words)}</text></g>'
        )
        x += needed
    return "".join(parts), y + _KEY_ROW


def _dots(chart: Chart, panel: Panel) -> tuple[float, str]:
    names = [*panel.subjects, *panel.absent]
    left = min(_NAMES_MAX, max(len(name) for name in names) * _CHARACTER + 10)
    by_name = {name: [mark for mark in panel.marks if mark.name == name] for name in names}
    right = max(_VALUES_MIN, max(len(_values(marks)) for marks in by_name.values()) * _CHARACTER) + 6
    scale = scale_of(panel.ends, left + 4, WIDTH - right, log=chart.is_log(panel))
    height = _TOP + _ROW * len(names)
    rows = [_row(marks, name, scale, place) for place, (name, marks) in enumerate(by_name.items())]
    unit = f'<text class="s" x="{left + 4:g}" y="10">{_label(chart, panel)}</text>'
    return height, unit + _across(scale, _TOP - 10, height) + "".join(rows)


def _row(marks: Sequence[Mark], name: str, scale: AxisScale, place: int) -> str:
    y = _TOP + _ROW * place + _ROW / 2
    moved = f'transform="translate(0 {y:g})"'
    if not marks:
        words = f'<text class="s" y="4">{escape(_shortened(name))}</text>'
        words += f'<text class="s" x="{scale.start:.0f}" y="4">not measured</text>'
        return f'<g class="row {backend_class(name)}"{subject_of(name)} {moved}>{words}</g>'
    backend = marks[0].backend
    return (
        f'<g class="row {backend_class(backend)}"{subject_of(backend)} {moved}>'
        f'<text class="n">{escape(_shortened(name))}</text>{"".join(_dot(mark, scale) for mark in marks)}'
        f'<text class="v">{_values(marks)}</text></g>'
    )


def _values(marks: Sequence[Mark]) -> str:
    return " \N{MIDDLE DOT} ".join(short(mark.value) for mark in marks)


def _dot(mark: Mark, scale: AxisScale) -> str:
    line = _interval(mark, lambda low, high: f"M{scale.at(low):.0f} 0H{scale.at(high):.0f}")
    return line + _mark(mark, scale.at(mark.value), 0)


def _mark(mark: Mark, x: float, y: float) -> str:
    return mark_svg(mark.shape or look(mark.backend).shape, x, y, f"m{' h' * mark.hollow}", _facts(mark))


def _interval(mark: Mark, path: Callable[[float, float], str]) -> str:
    if mark.low is None or mark.high is None:
        return ""
    return f'<path class="i" d="{path(mark.low, mark.high)}"/>'


def _number(value: float) -> str:
    """Return a number with four digits; a large one without an exponent, which is longer."""
    digits = f"{value:.4g}"
    return digits if "e+" not in digits else f"{float(digits):.0f}" if value < 1e8 else digits


def _facts(mark: Mark) -> str:
    """Return what the page says of a mark: its measure or step, and its numbers."""
    numbers = " ".join(map(_number, mark.ends))
    words = " (busy machine)" * mark.busy
    measure = f' data-m="{escape(mark.measure + words)}"' if mark.measure or words else ""
    name = f' data-s="{escape(mark.subject)}"' if mark.subject and mark.subject != mark.backend else ""
    return f' data-v="{numbers}"{measure}{name}'


def _lines(chart: Chart, panel: Panel) -> tuple[float, str]:
    scale = scale_of(panel.ends, _LINES_HEIGHT - _LINES_BOTTOM, _LINES_TOP, log=chart.is_log(panel))
    steps = list(dict.fromkeys(mark.step for mark in panel.marks))
    apart = (WIDTH - _LINES_LEFT - 16) / max(1, len(steps) - 1)
    first = _LINES_LEFT + 8 + (0 if len(steps) > 1 else apart / 2)
    places = {step: first + place * apart for place, step in enumerate(steps)}
    absent = f"; not measured: {', '.join(panel.absent)}" if panel.absent else ""
    lines = (_line([mark for mark in panel.marks if mark.name == name], places, scale) for name in panel.subjects)
    return _LINES_HEIGHT, (
        f'<text class="s" y="10">{_label(chart, panel)}</text>{values_axis(scale, _LINES_LEFT)}{_steps_axis(places)}'
        f'<text class="s e" x="{WIDTH}" y="{_LINES_HEIGHT - 4}">{escape(chart.steps + absent)}</text>{"".join(lines)}'
    )


def values_axis(scale: AxisScale, left: float) -> str:
    """Return the ticks of an upright scale, which is at the right of ``left``, and a line across for each."""
    grid = "".join(f"M{left} {scale.at(tick):.0f}H{WIDTH}" for tick in scale.ticks())
    labels = "".join(
        f'<text class="s e" x="{left - 6}" y="{scale.at(tick) + 4:.0f}">{tick_text(tick)}</text>'
        for tick in scale.ticks()
    )
    return f'<path class="g" d="{grid}"/>{labels}'


def _steps_axis(places: Mapping[str, float]) -> str:
    """Return the names of steps; as many as there is room for."""
    words = [(x, step.rpartition("|")[2]) for step, x in places.items()]
    width = sum(len(word) + 2 for _, word in words) * _CHARACTER
    every = max(1, round(width / (WIDTH - _LINES_LEFT) + 0.5))
    return "".join(
        f'<text class="s c" x="{min(x, WIDTH - len(word) * _CHARACTER / 2):.0f}" '
        f'y="{_LINES_HEIGHT - _LINES_BOTTOM + 16}">{escape(word)}</text>'
        for x, word in words[::every]
    )


def _line(marks: Sequence[Mark], places: Mapping[str, float], scale: AxisScale) -> str:
    path = "M" + "L".join(f"{places[mark.step]:.0f} {scale.at(mark.value):.0f}" for mark in marks)
    drawn = "".join(_point(mark, places[mark.step], scale) for mark in marks)
    backend = marks[0].backend
    return f'<g class="{backend_class(backend)}"{subject_of(backend)}><path class="l" d="{path}"/>{drawn}</g>'


def _point(mark: Mark, x: float, scale: AxisScale) -> str:
    line = _interval(mark, lambda low, high: f"M{x:.0f} {scale.at(low):.0f}V{scale.at(high):.0f}")
    return line + _mark(mark, x, scale.at(mark.value))


def _matrix(chart: Chart, panel: Panel) -> tuple[float, str]:
    """Return rows of backends and columns of steps. A cell that is not valid reaches over the height of its row."""
    steps = list(dict.fromkeys(mark.name for mark in panel.marks))
    backends = sorted({mark.backend for mark in panel.marks})
    left = round(max(len(name) for name in backends) * _CHARACTER + 6)
    width = (WIDTH - left) / len(steps)
    rows = "".join(
        _matrix_row([mark for mark in panel.marks if mark.backend == backend], steps, place, left)
        for place, backend in enumerate(backends)
    )
    bottom = _MATRIX_TOP + _ROW * len(backends)
    between = "".join(f"M{left + place * width:.1f} {_MATRIX_TOP}V{bottom}" for place in range(1, len(steps)))
    facts = f' data-left="{left}" data-width="{width:.4f}" data-steps="{escape("|".join(steps))}"'
    head = f'<text class="s" x="{left}" y="10">{len(steps)} {chart.steps}, one a column</text>'
    groups, height = _groups(steps, left, width, bottom)
    return height, f'<g{facts}>{head}{rows}<path class="p" d="{between}"/>{groups}</g>'


def _groups(steps: Sequence[str], left: float, width: float, bottom: float) -> tuple[str, float]:
    """Return names for steps beside each other whose names begin alike, below them, and the place below these names."""
    parts, place, longest, at = "", 0, 0, 0.0
    for name, group in groupby(steps, lambda step: step.partition(".")[0] if "." in step else _OTHER_STEPS):
        number = len(list(group))
        x, end = left + place * width, left + (place + number) * width
        # Names of narrow groups are moved apart, and a line leads from each to its group.
        at = max((x + end) / 2, at + _APART)
        path = f"M{x + 1:.0f} {bottom + 3}H{end - 1:.0f}M{(x + end) / 2:.0f} {bottom + 3}L{at:.0f} {bottom + 9}"
        turned = f'transform="translate({at + 3:.0f} {bottom + 18}) rotate(-40)"'
        parts += f'<path class="g" d="{path}"/><text class="s e" {turned}>{escape(_shortened(name))}</text>'
        place, longest = place + number, max(longest, len(name))
    return f'<g class="groups">{parts}</g>', bottom + 22 + round(min(longest, 20) * _CHARACTER * 0.64)


def _matrix_row(marks: Sequence[Mark], steps: Sequence[str], place: int, left: float) -> str:
    cells, backend = {mark.name: mark for mark in marks}, marks[0].backend
    ranks = [cells[step].rank if step in cells else 0 for step in steps]
    paths = (_cells(ranks, rank, left, (WIDTH - left) / len(steps)) for rank in range(1, len(CellResult)))
    counts = " ".join(_counts(cells.get(step)) for step in steps)
    return (
        f'<g class="row {backend_class(backend)}"{subject_of(backend)} data-c="{counts}" '
        f'transform="translate(0 {_MATRIX_TOP + _ROW * place})">'
        f'<text y="14">{escape(_shortened(backend))}</text>{"".join(paths)}</g>'
    )


def _cells(ranks: Sequence[int | None], rank: int, left: float, width: float) -> str:
    """Return the cells of a row with one result; neighbours are one shape."""
    wrong = rank > list(CellResult).index(CellResult.VALID)
    top, height = (0, _ROW) if wrong else (3, _ROW - 6)
    path, place = "", 0
    for same, cells in groupby(ranks, lambda each: each == rank):
        number = len(list(cells))
        if same:
            path += f"M{left + place * width:.1f} {top}h{number * width:.1f}v{height}h-{number * width:.1f}z"
        place += number
    return f'<path class="r{rank}" d="{path}"/>' if path else ""


def _counts(mark: Mark | None) -> str:
    if mark is None or not mark.rank:
        return "-"
    return f"{mark.value:g}/{mark.of}" if mark.of else "0"


def with_room(labels: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Yield labels, each with the place of its middle from left to right, but none that would cover the one before."""
    taken_to = float("-inf")
    for x, label in labels:
        half = len(label) * _CHARACTER / 2
        if x - half > taken_to:
            yield x, label
            taken_to = x + half + _CHARACTER


def _across(scale: AxisScale, y: float, bottom: float) -> str:
    grid = "".join(f"M{scale.at(tick):.0f} {y + 4:g}V{bottom:g}" for tick in scale.ticks())
    places = with_room((scale.at(tick), tick_text(tick)) for tick in scale.ticks())
    labels = "".join(f'<text class="s c" x="{x:.0f}" y="{y:g}">{label}</text>' for x, label in places)
    return f'<path class="g" d="{grid}"/>{labels}'


def _label(chart: Chart, panel: Panel) -> str:
    return escape(f"{chart.label or chart.unit}{', log scale' if chart.is_log(panel) else ''}")


def _summary(chart: Chart, panel: Panel) -> str:
    if chart.kind == "matrix":
        wrong = sum((mark.rank or 0) > list(CellResult).index(CellResult.VALID) for mark in panel.marks)
        tried = sum(mark.of > 0 for mark in panel.marks)
        return f"{tried} cells were tried, {wrong} of them with a result that is not valid"
    values = [f"{mark.name} {mark.measure} {short(mark.value)}".replace("  ", " ") for mark in panel.marks[:3]]
    return f"{chart.label}: {', '.join(values)}{', and more' * (len(panel.marks) > 3)}"


def short(value: float) -> str:
    """Return a measured number with three significant digits."""
    return text.count(value)


def _shortened(name: str) -> str:
    most = int((_NAMES_MAX - 10) / _CHARACTER)
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def backend_class(backend: str) -> str:
    """Return the class that gives a mark the colour of a backend."""
    return f"b{list(LOOKS).index(backend) if backend in LOOKS else len(LOOKS)}"


_DRAWN: Mapping[str, Callable[[Chart, Panel], tuple[float, str]]] = {
    "dots": _dots,
    "lines": _lines,
    "history": _lines,
    "matrix": _matrix,
}
"""The function that draws a panel of each kind of chart: it returns the height, and the content of an SVG element."""
