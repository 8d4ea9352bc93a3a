"""The scenarios about crashes and throughput: a claim about stores as a plain value, and its validation.

A scenario's file has the claim as its docstring and one of these values under the name ``SCENARIO``. The constructor
validates nothing, so that a mistake is reported and not raised while the file is read; ``plan`` validates everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.experiment import Failure, Figure, Figures
from harness.experiments.crash.operations import Mix
from harness.experiments.crash.plan import crash_matrix
from harness.experiments.crash.trial import DURABILITIES, LOG_FAILPOINTS, CrashTrial, admitted
from harness.experiments.throughput.plan import Grid, ThroughputTrial, throughput_trials
from harness.faults import Fault
from harness.mutants import registry as mutants
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.typed_maps import IN_TURN, PLAIN
from harness.workloads.event_log import EVENT_LOG, EventLog
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError
from stores.failpoints import Part, failpoint
from stores.interface import Durability
from stores.registry import backend_named, backends
from stores.tasks import task_transaction

__all__ = ["EVENT_LOG", "AtLeast", "CrashScenario", "KillAtEach", "Part", "Scenario", "ThroughputScenario"]


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
            *_names(self.backends),
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
