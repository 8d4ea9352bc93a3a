"""The trials of a profile in their order: each grid is expanded into its configurations, shuffled by a seed."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.experiments.throughput.partition_work import Configuration, Options
from harness.report.figures import interval, repeats_of_a_narrower_interval, values
from harness.report.rows import Row
from harness.workloads.flights import Departures
from harness.workloads.registry import workload
from harness.workloads.workload import EventSource
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends, check_options

MEASUREMENT_S = 2.0
"""Seconds of a measurement beside its work: processes start, events are read, the store is opened again, and slower
backends take longer than the fastest one."""
RECORDS_PER_S = 100_000
"""The rate of a slow backend, where events are processed once."""
EVENTS_OF_A_DATA_SET = 340_000
TRIAL_S = 10.0
"""Seconds of a trial before its first measurement ends: Spark makes the events. With less time none begins."""
PICKS_SHARE = 0.9
"""The part of the time that belongs to measurements that picks rest on."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of configurations over the first ``events`` events of a workload (None: all, if it ends).

    It is every combination of the listed values. A backend that does not carry a level is left out at that level.
    ``backends`` None means all. The events are processed again and again, as often as the fastest configuration of a
    level and commit size needs for ``work_s`` seconds. If that is 0 they are processed once.
    """

    workload: str
    events: int | None
    partitions: int = 2
    durabilities: tuple[Durability, ...] = (Durability.CHANGELOG,)
    records_per_commit: tuple[int, ...] = (1_000,)
    repeats: int = 1
    backends: tuple[str, ...] | None = None
    options: Options = ()
    work_s: float = 0.0

    def __post_init__(self) -> None:
        chosen = workload(self.workload)
        if self.events is None and isinstance(chosen, EventSource) and not isinstance(chosen, Departures):
            raise ConfigError(f"the workload {self.workload!r} has no end of its own: say how many events")
        for name in self.backends or ():
            backend_named(name)
        events = 1 if self.events is None else self.events
        counts = (events, self.partitions, self.repeats, *self.records_per_commit)
        if min(counts) < 1:
            raise ConfigError(f"partitions, repeats, events and records per commit count from 1, not {min(counts)}")


@dataclass(frozen=True, slots=True)
class ThroughputTrial:
    """Measurements over the same events, in the order in which they are made.

    Picks rest on it if ``work_s`` is above 0. ``laps`` says for each configuration how often it processes the
    events; if it is empty, a first pass finds that.
    """

    workload: str
    events: int | None
    partitions: int
    configurations: tuple[Configuration, ...]
    work_s: float = 0.0
    laps: tuple[int, ...] = ()

    @property
    def seed(self) -> int:
        """The seed of its events, which all configurations have."""
        return self.configurations[0].seed

    @property
    def measurement_s(self) -> float:
        """The seconds of one of its measurements, roughly, on two idle cores."""
        return MEASUREMENT_S + (self.work_s or (self.events or EVENTS_OF_A_DATA_SET) / RECORDS_PER_S)

    @property
    def cost_s(self) -> float:
        """Its seconds, roughly, on two idle cores."""
        return TRIAL_S + len(self.configurations) * self.measurement_s


def shares(trials: Sequence[ThroughputTrial]) -> list[float]:
    """Return the part of the time that each trial gets: those that picks rest on have most of it, whatever their cost.

    The others get the rest, and the time that these leave over.
    """
    costs: dict[bool, float] = {}
    for trial in trials:
        costs[trial.work_s > 0] = costs.get(trial.work_s > 0, 0.0) + trial.cost_s
    parts = {True: PICKS_SHARE, False: 1 - PICKS_SHARE}
    return [parts[trial.work_s > 0] * trial.cost_s / costs[trial.work_s > 0] for trial in trials]


def throughput_trials(grids: Iterable[Grid], seed: int) -> list[ThroughputTrial]:
    """Return the configurations of the grids, each once. Those over the same events are together and shuffled.

    The same grids and seed give the same order. Raises: ConfigError if there is nothing to measure.
    """
    groups: dict[tuple[str, int | None, int, float], dict[Configuration, None]] = {}
    for grid in grids:
        group = groups.setdefault((grid.workload, grid.events, grid.partitions, grid.work_s), {})
        group.update(dict.fromkeys(_configurations(grid, seed)))
    made = [
        ThroughputTrial(workload, events, partitions, _shuffled(configurations, seed), work_s)
        for (workload, events, partitions, work_s), configurations in groups.items()
        if configurations
    ]
    if not made:
        raise ConfigError("nothing to measure: no backend that was asked for carries a durability that was asked for")
    return made


def _configurations(grid: Grid, seed: int) -> Iterable[Configuration]:
    names = tuple(backends()) if grid.backends is None else grid.backends
    cells = itertools.product(names, grid.durabilities, grid.records_per_commit, range(grid.repeats))
    for name, durability, records_per_commit, repeat in cells:
        backend = backend_named(name)
        check_options(backend, dict(grid.options))
        if durability in backend.durabilities:
            yield Configuration(
                backend.name,
                durability,
                grid.workload,
                records_per_commit,
                grid.partitions,
                repeat,
                seed,
                grid.options,
            )


def _shuffled(configurations: Iterable[Configuration], seed: int) -> tuple[Configuration, ...]:
    # Levels are never compared. One after the other, so that a short budget completes the repeats of the first ones.
    # Repeats of one configuration are apart, so that a slow minute of the machine does not affect all of them.
    rounds: dict[tuple[str, int, int], list[Configuration]] = {}
    for each in configurations:
        rounds.setdefault((str(each.durability), each.records_per_commit, each.repeat), []).append(each)
    for (_, _, repeat), members in rounds.items():
        random.Random(f"order {seed} {repeat}").shuffle(members)
    cells = dict.fromkeys(key[:2] for key in rounds)
    return tuple(each for cell in cells for key, members in rounds.items() if key[:2] == cell for each in members)


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
