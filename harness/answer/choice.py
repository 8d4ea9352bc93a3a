"""The backend to pick for each need, computed from the figures of a run alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.experiments.throughput.figures import reference
from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.levels import LEVELS


@dataclass(frozen=True)
class Choice:
    """The best backend for a need, with formatted figures; no backend if the run has no figures for it."""

    need: str
    durability: str
    backend: str = ""
    figure: str = ""
    next_best: str = ""
    remark: str = ""


def choices(figures: Figures, backends: Mapping[str, Mapping[str, Any]]) -> list[Choice]:
    """Return the best backend for each need. ``backends`` has the properties that each backend declares, by name.

    A backend that failed at a level, in a crash trial or by its end state, is not chosen there. One without isolation
    is chosen nowhere: it is the baseline, and the negative control.
    """
    isolating = {name for name, facts in backends.items() if facts["transactional"]}
    keeping = {name for name in isolating if backends[name]["persistent"]}
    low = LEVELS[0]
    usual, large, fullest = _usual(figures, low), _largest_commits(figures, low), _fullest(figures, low, keeping)
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
            f"Ready soonest after a kill{_size(fullest, 'records', 'records in the store')}",
            low,
            fullest,
            keeping,
            figures,
            _READY,
        ),
        _best("Least disk", low, usual, keeping, figures, _DISK),
    ]


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


class _Measure(NamedTuple):
    """A measure for comparing backends: the figure's name, its format, and True if more is better."""

    name: str
    shown: Callable[[float], str]
    more_is_better: bool = False


_RATE = _Measure("records_per_s", lambda rate: f"{text.count(rate)} records/s", more_is_better=True)
_LATENCY = _Measure("commit_p99_us", text.latency)
_MEMORY = _Measure("peak_memory_bytes", text.size)
_READY = _Measure("ready_s", text.duration)
_DISK = _Measure("bytes_on_disk", text.size)

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


def _fullest(figures: Figures, durability: str, candidates: set[str]) -> list[Figure]:
    """Return the opening figures of the largest state that more than one candidate was measured with."""
    by_size: dict[int, list[Figure]] = {}
    for figure in figures["opening"]:
        if figure["durability"] == durability and figure["backend"] in candidates:
            by_size.setdefault(figure["records"], []).append(figure)
    return max(by_size.items(), key=lambda item: (len(item[1]) > 1, item[0]))[1] if by_size else []


def _size(rows: Sequence[Figure], name: str, unit: str) -> str:
    return f" ({text.exact(rows[0][name])} {unit})" if rows else ""


def _best(
    need: str,
    durability: str,
    rows: Sequence[Figure],
    candidates: set[str],
    figures: Figures,
    measure: _Measure,
) -> Choice:
    out = failed(figures, durability)
    eligible = [row for row in rows if row["backend"] in candidates and row.get(measure.name) is not None]
    sign = -1 if measure.more_is_better else 1
    fit = sorted(
        (row for row in eligible if row["backend"] not in out),
        key=lambda row: (sign * row[measure.name], row["backend"]),
    )
    left_out = sorted({row["backend"] for row in eligible} & out)
    remarks = [f"left out, for a broken promise: {', '.join(left_out)}"] if left_out else []
    if not fit:
        return Choice(need, durability, remark="; ".join(remarks))
    tried = {figure["backend"] for figure in figures["crash"] if figure["durability"] == durability}
    if fit[0]["backend"] not in tried:
        remarks.append("not crashed at this level in this run")
    if measure is _RATE and len(fit) > 1 and fit[1]["records_per_s_high"] >= fit[0]["records_per_s_low"]:
        remarks.append("repeats of the two overlap")
    next_best = f"{fit[1]['backend']}, {measure.shown(fit[1][measure.name])}" if len(fit) > 1 else ""
    best = fit[0]
    return Choice(need, durability, best["backend"], measure.shown(best[measure.name]), next_best, "; ".join(remarks))
