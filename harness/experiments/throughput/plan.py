"""The trials of a profile in their order: each grid is expanded into its configurations, shuffled by a seed."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiments.throughput.measurement import Configuration, Options
from harness.report.figures import interval, repeats_of_a_narrower_interval, values
from harness.report.rows import Row
from harness.scenario import AtLeast, Grid, cut_to, full_names, raised_to, set_to, times
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.tasks import Departures, workload
from harness.workloads.workload import EventSource
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, check_options

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


@dataclass(frozen=True)
class ThroughputGrid(Grid):
    """A grid of configurations over the first ``events`` events of a workload (None: all, if it ends).

    It is every combination of the listed values, ``repeats`` times. A backend that does not carry a level is left out
    at that level. ``backends`` None means all. The events are processed again and again, as often as the fastest
    configuration of a level and commit size needs for ``work_s`` seconds. If that is 0 they are processed once.

    A scenario holds if every end state is what Spark SQL computes from the same events, and every ratio in ``at_least``
    is reached. Without ratios it is a comparison.
    """

    workload: str
    events: int | None = None
    partitions: tuple[int, ...] = (2,)
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    records_per_commit: tuple[int, ...] = (1_000,)
    repeats: int = 1
    backends: tuple[str, ...] | None = None
    options: Options = ()
    work_s: float = 0.0
    at_least: tuple[AtLeast, ...] = ()

    sizes = MappingProxyType(
        {
            SMOKE: {"events": cut_to(10_000), "repeats": cut_to(1), "at_least": set_to(())},
            NIGHT: {"events": times(10), "repeats": raised_to(5)},
        }
    )
    above_0 = ("seeds", "events", "partitions", "repeats", "records_per_commit")

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting of a wrong type, and for an unknown name; and if the events have no end."""
        super().__post_init__()
        work = workload(self.workload)
        if self.events is None and isinstance(work, EventSource) and not isinstance(work, Departures):
            raise ConfigError(f"the workload {self.workload!r} has no end of its own: say how many events")
        full_names(
            [*(self.backends or ()), *(name for each in self.at_least for name in (each.subject, each.yardstick))]
        )

    def trials(self, seed: int) -> list[ThroughputTrial]:
        """Return the measurements, those over the same events together."""
        return throughput_trials([self], seed)

    def check_events(self, log: EventLog | None) -> None:
        """Raise ConfigError if the scenario needs events of the user's own that are not given or not readable."""
        if self.workload != EVENT_LOG:
            return
        if log is None:
            raise ConfigError("this scenario needs your events: give --events PATH and --key COLUMN, or EVENTS and KEY")
        log.format()

    def missed(self, figures: Mapping[str, Any]) -> list[str]:
        """Return each ratio that is not reached."""
        return [line for claim in self.at_least for line in _missed(claim, figures["throughput"])]


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


def throughput_trials(grids: Iterable[ThroughputGrid], seed: int) -> list[ThroughputTrial]:
    """Return the configurations of the grids, each once. Those over the same events are together and shuffled.

    The same grids and seed give the same order. Raises: ConfigError if there is nothing to measure.
    """
    groups: dict[tuple[str, int | None, int, float], dict[Configuration, None]] = {}
    for grid in grids:
        for partitions in grid.partitions:
            group = groups.setdefault((grid.workload, grid.events, partitions, grid.work_s), {})
            group.update(dict.fromkeys(_configurations(grid, partitions, seed)))
    trials = [
        ThroughputTrial(workload, events, partitions, _shuffled(configurations, seed), work_s)
        for (workload, events, partitions, work_s), configurations in groups.items()
        if configurations
    ]
    if not trials:
        raise ConfigError("nothing to measure: no backend that was asked for carries a durability that was asked for")
    return trials


def _configurations(grid: ThroughputGrid, partitions: int, seed: int) -> Iterable[Configuration]:
    levels = map(Durability, grid.durabilities)
    cells = itertools.product(full_names(grid.backends), levels, grid.records_per_commit, range(grid.repeats))
    for name, durability, records_per_commit, repeat in cells:
        backend = backend_named(name)
        check_options(backend, dict(grid.options))
        if durability in backend.durabilities:
            yield Configuration(
                backend.name,
                durability,
                grid.workload,
                records_per_commit,
                partitions,
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


def _missed(claim: AtLeast, figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each place where the subject is slower than claimed, or that nothing could be compared.

    The medians of the repeats count.
    """

    def rates(backend: str) -> dict[tuple[Any, ...], float]:
        same = ("workload", "durability", "partitions", "records_per_commit")
        return {
            tuple(each[name] for name in same): each["records_per_s"] for each in figures if each["backend"] == backend
        }

    subject, yardstick = rates(claim.subject), rates(claim.yardstick)
    shared = sorted(subject.keys() & yardstick.keys())
    if not shared:
        return [f"{claim.subject} was never measured beside {claim.yardstick}"]
    return [
        f"{claim.subject} reaches {subject[place] / yardstick[place]:.2f} of {claim.yardstick}, not {claim.ratio:g}"
        f", with {place[-1]:,} records per commit at level {place[1]}, in the medians of their repeats"
        for place in shared
        if subject[place] < claim.ratio * yardstick[place]
    ]


_EACH = tuple(map(str, Durability))
_PICKS = (
    ThroughputGrid("count", 60_000, records_per_commit=(1_000, 10_000), repeats=5, work_s=2.0),
    ThroughputGrid("count", 60_000, durabilities=_EACH[1:], repeats=5, work_s=2.0),
)
"""The measurements that picks rest on. They come first, and as one: none of them may be measured in another way."""
SIZES: Mapping[str, tuple[ThroughputGrid, ...]] = MappingProxyType(
    {
        SMOKE: (
            ThroughputGrid("flights", 10_000),
            ThroughputGrid("flights_by_hour", 4_000),
            ThroughputGrid("aircraft_sessions", 4_000),
            ThroughputGrid("count", 10_000),
        ),
        DEFAULT: (
            *_PICKS,
            ThroughputGrid("flights"),
            ThroughputGrid("flights_by_hour", 20_000),
            ThroughputGrid("aircraft_sessions", 20_000),
            ThroughputGrid("count", 60_000, records_per_commit=(100,)),
        ),
        NIGHT: (
            *_PICKS,
            ThroughputGrid("flights", durabilities=_EACH, records_per_commit=(100, 1_000, 10_000), repeats=5),
            ThroughputGrid("flights_by_hour", durabilities=_EACH),
            ThroughputGrid("aircraft_sessions", durabilities=_EACH),
            ThroughputGrid("flights", partitions=(1, 4), repeats=5),
            ThroughputGrid("count", 1_000_000, durabilities=_EACH, records_per_commit=(100, 100_000), repeats=5),
            ThroughputGrid("count", 1_000_000, durabilities=_EACH[1:], records_per_commit=(10_000,), repeats=5),
        ),
    }
)
"""The measurements of a profile, which take from about half a minute to hours on two cores."""
EVENT_LOG_REPEATS: Mapping[str, int] = MappingProxyType({SMOKE: 1, DEFAULT: 3, NIGHT: 5})
"""The repeats over a user's own events."""


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
        repeats_by_cell = (
            Counter(replace(each, repeat=0) for each in trial.configurations) if trial.work_s else Counter()
        )
        rows_by_cell = {cell: [row for row in rows if _is_of(row, cell)] for cell in repeats_by_cell}
        if any(len(rows_by_cell[cell]) < repeats for cell, repeats in repeats_by_cell.items()):
            return None
        more_by_cell = _widest(rows_by_cell, (remaining_s - TRIAL_S) / trial.measurement_s)
        if more_by_cell:
            configurations = _in_turns(
                more_by_cell, {cell: len(rows_by_cell[cell]) for cell in more_by_cell}, trial.seed
            )
            laps = tuple(rows_by_cell[replace(each, repeat=0)][0]["laps"] for each in configurations)
            return replace(trial, configurations=configurations, laps=laps)
    return None


def relative_width(repeats: Sequence[float]) -> float:
    """Return the width of the interval of a median as a share of the median; 0 if there is none."""
    ends = interval(repeats)
    return (ends.high - ends.low) / ends.median if ends and ends.median else 0.0


def _widest(found: Mapping[Configuration, Sequence[Row]], measurements: float) -> dict[Configuration, int]:
    """Return the further repeats of the cells with the widest intervals, as many as fit into ``measurements``."""
    widths = {cell: relative_width(values(group, _FIGURE)) for cell, group in found.items()}
    more_by_cell: dict[Configuration, int] = {}
    for cell in sorted(widths, key=lambda each: -widths[each]):
        count = len(found[cell])
        more = repeats_of_a_narrower_interval(count) - count
        if widths[cell] < NARROW or len(more_by_cell) == CELLS or more > measurements:
            break
        more_by_cell[cell] = more
        measurements -= more
    return more_by_cell


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
