"""The scenarios about crashes and other faults: a claim about stores as a plain value, and its validation.

A scenario's file has the claim as its docstring and one of these values under the name ``SCENARIO``. The constructor
validates nothing, so that a mistake is reported and not raised while the file is read; ``plan`` validates everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from harness.experiments.broker_faults.faults import FAULTS, checked, mutant_trials, places_of
from harness.experiments.broker_faults.trial import EXACTLY_ONCE, BrokerTrial
from harness.experiments.crash.operations import Mix
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.trial import DURABILITIES, LOG_FAILPOINTS, CrashTrial, admitted
from harness.experiments.iofaults.plan import PlannedCase, PlannedMutant, cases_of_fault, planned_mutants
from harness.experiments.iofaults.subjects import subject_named
from harness.experiments.query_faults.trial import COUNT, QueryTrial
from harness.experiments.readers.trial import ReadersTrial
from harness.faults import Fault
from harness.mutants import registry as mutants
from harness.mutants.registry import IO_FAULTS, QUERY_TRIALS, fitting
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.typed_maps import IN_TURN, PLAIN
from harness.workloads.suggestion import check_known
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.failpoints import Part, failpoint
from stores.registry import backend_named, backends
from stores.tasks import task_transaction

__all__ = [
    "BrokerScenario",
    "CrashScenario",
    "IoFaultScenario",
    "KillAtEach",
    "Part",
    "QueryScenario",
    "ReadersScenario",
    "Scenario",
]


@dataclass(frozen=True)
class KillAtEach:
    """A kill at each failpoint that a backend reaches in one part of its life, as in the crash matrix.

    The seed chooses which hit of the failpoint kills. If a part comes only after a crash, there is one before it.
    """

    part: Part


@dataclass(frozen=True)
class CrashScenario(Scenario):
    """A claim about crashes: every trial of ``faults`` x ``backends`` x ``durabilities`` x ``seeds`` ends valid.

    ``backends`` None means all. A fault whose failpoints a backend does not have is left out for it, and so are a
    durability level and an option that it does not support. ``mix``, ``commit_every``, ``uncommitted_max_bytes`` and
    ``options`` are for single faults: a ``KillAtEach`` has its own. Stores of bytes and typed stores rotate, but with a
    mutant all are of bytes. ``mutant`` names one. It must then be detected in each backend of ``caught`` in at
    least one trial, and every other backend must still be valid.
    """

    experiment = "crash"
    faults: tuple[Fault | KillAtEach, ...]
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    guarantee: str = "exactly_once"
    seeds: int = 3
    mutant: str | None = None
    caught: tuple[str, ...] = ()
    mix: Mix = field(default_factory=Mix)
    commit_every: int = 24
    uncommitted_max_bytes: int = -1
    options: tuple[tuple[str, str | int | bool], ...] = ()

    def plan(self, seed: int) -> list[CrashTrial]:
        """Return every trial of the scenario; ``seed`` is the first of its seeds.

        Raises: ConfigError for an unknown name, and if there is nothing to do.
        """
        self._check()
        trials = [
            admitted(replace(trial, guarantee=self.guarantee, mutant=self.mutant))
            for name in _names(self.backends)
            for durability in self.durabilities
            if durability in backend_named(name).durabilities
            for number in range(seed, seed + self.seeds)
            for turn, fault in enumerate(self.faults, number)
            for trial in self._trials(fault, name, durability, number, turn)
        ]
        if not trials:
            raise ConfigError("this scenario has no trial: its backends have none of its failpoints or durabilities")
        return trials

    def expected(self, trial: CrashTrial) -> str:
        """Return ``anomaly`` for a backend in which the mutant must be detected, else ``valid``."""
        return "anomaly" if trial.backend in _canonical(self.caught) else "valid"

    def at_scale(self, scale: Scale) -> CrashScenario:
        """Return the scenario with the seeds of a profile."""
        if scale.seeds and self.mutant:
            return self  # A mutant shows with some of its seeds only.
        return replace(self, seeds=scale.seeds or scale.seeds_times * self.seeds)

    def _check(self) -> None:
        self.check_types()
        for name in (*_names(self.backends), *self.caught):
            backend_named(name)
        check_known("durability", DURABILITIES, *self.durabilities)
        options = {option for name in _names(self.backends) for option in backend_named(name).options}
        check_known("option", options, *(option for option, _ in self.options))
        if self.seeds < 1:
            raise ConfigError(f"a scenario has one seed or more, not {self.seeds}")
        known = _known_failpoints()
        for fault in self.faults:
            if isinstance(fault, KillAtEach):
                check_known("part", list(Part), fault.part)
            else:
                check_known("failpoint", known, *_failpoints(fault))

    def _trials(
        self, fault: Fault | KillAtEach, backend: str, durability: str, seed: int, turn: int
    ) -> list[CrashTrial]:
        if isinstance(fault, KillAtEach):
            matrix = crash_matrix([backend], [durability], [seed], "night")
            # At least once, the changelog has no transaction, so the steps of its commit are never reached.
            unreached = () if self.guarantee == "exactly_once" else LOG_FAILPOINTS
            return [
                trial
                for trial in matrix
                if trial.exactly_once
                and _part_killed(trial.fault) == fault.part
                and not set(unreached) & set(_failpoints(trial.fault))
            ]
        chosen = backend_named(backend)
        built_in = mutants.FAILPOINTS if self.mutant else ()
        if not {*chosen.failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS, *built_in}.issuperset(
            _failpoints(fault)
        ):
            return []
        shape: dict[str, Any] = {
            "mix": self.mix,
            "commit_every": self.commit_every,
            "uncommitted_max_bytes": self.uncommitted_max_bytes,
            "options": tuple(option for option in self.options if option[0] in chosen.options),
            "records": PLAIN if self.mutant else IN_TURN[turn % len(IN_TURN)],
        }
        return [CrashTrial(chosen.name, fault, durability=str(durability), seed=seed, **shape)]


@dataclass(frozen=True)
class IoFaultScenario(Scenario):
    """Every fault of ``faults``, at every I/O operation, breaks no promise; and every one of ``mutants`` is detected.

    A fault is one of ``harness.experiments.iofaults.case.IO_FAULTS``, with its variant after a blank:
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


@dataclass(frozen=True, kw_only=True)
class _FaultsBySeed(Scenario):
    """Trials of each fault with each of ``seeds``, and mutants that must be detected."""

    faults: tuple[str, ...] = ()
    seeds: int = 1
    mutants: tuple[str, ...] = ()

    def _check(self) -> None:
        self.check_types()
        if self.seeds < 1:
            raise ConfigError(f"a scenario has one seed or more, not {self.seeds!r}")

    def expected(self, trial: Any) -> str:
        """Return ``anomaly`` for a mutant."""
        return "anomaly" if trial.mutant else "valid"

    def at_scale(self, scale: Scale) -> Self:
        """Return the scenario with the seeds of a profile."""
        return replace(self, seeds=scale.seeds or scale.seeds_times * self.seeds)


@dataclass(frozen=True, kw_only=True)
class BrokerScenario(_FaultsBySeed):
    """Under each of ``faults``, at each of its places, tasks over a broker keep their guarantee.

    ``backends`` are those of the stores. Each of ``mutants`` is built into the first one, and must be detected under
    those of the faults that it names.
    """

    experiment = "broker_faults"
    backends: tuple[str, ...] = (StoreConfig().backend,)
    guarantee: str = EXACTLY_ONCE

    def plan(self, seed: int) -> list[BrokerTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self._check()
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


@dataclass(frozen=True, kw_only=True)
class QueryScenario(_FaultsBySeed):
    """Under each of ``faults`` each query of ``workloads`` over each of ``backends`` equals Spark SQL's answer.

    That is, its rows and its state do. Each of ``mutants`` is built into the first backend, and must be detected under
    the fault that it names.
    """

    experiment = "query_faults"
    backends: tuple[str, ...] = ("rocksdb",)
    workloads: tuple[str, ...] = (COUNT,)

    def plan(self, seed: int) -> list[QueryTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self._check()
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


@dataclass(frozen=True)
class ReadersScenario(Scenario):
    """Readers at each level, beside a writer that commits and rolls back, see nothing that their level does not show.

    ``backends`` None means all; a durability level that one of them does not carry is left out for it. Each is read for
    about ``seconds``, by ``readers`` readers at each level, once for each of ``seeds``. Each of ``mutants`` is built
    into a backend with a strategy that it fits, and must be detected.
    """

    experiment = "readers"
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    seconds: float = 2.0
    readers: int = 4
    seeds: int = 1
    mutants: tuple[str, ...] = ()

    def plan(self, seed: int) -> list[ReadersTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self._check()
        names = tuple(backends()) if self.backends is None else self.backends
        chosen = [backend_named(name) for name in names]
        trials = [
            ReadersTrial(backend.name, durability, self.seconds, number, self.readers)
            for number in range(seed, seed + self.seeds)
            for backend in chosen
            for durability in self.durabilities
            if durability in backend.durabilities
        ]
        for mutant in self.mutants:
            first = fitting(mutant, chosen)[0]
            level = sorted(first.durabilities)[0]
            trials.append(ReadersTrial(first.name, level, 10 * self.seconds, seed, self.readers, mutant))
        if not trials:
            raise ConfigError("this scenario has nothing to do: none of its backends carries its durabilities")
        return trials

    def at_scale(self, scale: Scale) -> ReadersScenario:
        """Return the scenario with the seconds of a profile."""
        return replace(self, seconds=scale.seconds or scale.seconds_times * self.seconds)

    def _check(self) -> None:
        self.check_types()
        for name in ("seconds", "readers", "seeds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} of a scenario is a number above 0, not {getattr(self, name)!r}")
        check_known("durability", DURABILITIES, *self.durabilities)


def _names(given: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(backends()) if given is None else given


def _canonical(names: Iterable[str]) -> set[str]:
    return {backend_named(name).name for name in names}


def _failpoints(fault: Fault) -> list[str]:
    """Return the failpoints that a fault names."""
    return [step.place for step in fault.steps if step.place]


def _part_killed(fault: Fault) -> Part | None:
    """Return the part of a store's life in which a fault kills; None for other faults."""
    killed_at = fault.place
    return failpoint(killed_at).part if killed_at else None


def _known_failpoints() -> list[str]:
    of_backends = {name for backend in backends().values() for name in backend.failpoints}
    return sorted(of_backends | {*task_transaction.FAILPOINTS, *LOG_FAILPOINTS, *mutants.FAILPOINTS})
