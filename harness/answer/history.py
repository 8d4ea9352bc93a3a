"""The history of whole runs: a file with a line for each, and its charts.

A line has the figures that represent each level, with their intervals. Only whole runs have one. The report of a run
that has a line already replaces that line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.answer.choice import is_too_busy
from harness.experiments.opening.report import READY_AFTER_A_KILL, largest_state
from harness.experiments.throughput.figures import reference
from harness.report import text
from harness.report.charts import Chart, Mark, Panel, is_drawable
from harness.report.environment import CHANGED, machine_kind
from harness.report.figures import Figure, Figures, columns
from harness.report.text import LEVELS
from stores.errors import ConfigError

HISTORY_FILE = "history.jsonl"
_SAME_RUN = ("date", "profile", "seed", "machine")
_TYPES = {"date": str, "commit": str, "profile": str, "seed": int, "machine": str}
_CURE = "correct it, or restore the file from its repository"
Line = dict[str, Any]


@dataclass(frozen=True)
class _Entry:
    """One figure of a line, in the units of ``figures.jsonl``. ``cell`` is what was measured, in words.

    ``busy`` is True if the machine was busy with other work during so many repeats that no pick may rest on it.
    """

    measure: str
    level: str
    cell: str
    backend: str
    value: float
    low: float | None
    high: float | None
    busy: bool = False


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
                lines.append(_read_line(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise ConfigError(f"line {number} of {file} is not that of a run ({reason}): {_CURE}") from error
    return lines


def _read_line(text_: str) -> Line:
    line = json.loads(text_)
    if not isinstance(line, dict):
        raise TypeError("it is no JSON object")
    for name, type_ in _TYPES.items():
        if not isinstance(line[name], type_):
            raise TypeError(f"its {name} is {line[name]!r}")
    for entry in line["figures"]:
        made = _Entry(**entry)
        numbers = [made.value, *(end for end in (made.low, made.high) if end is not None)]
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"{made.measure} of {made.backend} is no number")
        if not all(isinstance(word, str) for word in (made.measure, made.level, made.cell, made.backend)):
            raise TypeError("a figure has no text for its measure, level, cell or backend")
    return line


def with_run(
    history: Iterable[Line], figures: Figures, facts: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[Line]:
    """Return the history with the line of a run in it. Without a whole run it stays as it is."""
    known = list(history)
    if not facts.get("whole"):
        return known
    line: Line = {
        "date": facts["started"],
        "commit": facts.get("commit") or "",
        "machine": machine_kind(environment),
        "profile": facts["profile"],
        "seed": facts["seed"],
        "figures": [asdict(entry) for entry in _entries(figures)],
    }
    others = [each for each in known if any(each[name] != line[name] for name in _SAME_RUN)]
    return sorted([*others, line], key=lambda each: str(each["date"]))


def history_text(history: Iterable[Line]) -> str:
    """Return the content of the file."""
    return "".join(f"{json.dumps(line)}\n" for line in history)


def timelines(history: Sequence[Line], environment: Mapping[str, Any]) -> list[Chart]:
    """Return a chart of each measure, from the runs on machines of the same kind."""
    kind = machine_kind(environment)
    runs = [line for line in history if line["machine"] == kind]
    charts = [_timeline(runs, measure) for measure in MEASURES]
    return [chart for chart in charts if chart.panels]


def others(history: Iterable[Line], environment: Mapping[str, Any]) -> int:
    """Return the number of runs on machines of other kinds."""
    return sum(line["machine"] != machine_kind(environment) for line in history)


def _entries(figures: Figures) -> Iterator[_Entry]:
    for level in LEVELS:
        at = reference(figures["throughput"], level)
        opened = largest_state(figures["opening"], level)
        cells: dict[str, tuple[str, list[Figure]]] = {
            "throughput": (at.text if at else "", [each for each in figures["throughput"] if at and at.holds(each)]),
            "opening": (f"{text.exact(opened[0]['records'])} records in the store" if opened else "", opened),
        }
        for measure in MEASURES:
            cell, rows = cells[measure.kind]
            for row in sorted(rows, key=lambda row: str(row["backend"])):
                if row.get(measure.name) is not None and is_drawable(row[measure.name]):
                    values = (row.get(name) for name in (measure.name, *columns(measure.name)))
                    value, low, high = (None if each is None else float(f"{each:.6g}") for each in values)
                    what = measure.name, level, cell.replace("`", ""), row["backend"]
                    yield _Entry(*what, value or 0.0, low, high, is_too_busy([row]))


def _timeline(runs: Sequence[Line], measure: HistoryColumn) -> Chart:
    panels: dict[tuple[str, str], list[Mark]] = {}
    for line in runs:
        step = _step(line)
        for entry in (_Entry(**each) for each in line["figures"]):
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
    commit, date = str(line["commit"]), str(line["date"])
    changed = "*" if commit.endswith(CHANGED) else ""
    return f"{date}|{commit[:7] + changed if commit else date[:10]}"


@dataclass(frozen=True)
class HistoryColumn:
    """A column of a kind of rows and figures. ``same_work`` is True if it depends on the number of records."""

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


MEASURES = (
    HistoryColumn(
        "throughput", "records_per_s", "records/s", text.count, more_is_better=True, is_time=True, unit="records/s"
    ),
    HistoryColumn("throughput", "commit_p99_us", "commit, p99", text.latency, is_time=True, unit="ms", scale=1e3),
    HistoryColumn(
        "throughput", "peak_memory_bytes", "peak memory", text.size, same_work=True, unit="MiB", scale=2.0**20
    ),
    HistoryColumn("throughput", "bytes_on_disk", "on disk", text.size, same_work=True, unit="MiB", scale=2.0**20),
    HistoryColumn("opening", "ready_s", READY_AFTER_A_KILL, text.duration, is_time=True, unit="ms", scale=1e-3),
)
