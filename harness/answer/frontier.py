"""Records per second against the time until a store is ready after a kill: a point for each backend, by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, sqrt
from typing import Any, NamedTuple

from harness.experiments.needs import failed
from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.report import reference
from harness.report import text
from harness.report.charts import look
from harness.report.drawing import WIDTH, backend_class, mark_id, subject_of, values_axis, with_room
from harness.report.figures import Figure, Figures, columns
from harness.report.scales import AxisScale, scale_of
from harness.report.text import LEVELS

_HEIGHT, _LEFT, _TOP, _BOTTOM, _GUTTER = 290, 44, 30, 42, 84
_CHARACTER, _NOT_MEASURED = 5.9, "not measured"
_MIB = 2.0**20
HEAD = ("records/s", "from", "to", "ready, s", "from", "to", "peak memory, MiB", "on disk, MiB")
"""The names of the numbers of a point."""


@dataclass(frozen=True)
class Value:
    """A median of so many repeats, with the ends of its interval if it has one."""

    median: float
    low: float | None = None
    high: float | None = None
    repeats: int = 1

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; the median alone if there is none."""
        return (self.median if self.low is None else self.low, self.median if self.high is None else self.high)


@dataclass(frozen=True)
class Point:
    """A backend at a level: speed in records/s, time until ready in seconds, memory and disk in bytes.

    ``fit`` is True if a store of it is isolated and outlives its process, and it kept every promise at the level.
    """

    backend: str
    speed: Value
    ready: Value | None
    memory: Value | None
    disk: Value | None
    fit: bool


@dataclass(frozen=True)
class Landscape:
    """The points of a level; ``cell`` says where the speeds are from, ``opened`` which time until ready it is."""

    level: str
    cell: str
    opened: str
    points: Sequence[Point]

    @property
    def frontier(self) -> list[Point]:
        """The fit points that no other one beats in both speed and time until ready, the soonest first."""
        times = [(point.ready.median, point) for point in self.points if point.fit and point.ready]
        best: list[Point] = []
        for _, point in sorted(times, key=lambda each: (each[0], -each[1].speed.median)):
            if not best or point.speed.median > best[-1].speed.median:
                best.append(point)
        return best


def landscapes(figures: Figures, backends: Mapping[str, Mapping[str, Any]]) -> list[Landscape]:
    """Return the points of each level that has any.

    The time until ready is that of the largest state that was opened at the level. Where less than half of the backends
    were opened, it is the time to open the task again after the measurement of its speed.
    """
    return [each for level in LEVELS if (each := _landscape(figures, backends, level)).points]


def _landscape(figures: Figures, backends: Mapping[str, Mapping[str, Any]], level: str) -> Landscape:
    at, broken = reference(figures["throughput"], level), failed(figures, level)
    rows = [figure for figure in figures["throughput"] if at is not None and at.holds(figure)]
    openings = {figure["backend"]: figure for figure in largest_state(figures["opening"], level)}
    if 2 * len(openings) < len(rows):
        openings = {}
    size = next((figure["records"] for figure in openings.values()), 0)
    points = []
    for row in rows:
        facts = backends.get(row["backend"], {})
        ready = _value(openings.get(row["backend"], {}), "ready_s") if openings else _value(row, "open_after_kill_s")
        if speed := _value(row, "records_per_s"):
            fit = bool(facts.get("transactional") and facts.get("persistent")) and row["backend"] not in broken
            memory, disk = _value(row, "peak_memory_bytes"), _value(row, "bytes_on_disk")
            points.append(Point(row["backend"], speed, ready, memory, disk, fit))
    opened = f"{READY_AFTER_A_KILL}, {text.exact(size)} records" if openings else "opened again after a kill"
    return Landscape(level, at.text.replace("`", "") if at else "", opened, points)


def _value(figure: Figure, name: str) -> Value | None:
    value, low, high = (figure.get(column) for column in (name, *columns(name)))
    return Value(value, low, high, figure.get("repeats", 1)) if value is not None and isfinite(value) else None


def frontier_svg(landscape: Landscape) -> str:
    """Return the picture of a level: the frontier is a line, the size of a point is memory or disk."""
    frame = _frame(landscape)
    best = ", ".join(point.backend for point in landscape.frontier) or "none"
    words = (
        f"Level {landscape.level}: records per second against the time until {landscape.opened}. "
        f"On the frontier: {best}."
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {_HEIGHT}" role="img" tabindex="0" data-kind="frontier" '
        f'aria-label="{escape(words)}" data-h="{escape("|".join(HEAD))}">'
        f"{_axes(landscape, frame)}{_line(landscape, frame)}"
        f"{''.join(_drawn(landscape, point, frame) for point in landscape.points)}"
        f"{_names(landscape.points, frame)}</svg>"
    )


class _Frame(NamedTuple):
    """The scales of a picture. Points without a time until ready are at the right of ``x``, if ``gutter`` is True."""

    x: AxisScale
    y: AxisScale
    gutter: bool

    def place(self, point: Point) -> tuple[float, float]:
        """Return the place of a point."""
        x = self.x.end + _GUTTER / 2 if point.ready is None else self.x.at(point.ready.median)
        return x, self.y.at(point.speed.median)


def _frame(landscape: Landscape) -> _Frame:
    times = [time for point in landscape.points if point.ready for time in (point.ready.median, *point.ready.ends)]
    speeds = [speed for point in landscape.points for speed in (point.speed.median, *point.speed.ends)]
    gutter = any(point.ready is None for point in landscape.points)
    right = WIDTH - 10 - _GUTTER * gutter
    return _Frame(
        scale_of(times or [1.0], _LEFT + 10, right, log=min(times, default=1.0) > 0),
        scale_of(speeds, _HEIGHT - _BOTTOM, _TOP, log=min(speeds) > 0),
        gutter,
    )


def _axes(landscape: Landscape, frame: _Frame) -> str:
    bottom = _HEIGHT - _BOTTOM
    grid = "".join(f"M{frame.x.at(tick):.0f} {_TOP - 8}V{bottom + 4}" for tick in frame.x.ticks())
    words = "".join(
        f'<text class="s c" x="{x:.0f}" y="{bottom + 18}">{name}</text>' for x, name in _names_of_times(frame)
    )
    y_scale, x_scale = (", log scale" if scale.log else "" for scale in (frame.y, frame.x))
    return (
        f'{values_axis(frame.y, _LEFT)}<path class="g" d="{grid}"/>{words}'
        f'<text class="s" y="10">\N{UPWARDS ARROW} records/s{y_scale}</text>'
        f'<text class="s" x="{_LEFT}" y="{_HEIGHT - 6}">\N{LEFTWARDS ARROW} {escape(landscape.opened)}{x_scale}</text>'
    )


def _names_of_times(frame: _Frame) -> list[tuple[float, str]]:
    """Return the names below the picture with their places, without those of ticks that "not measured" would cover."""
    names = list(with_room((frame.x.at(tick), text.duration(tick)) for tick in frame.x.ticks()))
    if not frame.gutter:
        return names
    middle = frame.x.end + _GUTTER / 2
    free = middle - _CHARACTER * (len(_NOT_MEASURED) + 4) / 2
    return [*((x, name) for x, name in names if x + _CHARACTER * len(name) / 2 < free), (middle, _NOT_MEASURED)]


def _line(landscape: Landscape, frame: _Frame) -> str:
    """Return the frontier: no fit backend is above it, or at its left."""
    if not landscape.frontier:
        return ""
    (x, y), *further = [frame.place(point) for point in landscape.frontier]
    steps = "".join(f"H{next_x:.0f}V{next_y:.0f}" for next_x, next_y in further)
    return f'<path class="f" d="M{x:.0f} {_HEIGHT - _BOTTOM}V{y:.0f}{steps}H{frame.x.end:.0f}"/>'


def _drawn(landscape: Landscape, point: Point, frame: _Frame) -> str:
    x, y = frame.place(point)
    slow, fast = (frame.y.at(end) for end in point.speed.ends)
    lines = f"M{x:.0f} {slow:.0f}V{fast:.0f}"
    if point.ready:
        soon, late = (frame.x.at(end) for end in point.ready.ends)
        lines += f"M{soon:.0f} {y:.0f}H{late:.0f}"
    marks = "".join(_mark(landscape, point, size, x, y) for size in ("memory", "disk"))
    return f'{_group(point)}<path class="i" d="{lines}"/>{marks}</g>'


def _group(point: Point) -> str:
    return f'<g class="{backend_class(point.backend)}{" unfit" * (not point.fit)}"{subject_of(point.backend)}>'


def _mark(landscape: Landscape, point: Point, size: str, x: float, y: float) -> str:
    hollow = " h" * (point.speed.low is None)
    return (
        f'<use class="m {size}{hollow}" href="#{mark_id(look(point.backend).shape)}" data-v="{_numbers(point)}" '
        f'transform="translate({x:.0f} {y:.0f}) scale({_scale(landscape, point, size):.2f})"/>'
    )


def _scale(landscape: Landscape, point: Point, size: str) -> float:
    """Return the size of a mark, whose area is in proportion to memory or disk, but never too small to be seen."""
    largest = max((value.median for each in landscape.points if (value := getattr(each, size))), default=0)
    value = getattr(point, size)
    return max(0.6, 1.5 * sqrt(value.median / largest)) if value and largest else 0.6


def _numbers(point: Point) -> str:
    """Return the numbers of ``HEAD``."""
    sizes = ("-" if value is None else f"{value.median / _MIB:.3g}" for value in (point.memory, point.disk))
    return " ".join([*_three(point.speed), *_three(point.ready), *sizes])


def _three(value: Value | None) -> list[str]:
    numbers = (value.median, value.low, value.high) if value else (None,) * 3
    return ["-" if number is None else f"{number:.4g}" for number in numbers]


def _names(points: Sequence[Point], frame: _Frame) -> str:
    """Return the names of points. Those without room come first at the next try, until all have some or tries end."""
    names: dict[str, str] = {}
    order = list(points)
    for _ in points:
        boxes = [(x - 8, y, x + 8) for x, y in (frame.place(point) for point in points)]
        names = {point.backend: _name(point, *frame.place(point), boxes) for point in order}
        if all(names.values()):
            break
        order.sort(key=lambda point: names[point.backend] != "")
    return "".join(names.values())


def _name(point: Point, x: float, y: float, boxes: list[tuple[float, float, float]]) -> str:
    """Return the name beside a point, where it covers none of the ``boxes`` of names and points; "" without room."""
    width = _CHARACTER * len(point.backend)
    middle = min(max(x - width / 2, _LEFT), WIDTH - width)
    sides = [(x + 11, y + 4), (x - 11 - width, y + 4), (middle, y - 12), (middle, y + 20)]
    corners = [(start, base) for start in (x + 9, x - 9 - width) for base in (y - 8, y + 16)]
    for start, base in (*sides, *corners, (middle, y - 20), (middle, y + 28)):
        covers = any(
            abs(base - 4 - line) <= 11 and start <= end and begin <= start + width for begin, line, end in boxes
        )
        if not covers and _LEFT <= start <= WIDTH - width and _TOP - 4 < base < _HEIGHT - _BOTTOM:
            boxes.append((start, base - 4, start + width))
            return f'{_group(point)}<text x="{start:.0f}" y="{base:.0f}">{escape(point.backend)}</text></g>'
    return ""
