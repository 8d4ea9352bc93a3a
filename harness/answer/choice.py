"""The backend to pick for each need, computed from the figures of a run alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.report import reference
from harness.processes.load import BUSY_REPEATS, BUSY_SHARE, is_busy
from harness.report import text
from harness.report.figures import CONFIDENCE, REPEATS_MIN, Figure, Figures, Interval, columns, with_interval
from harness.report.text import LEVELS


@dataclass(frozen=True)
class Choice:
    """The best backend for a need, with formatted figures and their intervals.

    There is no backend if the run has no figures for the need, or if they do not decide. ``undecided`` then says why.
    """

    need: str
    durability: str
    backend: str = ""
    figure: str = ""
    next_best: str = ""
    undecided: str = ""
    remark: str = ""

    @property
    def answer(self) -> str:
        """The cell of a table: the backend in bold, or why there is none."""
        return f"**{self.backend}**" if self.backend else self.undecided or text.NOT_MEASURED


BUSY = "no pick: the machine was busy"
_MEASURED = ("throughput", "opening", "benchmark", "latency", "early_commit", "large_step")
"""The kinds of figures that have the load of the machine."""


def choices(figures: Figures, backends: Mapping[str, Mapping[str, Any]]) -> list[Choice]:
    """Return the best backend for each need. ``backends`` has the properties that each backend declares, by name.

    A backend is chosen if its median is the best one, its interval overlaps with that of no other backend, and the
    machine was not busy. One that failed at a level, in a crash trial or by its end state, is not chosen there. One
    without isolation is chosen nowhere: it is the baseline, and the negative control.
    """
    isolating = {name for name, facts in backends.items() if facts["transactional"]}
    keeping = {name for name in isolating if backends[name]["persistent"]}
    low = LEVELS[0]
    usual, large, fullest = (
        _usual(figures, low),
        _largest_commits(figures, low),
        largest_state(figures["opening"], low, keeping),
    )
    return [
        *(_best(_THROUGHPUT[level], level, _usual(figures, level), keeping, figures, _RATE) for level in LEVELS),
        _best("Most records per second, state rebuilt after every crash", low, usual, isolating, figures, _RATE),
        _best("Shortest commits (99th percentile)", low, usual, keeping, figures, _LATENCY),
        _best(
            f"Long transactions in little memory{_size(large, 'records_per_commit', 'records per commit')}",
            low,
            large,
            keeping,
            figures,
            _MEMORY,
        ),
        _best(
            f"Soonest {READY_AFTER_A_KILL}{_size(fullest, 'records', 'records in the store')}",
            low,
            fullest,
            keeping,
            figures,
            _READY,
        ),
        _best("Least disk", low, usual, keeping, figures, _DISK),
    ]


def busy_notice(found: Sequence[Choice], figures: Figures) -> str:
    """Return sentences for the top of a result if the machine was busy during many measurements, else ""."""
    without = sum(choice.undecided == BUSY for choice in found)
    measured = [figure for kind in _MEASURED for figure in figures.get(kind, ())]
    busy, repeats = sum(map(_busy, measured)), sum(figure.get("repeats", 1) for figure in measured)
    if not without and busy <= BUSY_REPEATS * repeats:
        return ""
    return (
        f"The machine was busy: other processes or the hypervisor took more than {BUSY_SHARE:.0%} of its CPU time "
        f"during {busy:,} of {repeats:,} measurements. "
        + (f"For this reason {without} of {len(found)} needs have no pick. " if without else "")
        + "Run it again on a machine with nothing else to do."
    )


def is_too_busy(rows: Sequence[Figure]) -> bool:
    """Return True if the machine was busy with other work during too many repeats of these figures."""
    repeats: int = sum(row["repeats"] for row in rows)
    return sum(map(_busy, rows)) > BUSY_REPEATS * repeats


def failed(figures: Figures, durability: str) -> set[str]:
    """Return the backends that broke a promise at a level: a trial with an unexpected result, or a wrong end state."""
    crashes = {
        figure["backend"]
        for figure in figures["crash"]
        if figure["durability"] == durability
        and figure["expected"] == "valid"
        and figure["as_expected"] < figure["trials"]
    }
    return crashes | {
        figure["backend"]
        for figure in figures["throughput"]
        if figure["durability"] == durability and figure["end_state"] == "different"
    }


@dataclass(frozen=True)
class FigureColumn:
    """A column of a kind of rows and figures, and its format. ``same_work``: it depends on the number of records."""

    kind: str
    name: str
    words: str
    shown: Callable[[float | None], str]
    more_is_better: bool = False
    same_work: bool = False
    is_time: bool = False
    """True if it depends on the speed of the machine."""
    unit: str = ""
    """The unit of an axis, which has so many of the column's own units (``scale``)."""
    scale: float = 1.0

    def interval(self, row: Figure) -> Interval:
        """Return the interval of a figure that has at least five repeats, at least 1 % wide to each side."""
        low, high = (row[column] for column in columns(self.name))
        return Interval(low, row[self.name], high, CONFIDENCE).at_least()

    @property
    def suffix(self) -> str:
        """The unit of a figure in a text, where its format has none."""
        return f" {self.unit}" if self.unit == self.words else ""

    def text(self, row: Figure) -> str:
        """Return a figure with its interval."""
        return with_interval(row, self.name, self.shown, self.suffix)


MEASURES = (
    FigureColumn(
        "throughput", "records_per_s", "records/s", text.count, more_is_better=True, is_time=True, unit="records/s"
    ),
    FigureColumn("throughput", "commit_p99_us", "commit, p99", text.latency, is_time=True, unit="ms", scale=1e3),
    FigureColumn(
        "throughput", "peak_memory_bytes", "peak memory", text.size, same_work=True, unit="MiB", scale=2.0**20
    ),
    FigureColumn("throughput", "bytes_on_disk", "on disk", text.size, same_work=True, unit="MiB", scale=2.0**20),
    FigureColumn("opening", "ready_s", READY_AFTER_A_KILL, text.duration, is_time=True, unit="ms", scale=1e-3),
)
_RATE, _LATENCY, _MEMORY, _DISK, _READY = MEASURES

_THROUGHPUT = {
    "CHANGELOG": "Most records per second, commits kept by the changelog alone",
    "PROCESS": "Most records per second, a commit survives a killed process",
    "DISK": "Most records per second, a commit survives power loss (as the level promises)",
}


def _usual(figures: Figures, durability: str) -> list[Figure]:
    at = reference(figures["throughput"], durability)
    return [figure for figure in figures["throughput"] if at is not None and at.holds(figure)]


def _largest_commits(figures: Figures, durability: str) -> list[Figure]:
    at = reference(figures["throughput"], durability)
    if at is None:
        return []
    largest = at.sizes(figures["throughput"])[-1]
    return [figure for figure in figures["throughput"] if at.holds(figure, largest)]


def _size(rows: Sequence[Figure], name: str, unit: str) -> str:
    return f" ({text.exact(rows[0][name])} {unit})" if rows else ""


def _best(
    need: str,
    durability: str,
    rows: Sequence[Figure],
    candidates: set[str],
    figures: Figures,
    measure: FigureColumn,
) -> Choice:
    out = failed(figures, durability)
    measured = [row for row in rows if row["backend"] in candidates and row.get(measure.name) is not None]
    eligible = [row for row in measured if isfinite(row[measure.name])]
    sign = -1 if measure.more_is_better else 1
    fit = sorted(
        (row for row in eligible if row["backend"] not in out),
        key=lambda row: (sign * row[measure.name], row["backend"]),
    )
    left_out = sorted({row["backend"] for row in eligible} & out)
    remarks = [f"left out, for a broken promise: {', '.join(left_out)}"] if left_out else []
    if not fit:
        return Choice(need, durability, remark="; ".join(remarks))
    crashed_backends = {figure["backend"] for figure in figures["crash"] if figure["durability"] == durability}
    if fit[0]["backend"] not in crashed_backends:
        remarks.append("not crashed at this level in this run")
    remark, repeats = "; ".join(remarks), min(row["repeats"] for row in fit)
    if repeats < REPEATS_MIN:
        times = "measured once" if repeats == 1 else f"measured {repeats} times, fewer than {REPEATS_MIN}"
        return Choice(need, durability, figure=_extremes(fit, measure), undecided=f"no pick: {times}", remark=remark)
    if is_too_busy(fit):
        return Choice(need, durability, figure=_extremes(fit, measure), undecided=BUSY, remark=remark)
    best, *others = fit
    level_with = [row for row in others if measure.interval(row).overlaps(measure.interval(best))]
    if level_with:
        same = [best, *level_with]
        return Choice(
            need,
            durability,
            figure="; ".join(f"{row['backend']} {measure.text(row)}" for row in same),
            next_best=next((f"{row['backend']}, {measure.text(row)}" for row in others if row not in level_with), ""),
            undecided=f"no difference: {', '.join(row['backend'] for row in same)}",
            remark=remark,
        )
    next_best = f"{others[0]['backend']}, {measure.text(others[0])}" if others else ""
    return Choice(need, durability, best["backend"], measure.text(best), next_best, remark=remark)


def _busy(row: Figure) -> int:
    """Return the number of busy repeats of a figure; one that is made of a single row has its load."""
    return int(is_busy(row) if row.get("busy") is None else row["busy"])


def _extremes(fit: Sequence[Figure], measure: FigureColumn) -> str:
    first, last = (measure.shown(row[measure.name]) for row in (fit[0], fit[-1]))
    return f"{first if len(fit) == 1 else f'{first} to {last}'}{measure.suffix}"
