"""The history of whole runs: a file with a line for each, its charts, and what each run has changed.

A line has the figures that represent each level, with their intervals. Only whole runs have one. The report of a run
that has a line already replaces that line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.experiments.needs import MEASURES, FigureColumn
from harness.experiments.opening.report import largest_state
from harness.experiments.throughput.report import reference
from harness.processes.load import BUSY_REPEATS
from harness.replay import from_text
from harness.report import text
from harness.report.charts import Chart, Mark, Panel, is_drawable
from harness.report.environment import CHANGED, machine_kind
from harness.report.figures import Figure, Figures, columns
from harness.report.text import LEVELS
from stores.errors import ConfigError

HISTORY_FILE = "history.jsonl"
_CHARTED, _RUNS_CHARTED = ("records_per_s", "ready_s"), 8
"""The page has a limited size; a sentence names each figure of another measure that has changed."""
_MEASURES: Mapping[str, FigureColumn] = {measure.name: measure for measure in MEASURES}
_SHOWN = 12
"""So many changes of a run are named, the largest first."""
_CURE = "correct it, or restore the file from its repository"


@dataclass(frozen=True)
class HistoryEntry:
    """One figure of a line, in the units of ``figures.jsonl``. ``cell`` is what was measured, in words.

    ``busy`` is True if the machine was busy with other work during more than a quarter of the repeats.
    """

    measure: str
    level: str
    cell: str
    backend: str
    value: float
    low: float | None
    high: float | None
    busy: bool = False


@dataclass(frozen=True)
class Line:
    """A run with its figures. ``machine`` is the kind of its machine, ``commit`` is "" if it is not known."""

    date: str
    commit: str
    machine: str
    profile: str
    seed: int
    figures: tuple[HistoryEntry, ...]

    @property
    def run(self) -> tuple[str | int, ...]:
        """The run: reported again, it has the same ones."""
        return self.date, self.profile, self.seed, self.machine


def read_history(file: Path) -> list[Line]:
    """Return the lines of the file, the oldest run first; none if there is no file.

    Raises: ConfigError if it cannot be read.
    """
    if not file.exists():
        return []
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): {_CURE}") from error
    lines = []
    for number, line in enumerate(texts, 1):
        if line.strip():
            try:
                lines.append(from_text(Line, line, "a line"))
            except ConfigError as error:
                raise ConfigError(f"line {number} of {file} is not that of a run ({error}): {_CURE}") from error
    return lines


def with_run(
    history: Iterable[Line], figures: Figures, facts: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[Line]:
    """Return the history with the line of a run in it. Without a whole run it stays as it is."""
    lines = list(history)
    if not facts.get("whole"):
        return lines
    line = Line(
        facts["started"],
        facts.get("commit") or "",
        machine_kind(environment),
        facts["profile"],
        facts["seed"],
        tuple(_entries(figures)),
    )
    return sorted([*(each for each in lines if each.run != line.run), line], key=lambda each: each.date)


def history_text(history: Iterable[Line]) -> str:
    """Return the content of the file."""
    return "".join(f"{json.dumps(asdict(line))}\n" for line in history)


def timelines(history: Sequence[Line], environment: Mapping[str, Any]) -> list[Chart]:
    """Return a chart of speed and one of recovery, from the last runs on machines of the same kind.

    There are none with a single run.
    """
    kind = machine_kind(environment)
    runs = [line for line in history if line.machine == kind][-_RUNS_CHARTED:]
    charts = [_timeline(runs, measure) for measure in MEASURES if measure.name in _CHARTED] if len(runs) > 1 else []
    return [chart for chart in charts if chart.panels]


def others(history: Iterable[Line], environment: Mapping[str, Any]) -> int:
    """Return the number of runs on machines of other kinds."""
    return sum(line.machine != machine_kind(environment) for line in history)


def _entries(figures: Figures) -> Iterator[HistoryEntry]:
    for level in LEVELS:
        at = reference(figures["throughput"], level)
        openings = largest_state(figures["opening"], level)
        cells: dict[str, tuple[str, list[Figure]]] = {
            "throughput": (at.text if at else "", [each for each in figures["throughput"] if at and at.holds(each)]),
            "opening": (f"{text.exact(openings[0]['records'])} records in the store" if openings else "", openings),
        }
        for measure in MEASURES:
            cell, rows = cells[measure.kind]
            for row in sorted(rows, key=lambda row: str(row["backend"])):
                if row.get(measure.name) is not None and is_drawable(row[measure.name]):
                    values = (row.get(name) for name in (measure.name, *columns(measure.name)))
                    value, low, high = (None if each is None else float(f"{each:.6g}") for each in values)
                    what = measure.name, level, cell.replace("`", ""), row["backend"]
                    busy = row["busy"] > BUSY_REPEATS * row["repeats"]
                    yield HistoryEntry(*what, value or 0.0, low, high, busy)


def _timeline(runs: Sequence[Line], measure: FigureColumn) -> Chart:
    panels: dict[tuple[str, str], list[Mark]] = {}
    for line in runs:
        step = _step(line)
        for entry in line.figures:
            if entry.measure == measure.name:
                low, high = (None if end is None else end / measure.scale for end in (entry.low, entry.high))
                mark = Mark(
                    entry.backend,
                    entry.value / measure.scale,
                    low,
                    high,
                    step=step,
                    measure=step.replace("|", ", "),
                    hollow=low is None or entry.busy,
                    busy=entry.busy,
                )
                panels.setdefault((entry.level, entry.cell), []).append(mark)
    ordered = sorted(panels.items(), key=lambda item: LEVELS.index(item[0][0]) if item[0][0] in LEVELS else len(LEVELS))
    return Chart(
        f"history-{measure.name}".replace("_", "-"),
        f"{measure.words[0].upper()}{measure.words[1:]}",
        "history",
        [Panel(f"{level}, {cell}", marks, level, printed=False) for (level, cell), marks in ordered],
        f"{measure.words}, {measure.unit}" if measure.words != measure.unit else measure.unit,
        measure.unit,
        "run",
        hollow="fewer than 5 repeats, or a busy machine",
    )


def _step(line: Line) -> str:
    """Return the place of a run on the axis: its time, and the label for a tick after a bar."""
    mark = "*" if line.commit.endswith(CHANGED) else ""
    return f"{line.date}|{line.commit[:7] + mark if line.commit else line.date[:10]}"


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
