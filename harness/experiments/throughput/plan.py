"""The measurements of a profile in their order: each grid is expanded into single measurements, shuffled by a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

from harness.experiments.throughput.configuration import Measurement, Options
from harness.workloads.departures import Departures
from harness.workloads.registry import workload
from harness.workloads.workload import EventSource
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends, check_options


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid of measurements over the first ``events`` events of a workload (None: all, if it ends).

    It is every combination of the listed values. A backend that does not carry a level is left out at that level.
    ``backends`` None means all.
    """

    workload: str
    events: int | None
    partitions: int = 2
    durabilities: tuple[Durability, ...] = (Durability.CHANGELOG,)
    records_per_commit: tuple[int, ...] = (1_000,)
    repeats: int = 1
    backends: tuple[str, ...] | None = None
    options: Options = ()

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
class Batch:
    """Measurements over the same events, in the order in which they are made."""

    workload: str
    events: int | None
    partitions: int
    measurements: tuple[Measurement, ...]


def batches(sweeps: Iterable[Sweep], seed: int) -> list[Batch]:
    """Return the measurements of the grids, each once. Those over the same events are together and shuffled.

    The same grids and seed give the same order. Raises: ConfigError if there is nothing to measure.
    """
    groups: dict[tuple[str, int | None, int], dict[Measurement, None]] = {}
    for sweep in sweeps:
        group = groups.setdefault((sweep.workload, sweep.events, sweep.partitions), {})
        group.update(dict.fromkeys(_measurements(sweep, seed)))
    made = [Batch(*inputs, _shuffled(measurements, seed)) for inputs, measurements in groups.items() if measurements]
    if not made:
        raise ConfigError("nothing to measure: no backend that was asked for carries a durability that was asked for")
    return made


def _measurements(sweep: Sweep, seed: int) -> Iterable[Measurement]:
    names = tuple(backends()) if sweep.backends is None else sweep.backends
    grid = itertools.product(names, sweep.durabilities, sweep.records_per_commit, range(sweep.repeats))
    for name, durability, records_per_commit, repeat in grid:
        backend = backend_named(name)
        check_options(backend, dict(sweep.options))
        if durability in backend.durabilities:
            yield Measurement(
                backend.name,
                durability,
                sweep.workload,
                records_per_commit,
                sweep.partitions,
                repeat,
                seed,
                sweep.options,
            )


def _shuffled(measurements: Iterable[Measurement], seed: int) -> tuple[Measurement, ...]:
    # Repeats of one configuration are apart, so that a slow minute of the machine does not affect all of them.
    rounds: dict[int, list[Measurement]] = {}
    for measurement in measurements:
        rounds.setdefault(measurement.repeat, []).append(measurement)
    for repeat, members in rounds.items():
        random.Random(f"order {seed} {repeat}").shuffle(members)
    return tuple(itertools.chain.from_iterable(rounds.values()))
