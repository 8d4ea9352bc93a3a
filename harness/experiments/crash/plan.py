"""The trials of a profile and of a scenario: every failpoint of a backend, of the task and of the log, other faults.

The seed chooses where a fault strikes. In its default shape a trial makes ten commits to two stores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE, check_profile
from harness.experiments.crash.operations import Mix
from harness.experiments.crash.trial import DURABILITIES, LOG_FAILPOINTS, CrashTrial, admitted
from harness.faults import FAULTS, Fault, Kill, KillAfter, KillInRecovery, inside
from harness.mutants import FAILPOINTS
from harness.scenario import Grid, KillAtEach, cut_to, full_names, times
from harness.typed_maps import IN_TURN, PLAIN
from harness.workloads.suggestion import check_known
from stores.failpoints import Failpoint, Part
from stores.failpoints import failpoint as declaration
from stores.registry import Backend, backend_named, backends
from stores.tasks import task_transaction

_AFTER_LOG = "task.after_log_commit"
_TASK_FAILPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "before the log": "task.before_log_commit",
        "after the log": _AFTER_LOG,
        "after the stores": "task.after_store_commit",
    }
)

Shape = Mapping[str, Any]
"""Settings of a trial other than its backend, fault and seed."""

UNDER_PRESSURE: Shape = {"mix": Mix(value_bytes=4096), "commit_every": 120}
"""Transactions so large that an engine under flush pressure writes them out before they are committed."""

_LARGE_VALUE_BYTES = 256 << 10


def crash_matrix(
    backend_names: Iterable[str] | None = None,
    durabilities: Sequence[str] = DURABILITIES,
    seeds: Sequence[int] = (0, 1, 2),
    profile: str = DEFAULT,
) -> list[CrashTrial]:
    """Return the trials of a profile, for all backends unless some are named. They depend on the arguments alone.

    ``SIZES`` says which combinations a profile has. Stores of bytes and typed stores rotate in all of them.

    Raises: ConfigError for an unknown backend, durability level or profile.
    """
    check_profile(profile)
    check_known("durability", DURABILITIES, *durabilities)
    able = [backend_named(name) for name in (backends() if backend_names is None else backend_names)]
    return list(SIZES[profile].cells(able, durabilities, seeds))


def _all(chosen: Sequence[Backend], durabilities: Sequence[str], seeds: Sequence[int]) -> Iterator[CrashTrial]:
    """Yield every fault at every level with every seed."""
    for backend in chosen:
        for turn, level in enumerate(_carried(backend, durabilities)):
            for seed in seeds:
                for number, trial in enumerate(_cases(backend, level, seed).values()):
                    yield _of_kind(trial, turn + seed + number)


def _carried(backend: Backend, durabilities: Sequence[str]) -> list[str]:
    return [level for level in durabilities if level in backend.durabilities]


def _in_turns(chosen: Sequence[Backend], durabilities: Sequence[str], seeds: Sequence[int]) -> Iterator[CrashTrial]:
    """Yield every failpoint with every seed, and all other faults with the first one; the levels rotate."""
    for backend in chosen:
        levels = _carried(backend, durabilities)
        for turn, seed in enumerate(seeds):
            by_level = [_cases(backend, level, seed) for level in levels]
            for number, case in enumerate(by_level[0] if by_level else ()):
                if turn == 0 or case in _failpoints(backend):
                    yield _of_kind(by_level[(turn + number) % len(by_level)][case], turn + number)


def _each_once(chosen: Sequence[Backend], durabilities: Sequence[str], seeds: Sequence[int]) -> Iterator[CrashTrial]:
    """Yield every fault once, with the first seed; backends and levels rotate."""
    able: dict[str, list[CrashTrial]] = {}
    for trial_of in (
        _cases(backend, level, seed)
        for seed in seeds[:1]
        for backend in chosen
        for level in _carried(backend, durabilities)
    ):
        for case, trial in trial_of.items():
            able.setdefault(case, []).append(trial)
    for number, trials in enumerate(able.values()):
        # A step without a common factor with the number of levels, so that levels change along with backends.
        yield _of_kind(trials[7 * number % len(trials)], number)


def first_kills(trials: Iterable[CrashTrial]) -> Iterator[CrashTrial]:
    """Yield the first of these trials of each backend that kills at each step of a commit of a task and its stores."""
    killed: set[tuple[str, str]] = set()
    for trial in trials:
        place = (trial.backend, trial.fault.place)
        if trial.exactly_once and _part_killed(trial.fault) in (Part.COMMIT, Part.TASK) and place not in killed:
            killed.add(place)
            yield trial


@dataclass(frozen=True)
class CrashSize:
    """The crash matrix of a profile: the number of its seeds, and the combinations that it has.

    With a seed for each level, levels in turn are all levels.
    """

    seeds: int
    cells: Callable[[Sequence[Backend], Sequence[str], Sequence[int]], Iterator[CrashTrial]]


SIZES: Mapping[str, CrashSize] = MappingProxyType(
    {SMOKE: CrashSize(1, _each_once), DEFAULT: CrashSize(3, _in_turns), NIGHT: CrashSize(5, _all)}
)


def _of_kind(trial: CrashTrial, turn: int) -> CrashTrial:
    """Return ``trial`` with the kind of store at ``turn``."""
    return replace(trial, records=IN_TURN[turn % len(IN_TURN)])


def _failpoints(backend: Backend) -> tuple[str, ...]:
    return (*backend.failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS)


def _cases(backend: Backend, durability: str, seed: int) -> dict[str, CrashTrial]:
    """Return the trials of one backend, level and seed, by their description; that of a failpoint is its name."""

    def trial(fault: Fault, shape: Shape | None = None, **settings: Any) -> CrashTrial:
        return CrashTrial(backend.name, fault, durability=durability, seed=seed, **(shape or {}), **settings)

    choose = random.Random(f"plan {backend.name} {durability} {seed}")
    cases = {}
    reached = [declaration(name) for name in _failpoints(backend)]
    at_end = tuple(Kill(each.name) for each in reached if each.always)
    for failpoint in reached:
        fault, shape = _kill_at(failpoint, durability, at_end, choose)
        cases[failpoint.name] = trial(fault, shape)
    faults = {name: fault for kind in FAULTS.values() for name, fault in kind.planned(choose).items()}
    cases |= {name: trial(fault, UNDER_PRESSURE if fault.flushes else None) for name, fault in faults.items()}
    at_least_once: dict[str, Fault] = {"kill inside a transaction": KillAfter(inside(choose))} | {
        f"kill {place}": Kill(failpoint, choose.randint(1, 9)) for place, failpoint in _TASK_FAILPOINTS.items()
    }
    cases |= {
        f"at least once, {name}": trial(fault, guarantee="at_least_once") for name, fault in at_least_once.items()
    }
    return cases


def _kill_at(
    failpoint: Failpoint, durability: str, at_end: tuple[Kill, ...], choose: random.Random
) -> tuple[Fault, Shape]:
    """Return the fault in which a process dies at ``failpoint``, and the shape in which it is reached.

    ``at_end`` are kills that every opening reaches: a recovery that was killed earlier is killed there as well.
    """
    if failpoint.part not in (Part.RECOVERY, Part.RESTORE):
        most = 2 if failpoint.part is Part.CREATION else 9
        return Kill(failpoint.name, _hit(failpoint, most, choose)), shape(failpoint)
    again = (Kill(failpoint.name),) * (2 if failpoint.twice else 1)
    if failpoint.part is Part.RECOVERY:
        again += at_end
    earlier = failpoint.after_at(durability)
    if not earlier:
        return KillInRecovery(Kill(_AFTER_LOG, choose.randint(2, 9)), again), {}
    first = declaration(earlier)
    return KillInRecovery(Kill(first.name, _hit(first, 18, choose)), again), shape(first)


def _hit(failpoint: Failpoint, most: int, choose: random.Random) -> int:
    """Draw which hit of the failpoint kills: up to ``most``, or to the number that its shape certainly reaches."""
    if failpoint.transaction_bytes:
        return 1
    return choose.randint(1, min(most, 6) if failpoint.options else most)


def shape(failpoint: Failpoint) -> Shape:
    """Return the shape in which a trial reaches ``failpoint``: the default one unless it declares requirements.

    With options of its own a trial makes four commits; with a transaction size, two commits of large values.
    """
    options = tuple(sorted(failpoint.options.items()))
    if failpoint.transaction_bytes:
        commit_every = -(-failpoint.transaction_bytes // _LARGE_VALUE_BYTES)
        mix = Mix(records=2 * commit_every, value_bytes=_LARGE_VALUE_BYTES)
        return {"mix": mix, "commit_every": commit_every, "options": options}
    return {"mix": Mix(records=96), "options": options} if options else {}


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
        failpoints = _known_failpoints()
        for fault in self.faults:
            if isinstance(fault, KillAtEach):
                check_known("part", list(Part), fault.part)
            else:
                check_known("failpoint", failpoints, *_named(fault))

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
                and not set(unreached) & set(_named(trial.fault))
            ]
        able = backend_named(backend)
        built_in = FAILPOINTS if mutant else ()
        if not {*_failpoints(able), *built_in}.issuperset(_named(fault)):
            return []
        shape: dict[str, Any] = {
            "mix": self.mix,
            "commit_every": self.commit_every,
            "uncommitted_max_bytes": self.uncommitted_max_bytes,
            "options": tuple(option for option in self.options if option[0] in able.options),
            "records": PLAIN if mutant else IN_TURN[turn % len(IN_TURN)],
        }
        return [CrashTrial(able.name, fault, durability=str(durability), seed=seed, **shape)]


def _named(fault: Fault) -> list[str]:
    """Return the failpoints that a fault names."""
    return [step.place for step in fault.steps if step.place]


def _part_killed(fault: Fault) -> Part | None:
    """Return the part of a store's life in which a fault kills; None for other faults."""
    killed_at = fault.place
    return declaration(killed_at).part if killed_at else None


def _known_failpoints() -> list[str]:
    return sorted({*FAILPOINTS, *(name for backend in backends().values() for name in _failpoints(backend))})
