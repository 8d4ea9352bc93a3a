"""The trials of a profile in their order: each grid is expanded into its configurations, shuffled by a seed."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiments.needs import RivalCell
from harness.experiments.throughput.measurement import Configuration, Options
from harness.report.rows import Row
from harness.scenario import AtLeast, Grid, cut_to, full_names, raised_to, set_to, times
from harness.workloads.batches import SUFFIX
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.nexmark_queries import QUERIES
from harness.workloads.tasks import Departures, workload
from harness.workloads.workload import EventSource
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, check_options

WORK_S = 1.0
"""Seconds of work of the fastest backend in a measurement that picks rest on."""
MEASUREMENT_S = 1.5
"""Seconds of a measurement beside its work: events are read, the store is opened again, and slower backends take longer
than the fastest one."""
RECORDS_PER_S = 100_000
"""The rate of a slow backend, where events are processed once."""
EVENTS_OF_A_DATA_SET = 340_000
TRIAL_S = 8.0
"""Seconds of a trial before its first measurement ends: Spark makes the events. With less time none begins."""


@dataclass(frozen=True)
class ThroughputGrid(Grid):
    """A grid of configurations over the first ``events`` events of a workload (None: all, if it ends).

    It is every combination of the listed values, ``repeats`` times. A backend that does not carry a level is left out
    at that level. ``backends`` None means all. In rounds of a bench the events are processed again and again, as often
    as the fastest configuration of a level and commit size needs for ``work_s`` seconds. If that is 0 they are
    processed once.

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
    both_forms: bool = False
    """True to measure the workload's batch form as well, and to compare the two (``batch_ratios``)."""

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
        if self.both_forms:
            workload(self.workload + SUFFIX)

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
        """Return each ratio that is not reached: of backends, and of batches and single records."""
        missed = [line for claim in self.at_least for line in _missed(claim, figures["throughput"])]
        return [*missed, *super().missed(figures)] if self.both_forms else missed


@dataclass(frozen=True, slots=True)
class ThroughputTrial:
    """Measurements over the same events, in the order in which they are made.

    Picks rest on it if ``work_s`` is above 0: a bench measures it in ``Rounds``. ``laps`` says for each configuration
    how often it processes the events; if it is empty, they are processed once.
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


def throughput_trials(grids: Iterable[ThroughputGrid], seed: int) -> list[ThroughputTrial]:
    """Return the configurations of the grids, each once. Those over the same events are together and shuffled.

    The same grids and seed give the same order. Raises: ConfigError if there is nothing to measure.
    """
    groups: dict[tuple[str, int | None, int, float], dict[Configuration, None]] = {}
    of_one_form = (form for grid in grids for form in _forms(grid))
    for grid in of_one_form:
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


def _forms(grid: ThroughputGrid) -> list[ThroughputGrid]:
    if not grid.both_forms:
        return [grid]
    return [replace(grid, workload=name, both_forms=False) for name in (grid.workload, grid.workload + SUFFIX)]


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
    ThroughputGrid("count", 60_000, durabilities=_EACH, repeats=5, work_s=WORK_S),
    ThroughputGrid("count", 60_000, records_per_commit=(10_000,), repeats=5, work_s=WORK_S),
)
"""The measurements that picks rest on. They come first, and as one: none of them may be measured in another way."""


def _both_forms(backends: tuple[str, ...], repeats: int) -> Iterable[ThroughputGrid]:
    """Yield grids with one partition, so that no other cell has these measurements."""
    for name, sizes in (
        ("count", (1_000, 10_000)),
        *((name, (1_000,)) for name in ("flights", "flights_by_hour", "aircraft_sessions")),
    ):
        yield ThroughputGrid(
            name,
            40_000,
            partitions=(1,),
            records_per_commit=sizes,
            repeats=repeats,
            backends=backends,
            both_forms=True,
        )


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
            ThroughputGrid("nexmark_q4", 30_000),
            ThroughputGrid("flights"),
            ThroughputGrid("flights_by_hour", 20_000),
            ThroughputGrid("aircraft_sessions", 20_000),
            ThroughputGrid("count", 60_000, records_per_commit=(100,)),
            *_both_forms(("rocksdb",), repeats=3),
            ThroughputGrid("count", 40_000, partitions=(1,), both_forms=True),
        ),
        NIGHT: (
            *_PICKS,
            ThroughputGrid("flights", durabilities=_EACH, records_per_commit=(100, 1_000, 10_000), repeats=5),
            ThroughputGrid("flights_by_hour", durabilities=_EACH),
            ThroughputGrid("aircraft_sessions", durabilities=_EACH),
            ThroughputGrid("flights", partitions=(1, 4), repeats=5),
            ThroughputGrid("count", 1_000_000, durabilities=_EACH, records_per_commit=(100, 100_000), repeats=5),
            ThroughputGrid("count", 1_000_000, durabilities=_EACH[1:], records_per_commit=(10_000,), repeats=5),
            *(ThroughputGrid(query.name, 60_000, repeats=3) for query in QUERIES),
            *_both_forms(("rocksdb", "lmdb", "sqlite"), repeats=5),
            *(ThroughputGrid(query.name + SUFFIX, 60_000, repeats=3) for query in QUERIES),
        ),
    }
)
"""The measurements of a profile, which take from about half a minute to hours on two cores."""
_OWN_EVENTS = ThroughputGrid(EVENT_LOG, records_per_commit=(100, 1_000, 10_000), repeats=5, work_s=WORK_S)
EVENT_LOG_SIZES: Mapping[str, ThroughputGrid] = MappingProxyType(
    {SMOKE: replace(_OWN_EVENTS, repeats=1, work_s=0.0), DEFAULT: _OWN_EVENTS, NIGHT: _OWN_EVENTS}
)
"""The measurements over a user's own events. Those of ``smoke`` are a glance: no pick rests on them."""


class Rounds:
    """The rounds of the trial that picks rest on, as far as ``rows`` has their results.

    The first one is short: it processes the events once. From its rates follows how often later rounds process them,
    so that the fastest backend of each level and commit size works for ``work_s`` seconds. Within a round all backends
    of a cell process the same records.
    """

    def __init__(self, trial: ThroughputTrial, rows: Sequence[Row]) -> None:
        self._trial = trial
        self.cells = tuple(dict.fromkeys(replace(each, repeat=0) for each in trial.configurations))
        self.planned = 1 + max(each.repeat for each in trial.configurations)
        """The number of repeats of each cell in the plan."""
        self._rows = [row for row in rows if any(_is_of(row, cell) for cell in self.cells)]
        self.made = 1 + max((row["repeat"] for row in self._rows), default=-1)
        """The number of rounds so far."""

    def round(self, number: int, cells: Iterable[Configuration] | None = None) -> ThroughputTrial:
        """Return the measurements of round ``number``, with all cells or some of them, in an order of its own.

        Rivals, which are the backends of a level and commit size, follow each other: a slow minute of the machine
        affects all of them. In the first round the levels are in the order of the plan, for runs that it is cut in.
        """
        order = random.Random(f"round {self._trial.seed} {number}")
        rivals: dict[tuple[str, int], list[Configuration]] = {}
        for cell in cells or self.cells:
            rivals.setdefault(_level_and_size(cell), []).append(replace(cell, repeat=number))
        groups = list(rivals.values())
        if number:
            order.shuffle(groups)
        for group in groups:
            order.shuffle(group)
        configurations = tuple(each for group in groups for each in group)
        return replace(self._trial, configurations=configurations, laps=tuple(map(self._laps, configurations)))

    def next(self, open_cells: Collection[RivalCell], remaining_s: float) -> ThroughputTrial | None:
        """Return the next round, of the cells that are open or have no result yet; None if there are none.

        The first two rounds have all cells: as long as one of them has the short round alone, that round counts for its
        rivals as well. Without an end (infinite ``remaining_s``) all planned rounds have all cells. Later rounds have
        what fits into ``remaining_s``.
        """
        if math.isinf(remaining_s):
            return self.round(self.made) if self.made < self.planned else None
        if self.made < _WHOLE_ROUNDS:
            return self.round(self.made)
        unmeasured = [cell for cell in self.cells if not any(_is_of(row, cell) for row in self._rows)]
        cells = [cell for cell in self.cells if cell in unmeasured or _rival(cell) in open_cells]
        fitting = self._fitting(cells, remaining_s)
        return self.round(self.made, fitting) if fitting else None

    def _fitting(self, cells: Iterable[Configuration], remaining_s: float) -> list[Configuration]:
        """Return those cells of which all rivals can be measured in the time, from the fewest rivals on.

        A round that is cut has no pairs for the rivals that it lacks.
        """
        rivals: dict[tuple[str, int], list[Configuration]] = {}
        for cell in cells:
            rivals.setdefault(_level_and_size(cell), []).append(cell)
        fitting: list[Configuration] = []
        for group in sorted(rivals.values(), key=len):
            remaining_s -= sum(map(self._took_s, group))
            if remaining_s < 0:
                break
            fitting += group
        return fitting

    def _took_s(self, cell: Configuration) -> float:
        """Return the time that the last measurement of a cell took; 0 if there is none."""
        return next((row.get("took_s") or 0.0 for row in reversed(self._rows) if _is_of(row, cell)), 0.0)

    def missing(self) -> list[ThroughputTrial]:
        """Return the rounds of all cells that the plan has besides those so far."""
        return [self.round(number) for number in range(self.made, self.planned)]

    def _laps(self, configuration: Configuration) -> int:
        alike = [
            row
            for row in self._rows
            if (row["durability"], row["records_per_commit"]) == _level_and_size(configuration)
        ]
        first = min((row["repeat"] for row in alike), default=0)
        # The first lap begins with the warm-up, which does not count.
        laps_s = [row["seconds"] / (row["laps"] - _WARM_UP) for row in alike if row["repeat"] == first]
        return math.ceil(self._trial.work_s / min(laps_s) + _WARM_UP) if laps_s and min(laps_s) > 0 else 1


_WHOLE_ROUNDS = 2
_WARM_UP = 0.1
"""The part of the first lap that is a warm-up, of a short log."""


def _level_and_size(cell: Configuration) -> tuple[str, int]:
    return str(cell.durability), cell.records_per_commit


def _rival(cell: Configuration) -> RivalCell:
    return RivalCell(cell.backend, str(cell.durability), cell.workload, cell.records_per_commit)


def answering(trials: Iterable[ThroughputTrial]) -> ThroughputTrial | None:
    """Return the trial that picks rest on; None if there is none."""
    return next((trial for trial in trials if trial.work_s), None)


def tried(trial: ThroughputTrial, rows: Sequence[Row]) -> int:
    """Return how many of the measurements of ``trial`` were made, according to ``rows``, in whatever rounds."""
    planned = Counter(replace(each, repeat=0) for each in trial.configurations)
    return sum(min(repeats, sum(_is_of(row, cell) for row in rows)) for cell, repeats in planned.items())


def _is_of(row: Mapping[str, Any], cell: Configuration) -> bool:
    return all(row[name] == getattr(cell, name) for name in _KEY) and row["durability"] == str(cell.durability)


_KEY = ("backend", "workload", "records_per_commit", "partitions")
