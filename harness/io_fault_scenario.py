"""A claim about I/O faults as a plain value; one of the kinds of scenario beside those of ``harness.scenario``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.crash.trial import DURABILITIES
from harness.experiments.iofaults.plan import PlannedCase, PlannedMutant, cases_of_fault, planned_mutants
from harness.experiments.iofaults.subjects import subject_named
from harness.mutants.registry import IO_FAULTS
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError


@dataclass(frozen=True)
class IoFaultScenario(Scenario):
    """Every fault of ``faults``, at every I/O operation, breaks no promise; and every one of ``mutants`` is detected.

    A fault is one of ``harness.experiments.iofaults.faults.IO_FAULTS``, with its variant after a blank:
    ``error EIO once``. ``backends`` None means all persistent ones, a task, and the library's own files. If given, it
    may also name these, such as ``format-upgrade``. A durability level that one of them does not carry is left out
    for it. ``points_max`` points of each case are drawn by the seed; None means all. ``states_per_position`` bounds the
    crash states of a power loss.
    """

    experiment = "iofaults"
    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG", "PROCESS", "DISK")
    points_max: int | None = None
    states_per_position: int | None = None
    mutants: tuple[str, ...] = ()
    seeds: int = 1

    def plan(self, seed: int) -> list[PlannedCase | PlannedMutant]:
        """Return everything to explore; ``seed`` is the first of its seeds.

        Raises: ConfigError for an unknown name, and if there is nothing to do.
        """
        self.check_types()
        chosen = None if self.backends is None else [subject_named(name) for name in self.backends]
        check_known("durability", DURABILITIES, *self.durabilities)
        check_known("mutant", IO_FAULTS, *self.mutants)
        if self.seeds < 1 or (self.points_max is not None and self.points_max < 1):
            raise ConfigError("a scenario has one seed and one point or more")
        planned: list[PlannedCase | PlannedMutant] = []
        for number in range(seed, seed + self.seeds):
            for fault in self.faults:
                planned += cases_of_fault(
                    fault,
                    self.durabilities,
                    number,
                    chosen,
                    points_max=self.points_max,
                    states_per_position=self.states_per_position,
                )
            planned += planned_mutants("default", number, chosen, self.mutants)
        if not planned:
            raise ConfigError("this scenario has nothing to do: no backend of it is persistent at its durabilities")
        return planned

    def at_scale(self, scale: Scale) -> IoFaultScenario:
        """Return the scenario with the points and states of a profile."""
        most = scale.points_max and min(self.points_max or scale.points_max, scale.points_max)
        return replace(self, points_max=most, states_per_position=scale.states_per_position)
