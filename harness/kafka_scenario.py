"""Claims about tasks over Kafka, and about restarts, as plain values: two of the kinds of scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiment import Failure, Figures
from harness.experiments.kafka.trial import READY_S, RECORDS, KafkaTrial, RestartTrial
from harness.profiles import Scale
from harness.scenario_files import Scenario
from stores.config import StoreConfig
from stores.errors import ConfigError


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
