"""A claim about tasks over a Kafka broker under faults, as a plain value: one of the kinds of scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.broker_faults.faults import FAULTS, checked, mutant_trials, places_of
from harness.experiments.broker_faults.trial import EXACTLY_ONCE, BrokerTrial
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.workloads.suggestion import check_known
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.registry import backend_named


@dataclass(frozen=True)
class BrokerScenario(Scenario):
    """Under each of ``faults``, at each of its places, tasks over a broker keep their guarantee.

    ``backends`` are those of the stores. Each of ``mutants`` is built into the first one, and must be detected under
    those of the faults that it names.
    """

    experiment = "broker_faults"
    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] = (StoreConfig().backend,)
    guarantee: str = EXACTLY_ONCE
    seeds: int = 1
    mutants: tuple[str, ...] = ()

    def plan(self, seed: int) -> list[BrokerTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self.check_types()
        if self.seeds < 1:
            raise ConfigError(f"a scenario has one seed or more, not {self.seeds!r}")
        check_known("fault of a broker called", FAULTS, *self.faults)
        names = [backend_named(name).name for name in self.backends]
        trials = [
            checked(BrokerTrial(fault, place, name, self.guarantee, number))
            for number in range(seed, seed + self.seeds)
            for fault in self.faults
            for place in places_of(fault, self.guarantee)
            for name in names
        ]
        if not trials:
            raise ConfigError("this scenario has nothing to do: it needs faults and backends")
        for mutant in self.mutants:
            found = [
                trial
                for trial in mutant_trials(mutant, names[0], seed)
                if trial.fault in self.faults and trial.guarantee == self.guarantee
            ]
            if not found:
                raise ConfigError(f"the mutant {mutant!r} is not detected under these faults: leave it out")
            trials += found
        return trials

    def expected(self, trial: BrokerTrial) -> str:
        """Return ``anomaly`` for a mutant."""
        return "anomaly" if trial.mutant else "valid"

    def at_scale(self, scale: Scale) -> BrokerScenario:
        """Return the scenario with the seeds of a profile."""
        return replace(self, seeds=scale.seeds or scale.seeds_times * self.seeds)
