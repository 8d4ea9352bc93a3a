"""The scenarios that measure: claims about throughput, tasks over Kafka, restarts, and stores of many records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.experiment import Failure, Figure, Figures
from harness.experiments.crash.trial import DURABILITIES
from harness.experiments.kafka.trial import READY_S, RECORDS, KafkaTrial, RestartTrial
from harness.experiments.scale.scale import ScaleTrial
from harness.experiments.throughput.plan import Grid, ThroughputTrial, throughput_trials
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.suggestion import check_known
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends


@dataclass(frozen=True)
class AtLeast:
    """``subject`` processes at least ``ratio`` times as many records per second as ``yardstick``, with all else equal.

    The medians of their repeats are compared.
    """

    subject: str
    yardstick: str
    ratio: float


@dataclass(frozen=True)
class ThroughputScenario(Scenario):
    """A claim about throughput, or only a comparison: every combination of the lists is measured ``repeats`` times.

    It holds if every end state is what Spark SQL computes from the same events, and every ratio in ``at_least`` is
    reached.
    ``events`` is their number (None: all), and ``backends`` None means all.
    """

    experiment = "throughput"
    workload: str
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    records_per_commit: tuple[int, ...] = (1_000,)
    partitions: tuple[int, ...] = (2,)
    repeats: int = 1
    events: int | None = None
    at_least: tuple[AtLeast, ...] = ()

    def plan(self, seed: int) -> list[ThroughputTrial]:
        """Return the measurements, those over the same events together. Raises: ConfigError for an unknown name."""
        self.check_types()
        for name in (
            *(self.backends or ()),
            *(name for claim in self.at_least for name in (claim.subject, claim.yardstick)),
        ):
            backend_named(name)
        check_known("durability", DURABILITIES, *self.durabilities)
        grid = Grid(
            self.workload,
            self.events,
            durabilities=tuple(Durability(level) for level in self.durabilities),
            records_per_commit=self.records_per_commit,
            repeats=self.repeats,
            backends=self.backends,
        )
        return throughput_trials([replace(grid, partitions=number) for number in self.partitions], seed)

    def at_scale(self, scale: Scale) -> ThroughputScenario:
        """Return the scenario with the events and repeats of a profile, and with its ratios if it checks them."""
        events = self.events and scale.events_times * self.events
        if scale.events_max is not None:
            events = min(events or scale.events_max, scale.events_max)
        repeats = scale.repeats_max or max(scale.repeats_min, self.repeats)
        return replace(self, events=events, repeats=repeats, at_least=self.at_least if scale.checks_ratios else ())

    def check_events(self, log: EventLog | None) -> None:
        """Raise ConfigError if the scenario needs events of the user's own that are not given or not readable."""
        if self.workload != EVENT_LOG:
            return
        if log is None:
            raise ConfigError("this scenario needs your events: give --events PATH and --key COLUMN, or EVENTS and KEY")
        log.format()

    def missed(self, figures: Figures) -> list[Failure]:
        """Return each ratio that is not reached."""
        return [Failure(line) for wanted in self.at_least for line in _missed(wanted, figures["throughput"])]


@dataclass(frozen=True)
class KafkaScenario(Scenario):
    """Tasks over a real broker, a bare loop and Kafka Streams process the same topic in turns, and end alike.

    ``work`` are workloads, each with a number of partitions. It holds if the end states are the same, and no ratio of
    the default backend misses its threshold. A run of fewer than five rounds, or on a busy machine, decides no ratio.
    """

    experiment = "kafka"
    work: tuple[tuple[str, int], ...] = (("count", 1), ("count", 2), ("flights", 1))
    events: int = 300_000
    commit_intervals_ms: tuple[int, ...] = (100, 1_000, 30_000)
    backends: tuple[str, ...] = (StoreConfig().backend,)
    repeats: int = 5

    def plan(self, seed: int) -> list[KafkaTrial]:
        """Return a trial for each workload. Raises: ConfigError for an unknown name, and if there is nothing to do."""
        if not self.work:
            raise ConfigError("this scenario has nothing to do: it has no workloads")
        return [
            KafkaTrial(name, partitions, seed, self.events, self.commit_intervals_ms, self.backends, self.repeats)
            for name, partitions in self.work
        ]

    def at_scale(self, scale: Scale) -> KafkaScenario:
        """Return the scenario with the number of events and of repeats of a profile."""
        events = self.events * scale.events_times if scale.events_max is None else min(self.events, scale.events_max)
        repeats = self.repeats if scale.repeats_max is None else min(self.repeats, scale.repeats_max)
        return replace(self, events=events, repeats=max(repeats, scale.repeats_min))

    def missed(self, figures: Figures) -> list[Failure]:
        """Return each ratio that misses its threshold."""
        return [
            Failure(
                f"{figure['claim']}: {figure['subject']} has {figure['ratio']:.2f} of the speed of "
                f"{figure['yardstick']}, not {figure['at_least']:g}"
            )
            for figure in figures["ratio"]
            if figure["met"] is False
        ]


@dataclass(frozen=True)
class KafkaRestartScenario(Scenario):
    """A worker with many records in its store is killed and started again, beside an instance of Kafka Streams.

    It holds if no ratio misses its threshold. A run of fewer than five rounds, on a busy machine, or with fewer records
    than are promised, decides none.
    """

    experiment = "kafka-restart"
    records: int = RECORDS
    backend: str = StoreConfig().backend
    repeats: int = 5

    def plan(self, seed: int) -> list[RestartTrial]:
        """Return the trial. Raises: ConfigError for an unknown backend, and for a number that counts nothing."""
        return [RestartTrial(self.records, seed, self.repeats, self.backend)]

    def at_scale(self, scale: Scale) -> KafkaRestartScenario:
        """Return the scenario with the number of records and of repeats of a profile."""
        # A night has the promised number already.
        records = self.records if scale.events_max is None else min(self.records, scale.events_max)
        repeats = self.repeats if scale.repeats_max is None else min(self.repeats, scale.repeats_max)
        return replace(self, records=records, repeats=max(repeats, scale.repeats_min))

    def missed(self, figures: Figures) -> list[Failure]:
        """Return each time that is longer than promised."""
        return [
            Failure(f"{figure['claim']}: {figure['subject']} needs {READY_S / figure['ratio']:.2f} s, not {READY_S:g}")
            for figure in figures["ratio"]
            if figure["met"] is False
        ]


@dataclass(frozen=True)
class ScaleScenario(Scenario):
    """Stores of ``records`` show what was put, in order, also when they are opened again or restored.

    ``backends`` None means all that have files. Those of ``large_backends`` also have the sizes ``large_records``,
    which the profile night replaces by ``night_records``. They are also filled with ``limited_records`` records of
    ``limited_value_bytes`` by processes that can have ``memory_max_bytes`` of memory (0: without this).
    """

    experiment = "scale"
    records: tuple[int, ...] = (1_000_000,)
    backends: tuple[str, ...] | None = None
    value_bytes: int = 100
    large_backends: tuple[str, ...] = ()
    large_records: tuple[int, ...] = ()
    limited_records: int = 0
    limited_value_bytes: int = 4_000
    memory_max_bytes: int = 0
    night_records: tuple[int, ...] = ()

    def plan(self, seed: int) -> list[ScaleTrial]:
        """Return every trial. Raises: ConfigError for an unknown name, and for a senseless size."""
        self._check()
        known = backends()
        names = [name for name, each in known.items() if each.persistent] if self.backends is None else self.backends
        chosen = list(dict.fromkeys(backend_named(name).name for name in names))
        large = list(dict.fromkeys(backend_named(name).name for name in self.large_backends))
        trials = [ScaleTrial(name, records, seed, self.value_bytes) for records in self.records for name in chosen]
        if self.memory_max_bytes:
            limited = (self.limited_records, seed, self.limited_value_bytes, self.memory_max_bytes)
            trials += [ScaleTrial(name, *limited) for name in large]
        trials += [ScaleTrial(name, each, seed, self.value_bytes) for each in self.large_records for name in large]
        if not trials:
            raise ConfigError("this scenario has nothing to do: it has no backends or no sizes")
        return trials

    def at_scale(self, scale: Scale) -> ScaleScenario:
        """Return the scenario with the number of records of a profile."""
        if scale.events_max is None:
            return replace(self, large_records=self.night_records)
        # A process alone takes more memory than these records.
        return replace(self, records=tuple(min(each, scale.events_max) for each in self.records), memory_max_bytes=0)

    def _check(self) -> None:
        self.check_types()
        for name in ("records", "large_records", "night_records"):
            if any(each < 1 for each in getattr(self, name)):
                raise ConfigError(f"{name} of a scenario are numbers above 0, not {getattr(self, name)!r}")
        for name in ("value_bytes", "limited_records", "limited_value_bytes", "memory_max_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of a scenario is a number of 0 or more, not {getattr(self, name)!r}")


def _missed(wanted: AtLeast, figures: Sequence[Figure]) -> list[str]:
    """Return a sentence for each place where the subject is slower than claimed, or that nothing could be compared.

    The medians of the repeats count.
    """

    def rates(backend: str) -> dict[tuple[Any, ...], float]:
        same = ("workload", "durability", "partitions", "records_per_commit")
        return {
            tuple(each[name] for name in same): each["records_per_s"] for each in figures if each["backend"] == backend
        }

    subject, yardstick = rates(wanted.subject), rates(wanted.yardstick)
    shared = sorted(subject.keys() & yardstick.keys())
    if not shared:
        return [f"{wanted.subject} was never measured beside {wanted.yardstick}"]
    return [
        f"{wanted.subject} reaches {subject[place] / yardstick[place]:.2f} of {wanted.yardstick}, not {wanted.ratio:g}"
        f", with {place[-1]:,} records per commit at level {place[1]}, in the medians of their repeats"
        for place in shared
        if subject[place] < wanted.ratio * yardstick[place]
    ]
