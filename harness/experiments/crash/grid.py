"""The grid of a scenario about crashes: faults, backends and levels, and mutants that must be detected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from harness.experiments.crash.operations import Mix
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.trial import LOG_FAILPOINTS, CrashTrial, admitted
from harness.faults import Fault
from harness.grid import Grid, cut_to, full_names, times
from harness.mutants.registry import FAILPOINTS
from harness.profiles import NIGHT, SMOKE
from harness.scenario import KillAtEach
from harness.typed_maps import IN_TURN, PLAIN
from harness.workloads.suggestion import check_known
from stores.failpoints import Part, failpoint
from stores.registry import backend_named, backends
from stores.tasks import task_transaction


@dataclass(frozen=True, kw_only=True)
class CrashGrid(Grid):
    """A claim about crashes: every trial of ``faults`` x ``backends`` x ``durabilities`` x ``seeds`` ends valid.

    ``backends`` None means all. A fault whose failpoints a backend does not have is left out for it, and so are a
    durability level and an option that it does not support. ``mix``, ``commit_every``, ``uncommitted_max_bytes`` and
    ``options`` are for single faults: a ``KillAtEach`` has its own. Stores of bytes and typed stores rotate, but with a
    mutant all are of bytes. Each of ``mutants`` is built into all trials. It must then be detected in each backend of
    ``caught`` in at least one trial, and every other backend must still be valid.
    """

    faults: tuple[Fault | KillAtEach, ...]
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    guarantee: str = "exactly_once"
    seeds: int = 3
    caught: tuple[str, ...] = ()
    mix: Mix = field(default_factory=Mix)
    commit_every: int = 24
    uncommitted_max_bytes: int = -1
    options: tuple[tuple[str, str | int | bool], ...] = ()

    sizes = MappingProxyType({SMOKE: {"seeds": cut_to(1)}, NIGHT: {"seeds": times(5)}})

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting of a wrong type, and for an unknown name."""
        super().__post_init__()
        full_names(self.caught)
        options = {option for name in full_names(self.backends) for option in backend_named(name).options}
        check_known("option", options, *(option for option, _ in self.options))
        known = _known_failpoints()
        for fault in self.faults:
            if isinstance(fault, KillAtEach):
                check_known("part", list(Part), fault.part)
            else:
                check_known("failpoint", known, *_failpoints(fault))

    def trials(self, seed: int) -> list[CrashTrial]:
        """Return the trials of one seed; none with mutants, which are built into all of them."""
        return [] if self.mutants else list(self._cases(seed, None))

    def mutant_trials(self, mutant: str, seeds: range) -> list[CrashTrial]:
        """Return the trials with a mutant, which shows with some of the seeds only."""
        return [trial for seed in seeds for trial in self._cases(seed, mutant)]

    def expected(self, trial: CrashTrial) -> str:
        """Return ``anomaly`` for a backend in which the mutant must be detected, else ``valid``."""
        return "anomaly" if trial.backend in full_names(self.caught) else "valid"

    def _cases(self, seed: int, mutant: str | None) -> Iterator[CrashTrial]:
        for name in full_names(self.backends):
            for durability in self.durabilities:
                if durability in backend_named(name).durabilities:
                    for turn, fault in enumerate(self.faults, seed):
                        for trial in self._trials(fault, name, durability, seed, turn, mutant):
                            yield admitted(replace(trial, guarantee=self.guarantee, mutant=mutant))

    def _trials(
        self, fault: Fault | KillAtEach, backend: str, durability: str, seed: int, turn: int, mutant: str | None
    ) -> list[CrashTrial]:
        if isinstance(fault, KillAtEach):
            matrix = crash_matrix([backend], [durability], [seed], NIGHT)
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
        built_in = FAILPOINTS if mutant else ()
        if not {*chosen.failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS, *built_in}.issuperset(
            _failpoints(fault)
        ):
            return []
        shape: dict[str, Any] = {
            "mix": self.mix,
            "commit_every": self.commit_every,
            "uncommitted_max_bytes": self.uncommitted_max_bytes,
            "options": tuple(option for option in self.options if option[0] in chosen.options),
            "records": PLAIN if mutant else IN_TURN[turn % len(IN_TURN)],
        }
        return [CrashTrial(chosen.name, fault, durability=str(durability), seed=seed, **shape)]


def _failpoints(fault: Fault) -> list[str]:
    """Return the failpoints that a fault names."""
    return [step.place for step in fault.steps if step.place]


def _part_killed(fault: Fault) -> Part | None:
    """Return the part of a store's life in which a fault kills; None for other faults."""
    killed_at = fault.place
    return failpoint(killed_at).part if killed_at else None


def _known_failpoints() -> list[str]:
    of_backends = {name for backend in backends().values() for name in backend.failpoints}
    return sorted(of_backends | {*task_transaction.FAILPOINTS, *LOG_FAILPOINTS, *FAILPOINTS})
