"""The needs for which a backend is picked: the figure that decides each, where it is measured, and who competes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.report import CELL, reference
from harness.report import text
from harness.report.decision import ROUNDS_MIN, Deviations, Ranking, decide
from harness.report.figures import Figure, Figures, rounds, with_interval
from harness.report.text import LEVELS
from stores.registry import backends as registered

Backends = Mapping[str, Mapping[str, Any]]
"""The properties that each backend declares, by name."""


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
_CELLS: Mapping[str, Sequence[str]] = {
    "throughput": CELL,
    "opening": ("durability", "records"),
}
"""The columns whose values the rivals of a cell share, by kind."""


def _usual(figures: Figures, durability: str, _: Collection[str]) -> list[Figure]:
    at = reference(figures["throughput"], durability)
    return [figure for figure in figures["throughput"] if at is not None and at.holds(figure)]


def _largest_commits(figures: Figures, durability: str, _: Collection[str]) -> list[Figure]:
    at = reference(figures["throughput"], durability)
    if at is None:
        return []
    largest = at.sizes(figures["throughput"])[-1]
    return [figure for figure in figures["throughput"] if at.holds(figure, largest)]


def _largest_state(figures: Figures, durability: str, candidates: Collection[str]) -> list[Figure]:
    return largest_state(figures["opening"], durability, candidates)


@dataclass(frozen=True)
class Need:
    """A need, the figure that decides it, and the cell in which it is measured.

    ``size`` is the column that says how large the cell is, with its unit. ``rebuilt`` is True if backends that keep
    nothing after a crash compete as well. One without isolation competes nowhere: it is the baseline, and the negative
    control.
    """

    words: str
    durability: str
    measure: FigureColumn
    cell: Callable[[Figures, str, Collection[str]], list[Figure]] = _usual
    size: tuple[str, str] | None = None
    rebuilt: bool = False

    def candidates(self, backends: Backends) -> set[str]:
        """Return the backends that compete."""
        isolating = {name for name, facts in backends.items() if facts["transactional"]}
        return {name for name in isolating if self.rebuilt or backends[name]["persistent"]}


_LOW = LEVELS[0]
NEEDS = (
    Need("Most records per second, commits kept by the changelog alone", "CHANGELOG", _RATE),
    Need("Most records per second, a commit survives a killed process", "PROCESS", _RATE),
    Need("Most records per second, a commit survives power loss (as the level promises)", "DISK", _RATE),
    Need("Most records per second with the state rebuilt after every crash", _LOW, _RATE, rebuilt=True),
    Need("Shortest commits (99th percentile)", _LOW, _LATENCY),
    Need(
        "Long transactions in little memory",
        _LOW,
        _MEMORY,
        _largest_commits,
        ("records_per_commit", "records per commit"),
    ),
    Need(f"Soonest {READY_AFTER_A_KILL}", _LOW, _READY, _largest_state, ("records", "records in the store")),
    Need("Least disk", _LOW, _DISK),
)
"""The needs, in the order of the report."""


@dataclass(frozen=True)
class Contest:
    """The rivals for a need: their figures, the best median first, and the decision among them.

    There is no decision if no rival was measured. ``left_out`` broke a promise at this level.
    """

    need: Need
    figures: tuple[Figure, ...] = ()
    ranking: Ranking | None = None
    left_out: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[str, ...]:
        """The best so far and those that may be better, if nothing is decided; all of them after one round."""
        if self.ranking is None or self.ranking.is_decided:
            return ()
        if self.ranking.rounds < ROUNDS_MIN:
            return tuple(row["backend"] for row in self.figures)
        return self.ranking.best, *self.ranking.open

    @property
    def words(self) -> str:
        """The need, with the size of the cell that decides it."""
        if not self.figures or self.need.size is None:
            return self.need.words
        column, unit = self.need.size
        return f"{self.need.words} ({text.exact(self.figures[0][column])} {unit})"


def contests(figures: Figures, backends: Backends) -> list[Contest]:
    """Return the contest for each need, in the order of ``NEEDS``."""
    pools = {measure: Deviations.of(_cells(figures, measure)) for measure in MEASURES}
    return [_contest(need, figures, backends, pools[need.measure]) for need in NEEDS]


def _contest(need: Need, figures: Figures, backends: Backends, pool: Deviations) -> Contest:
    candidates, measure = need.candidates(backends), need.measure
    measured = [row for row in need.cell(figures, need.durability, candidates) if row["backend"] in candidates]
    eligible = [row for row in measured if _is_comparable(row.get(measure.name))]
    out = failed(figures, need.durability)
    sign = -1 if measure.more_is_better else 1
    fit = sorted(
        (row for row in eligible if row["backend"] not in out),
        key=lambda row: (sign * row[measure.name], row["backend"]),
    )
    left_out = tuple(sorted({row["backend"] for row in eligible} & out))
    if not fit:
        return Contest(need, left_out=left_out)
    rivals = {row["backend"]: _rounds(row, measure) for row in fit}
    ranking = decide(rivals, pool, more_is_better=measure.more_is_better)
    return Contest(need, tuple(fit), ranking, left_out)


def _is_comparable(value: float | None) -> bool:
    return value is not None and isfinite(value) and value > 0


def _rounds(figure: Figure, measure: FigureColumn) -> dict[int, float]:
    return {number: value for number, value in rounds(figure, measure.name).items() if _is_comparable(value)}


def _cells(figures: Figures, measure: FigureColumn) -> list[dict[str, dict[int, float]]]:
    """Return the rounds of a measure by backend, for each cell of a run."""
    cells: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for figure in figures.get(measure.kind, ()):
        cell = tuple(figure[name] for name in _CELLS[measure.kind])
        cells.setdefault(cell, {})[figure["backend"]] = _rounds(figure, measure)
    return list(cells.values())


def failed(figures: Figures, durability: str) -> set[str]:
    """Return the backends that broke a promise at a level: a trial with an anomaly, or a wrong end state.

    A trial that could not be tried says nothing about its backend.
    """
    crashes = {
        figure["backend"]
        for figure in figures["crash"]
        if figure["durability"] == durability and figure["expected"] == "valid" and figure["anomaly"]
    }
    return crashes | {
        figure["backend"]
        for figure in figures["throughput"]
        if figure["durability"] == durability and figure["end_state"] == "different"
    }


class RivalCell(NamedTuple):
    """A configuration that a further round has to measure."""

    backend: str
    durability: str
    workload: str
    records_per_commit: int


@dataclass(frozen=True)
class NeedSoFar:
    """A need during a run. ``open_cells`` has the best backend so far, then those that may be more than 10 % better.

    A need that was not measured is not decided, and has no open cells.
    """

    words: str
    durability: str
    decided: bool
    open_cells: tuple[RivalCell, ...] = ()


def contests_so_far(kind: str, figures: Sequence[Figure]) -> list[Contest]:
    """Return the contest for each need that figures of this kind decide, from those that a run has so far.

    After one round all rivals are open. A need that was not measured has no rival.
    """
    facts = {
        name: {"transactional": each.transactional, "persistent": each.persistent}
        for name, each in registered().items()
    }
    every = contests({"throughput": (), "opening": (), "crash": (), kind: figures}, facts)
    return [contest for contest in every if contest.need.measure.kind == kind]


def needs_so_far(figures: Sequence[Figure]) -> list[NeedSoFar]:
    """Return each need on throughput, from the figures of kind "throughput" that a run has so far."""
    return [_so_far(contest) for contest in contests_so_far("throughput", figures)]


def _so_far(contest: Contest) -> NeedSoFar:
    ranking = contest.ranking
    is_decided = ranking is not None and ranking.is_decided
    cells = {row["backend"]: RivalCell(*(row[name] for name in RivalCell._fields)) for row in contest.figures}
    return NeedSoFar(contest.words, contest.need.durability, is_decided, tuple(cells[name] for name in contest.open))
