"""Dated updates: which figures of a whole run differ from those of the run before it on a machine of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.answer.history import HistoryEntry, Line
from harness.experiments.needs import MEASURES, FigureColumn

_MEASURES: Mapping[str, FigureColumn] = {measure.name: measure for measure in MEASURES}
_SHOWN = 12
"""So many changes of a run are named, the largest first."""


@dataclass(frozen=True)
class FigureChange:
    """A figure before and after, whose intervals have nothing in common."""

    before: HistoryEntry
    after: HistoryEntry

    @property
    def times(self) -> float:
        """The larger value over the smaller one."""
        low, high = sorted((self.before.value, self.after.value))
        return high / low if low else float("inf")

    @property
    def words(self) -> str:
        """The change in words, with the figures."""
        measure = _MEASURES[self.after.measure]
        old, new = (f"{measure.shown(each.value)}{measure.suffix}" for each in (self.before, self.after))
        return f"{self.after.backend} at {self.after.level}, {measure.words}: {old}, now {new}"


@dataclass(frozen=True)
class Update:
    """The changes of a run: ``compared`` figures have an interval in it and in the run ``before``, if there is one."""

    run: Line
    before: Line | None
    compared: int
    changes: Sequence[FigureChange]

    @property
    def words(self) -> str:
        """The update in sentences of Markdown."""
        if self.before is None:
            return f"**{self.run.date}**, {_commit(self.run)}: the first whole run on {self.run.machine}."
        names = "; ".join(change.words for change in self.changes[:_SHOWN])
        more = f"; and {len(self.changes) - _SHOWN} more" if len(self.changes) > _SHOWN else ""
        return (
            f"**{self.run.date}**, {_commit(self.run)}, {self.run.machine}: {len(self.changes)} of {self.compared} "
            f"figures differ from the run of {self.before.date}. {self._why}{f' {names}{more}.' if names else ''}"
        )

    @property
    def _why(self) -> str:
        """The difference between the runs that is known."""
        before = self.before or self.run
        if before.commit == self.run.commit:
            return "The code is the same: what differs is chance, or the machine."
        return f"The code changed from {_commit(before)} to {_commit(self.run)}."


def updates(history: Sequence[Line]) -> list[Update]:
    """Return an update for each run, the latest first. Runs are compared on machines of one kind only."""
    dated: list[Update] = []
    latest: dict[str, Line] = {}
    for line in history:
        dated.append(_update(line, latest.get(line.machine)))
        latest[line.machine] = line
    return dated[::-1]


def _update(run: Line, before: Line | None) -> Update:
    earlier = {_key(entry): entry for entry in before.figures} if before else {}
    pairs = [FigureChange(earlier[_key(entry)], entry) for entry in run.figures if _key(entry) in earlier]
    comparable = [pair for pair in pairs if pair.before.measure in _MEASURES and _has_interval(pair)]
    changes = sorted(filter(_differs, comparable), key=lambda change: -change.times)
    return Update(run, before, len(comparable), changes)


def _key(entry: HistoryEntry) -> tuple[str, str, str, str]:
    return entry.measure, entry.level, entry.cell, entry.backend


def _has_interval(change: FigureChange) -> bool:
    return None not in (change.before.low, change.before.high, change.after.low, change.after.high)


def _differs(change: FigureChange) -> bool:
    low, high = (
        max(_ends(change.before)[0], _ends(change.after)[0]),
        min(_ends(change.before)[1], _ends(change.after)[1]),
    )
    return low > high and change.times > 1.01


def _ends(entry: HistoryEntry) -> tuple[float, float]:
    return (entry.value if entry.low is None else entry.low), (entry.value if entry.high is None else entry.high)


def _commit(line: Line) -> str:
    return f"commit {line.commit[:7]}" if line.commit else "an unknown commit"
