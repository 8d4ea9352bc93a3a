"""Further measurements for the widest intervals, when every cell that a pick rests on has its planned repeats."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.experiments.throughput.configuration import Configuration
from harness.experiments.throughput.plan import TRIAL_S, ThroughputTrial
from harness.report.figures import values
from harness.report.interval import interval, repeats_of_a_narrower_interval
from harness.report.rows import Row

CELLS = 4
"""The largest number of cells that a round repeats. They take turns, so that a slow minute affects all of them."""
NARROW = 0.02
"""An interval is narrow enough below this share of its median."""
_FIGURE = "records_per_s"


def narrowing_trial(
    trials: Sequence[ThroughputTrial], rows: Sequence[Row], remaining_s: float
) -> ThroughputTrial | None:
    """Return the measurements that can narrow the widest intervals of records per second in ``remaining_s`` seconds.

    Each cell gets so many repeats that its interval can become narrower, with as many records as in its earlier ones.
    Return None if a planned repeat is missing, if all intervals are narrow, or if there is no time for a cell.
    """
    for trial in trials:
        planned = Counter(replace(each, repeat=0) for each in trial.configurations) if trial.work_s else Counter()
        found = {cell: [row for row in rows if _is_of(row, cell)] for cell in planned}
        if any(len(found[cell]) < repeats for cell, repeats in planned.items()):
            return None
        chosen = _widest(found, (remaining_s - TRIAL_S) / trial.measurement_s)
        if chosen:
            configurations = _in_turns(chosen, {cell: len(found[cell]) for cell in chosen}, trial.seed)
            laps = tuple(found[replace(each, repeat=0)][0]["laps"] for each in configurations)
            return replace(trial, configurations=configurations, laps=laps)
    return None


def relative_width(repeats: Sequence[float]) -> float:
    """Return the width of the interval of a median as a share of the median; 0 if there is none."""
    found = interval(repeats)
    return (found.high - found.low) / found.median if found and found.median else 0.0


def _widest(found: Mapping[Configuration, Sequence[Row]], measurements: float) -> dict[Configuration, int]:
    """Return the further repeats of the cells with the widest intervals, as many as fit into ``measurements``."""
    widths = {cell: relative_width(values(group, _FIGURE)) for cell, group in found.items()}
    chosen: dict[Configuration, int] = {}
    for cell in sorted(widths, key=lambda each: -widths[each]):
        count = len(found[cell])
        more = repeats_of_a_narrower_interval(count) - count
        if widths[cell] < NARROW or len(chosen) == CELLS or more > measurements:
            break
        chosen[cell] = more
        measurements -= more
    return chosen


def _in_turns(
    more: Mapping[Configuration, int], repeats: Mapping[Configuration, int], seed: int
) -> tuple[Configuration, ...]:
    turns: list[Configuration] = []
    for turn in range(max(more.values())):
        members = [replace(cell, repeat=repeats[cell] + turn) for cell in more if turn < more[cell]]
        random.Random(f"turn {seed} {turn} {sum(repeats.values())}").shuffle(members)
        turns += members
    return tuple(turns)


def _is_of(row: Mapping[str, Any], cell: Configuration) -> bool:
    return all(row[name] == getattr(cell, name) for name in _KEY) and row["durability"] == str(cell.durability)


_KEY = ("backend", "workload", "records_per_commit", "partitions")
