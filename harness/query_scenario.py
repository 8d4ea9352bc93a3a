"""A claim about stateful queries on Spark, as a plain value: one of the kinds of scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.query_faults.trial import COUNT, QueryTrial
from harness.mutants.registry import QUERY_TRIALS
from harness.profiles import Scale
from harness.scenario_files import Scenario
from stores.errors import ConfigError
from stores.registry import backend_named


@dataclass(frozen=True)
class QueryScenario(Scenario):
    """Under each of ``faults`` each query of ``workloads`` over each of ``backends`` equals Spark SQL's answer.

    That is, its rows and its state do. Each of ``mutants`` is built into the first backend, and must be detected under
    the fault that it names.
    """

    experiment = "query_faults"
    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("rocksdb",)
    workloads: tuple[str, ...] = (COUNT,)
    seeds: int = 1
    mutants: tuple[str, ...] = ()

    def plan(self, seed: int) -> list[QueryTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self.check_types()
        if self.seeds < 1:
            raise ConfigError(f"a scenario has one seed or more, not {self.seeds!r}")
        names = [backend_named(name).name for name in self.backends]
        trials = [
            QueryTrial(fault, name, number, workload=workload)
            for number in range(seed, seed + self.seeds)
            for workload in self.workloads
            for fault in self.faults
            for name in names
        ]
        for mutant in self.mutants:
            by = QUERY_TRIALS.get(mutant)
            trials.append(QueryTrial("worker killed" if by is None else by.fault, names[0], seed, mutant))
        if not trials:
            raise ConfigError("this scenario has nothing to do: it has no faults and no mutants")
        return trials

    def expected(self, trial: QueryTrial) -> str:
        """Return ``anomaly`` for a mutant."""
        return "anomaly" if trial.mutant else "valid"

    def at_scale(self, scale: Scale) -> QueryScenario:
        """Return the scenario with the seeds of a profile."""
        return replace(self, seeds=scale.seeds or scale.seeds_times * self.seeds)
