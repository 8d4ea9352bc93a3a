"""A claim about restarts over Kafka as a plain value; one of the kinds of scenario beside ``harness.scenario``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness import profiles
from harness.experiment import Failure, Figures
from harness.experiments.kafka.restart_trial import READY_S, RECORDS, RestartTrial
from harness.scenario_files import Scenario
from stores.config import StoreConfig


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

    def scaled(self, profile: str) -> KafkaRestartScenario:
        """Return the scenario with the number of records and of repeats of a profile."""
        scale = profiles.profile(profile).scale
        if scale is None:
            return self
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
