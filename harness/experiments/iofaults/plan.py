"""The cases of a profile, how many points of each are explored, and their subsets: pure functions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.classes import Resolution
from harness.experiments.iofaults.damage import AtRest
from harness.experiments.iofaults.fault import IO_FAULTS, Guide, drawn
from harness.experiments.iofaults.kills import SHORT, FailingCall
from harness.experiments.iofaults.subjects import (
    OFFSET_IMPORTS,
    ONLINE_UPGRADE,
    PUNCTUATION,
    TASKS,
    subject_named,
    subjects,
)
from harness.mutants import IO_MUTANTS
from harness.report.coverage import MUTANTS, Coverage, Group
from harness.scenario import Grid, cut_to, set_to
from harness.typed_maps import IN_TURN, PLAIN
from harness.workloads.suggestion import check_known
from stores.interface import Durability
from stores.registry import backends

FIRST_ROUND = 8
"""The first subset of a case has this part of the points of a subset."""
LEVEL = "DISK"
"""The level at which mutants are tried: the one that promises most."""
STATES_PER_POSITION = 6
"""The number of crash states tried at each position. Where a mutant shows at a position, many states show it."""


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case to explore with ``seed``: all of its points, or at most ``points_max`` that the seed picks."""

    case: IoFaultCase
    seed: int
    points_max: int | None = None
    scenario: str = ""
    coverage: Coverage | None = field(default=None, compare=False)
    """The classes that earlier runs have tried, which come last; None to draw by the seed alone."""

    @property
    def group(self) -> Group:
        """The group of its classes."""
        return group_of(self.case)

    def last_tried(self, name: str) -> int:
        """Return the number of the last run that tried a class; 0 for none."""
        return 0 if self.coverage is None else self.coverage.last_tried(self.group, name)


@dataclass(frozen=True, slots=True)
class PlannedMutant:
    """A mutant to be detected in ``subject`` by ``fault``, or, if ``found`` is false, not to be detected by it.

    ``profile`` is one whose own trials run first, to measure if they detect the mutant; "" for none. If ``measured``
    is true, only these trials run, and a mutant that they miss does not fail the run.
    """

    mutant: str
    subject: str
    fault: str
    seed: int
    found: bool = True
    points_max: int | None = None
    scenario: str = ""
    profile: str = ""
    measured: bool = False
    last_tried: int = field(default=0, compare=False)
    """The number of the last run that tried it; 0 for none."""

    @property
    def group(self) -> Group:
        """The group of its class."""
        return group_of(case_of(self.mutant, self.subject, self.fault))._replace(experiment=MUTANTS)

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.mutant if self.found else f"{self.mutant}, not to be seen"


class Turn(NamedTuple):
    """When a point is tried: the first points of classes not tried with this code, of others, and further points."""

    part: int
    last_tried: int = 0


NEW, KNOWN, FURTHER = 0, 1, 2
"""The parts of an order of points."""
FIRST = Turn(NEW)


def group_of(case: IoFaultCase) -> Group:
    """Return the group of the classes of a case. Errors that happen alike are one fault: their numbers take turns."""
    fault = case.fault_and_variant
    if case.fault == FailingCall.name:
        error, how = case.variant.split(" ")
        fault = f"{case.fault} {'short' if error == SHORT else how}"
    return Group("iofaults", case.subject, case.level, fault)


def resolution_of(case: IoFaultCase) -> Resolution:
    """Return how finely the points of a case are divided, so that a night can try each class.

    Most finely for kills and power loss under the model that promises are checked against, and, at DISK, for the faults
    in which a single call site shows. A task below DISK counts by kinds of operations: its stores are also tried alone.
    """
    at_disk = case.level == LEVEL
    if case.subject in (*TASKS, *OFFSET_IMPORTS) and not at_disk:
        return Resolution.KIND if case.fault_and_variant in _FINE else Resolution.STEP
    if case.fault_and_variant in _FINE or (at_disk and case.fault_and_variant in _FINE_AT_DISK):
        return Resolution.SITE
    return Resolution.KIND if at_disk or case.fault in ("tear", "error") else Resolution.STEP


_FINE = ("kill", "power names")
_FINE_AT_DISK = ("tear", "power strict", *(f"error {variant}" for variant in FailingCall.variants if "once" in variant))


_MOST_TRIED = ("kill", "tear", "power names")
LEVELS = tuple(map(str, Durability))


@dataclass(frozen=True, kw_only=True)
class IoFaultGrid(Grid):
    """Every fault of ``faults``, at every I/O operation, breaks no promise; and every one of ``mutants`` is detected.

    A fault is one of ``harness.experiments.iofaults.fault.IO_FAULTS``, with its variant after a blank:
    ``error EIO once``. ``backends`` None means all persistent ones, a task, and the library's own files. If given, it
    may also name these, such as ``format-upgrade``. A durability level that one of them does not carry is left out
    for it. ``points_max`` points of each case are drawn by the seed; None means all. ``states_per_position`` bounds the
    crash states of a power loss.
    """

    faults: tuple[str, ...] = ()
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = LEVELS
    points_max: int | None = None
    states_per_position: int | None = None

    sizes = MappingProxyType(
        {
            SMOKE: {"points_max": cut_to(4), "states_per_position": cut_to(2)},
            NIGHT: {"points_max": set_to(None), "states_per_position": set_to(None)},
        }
    )
    above_0 = ("seeds", "points_max")

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting of a wrong type, and for an unknown subject."""
        super().__post_init__()
        self._chosen()

    def trials(self, seed: int) -> list[PlannedCase]:
        """Return the cases of each fault in every subject that carries one of the levels.

        Raises: ConfigError for a fault or variant that does not exist.
        """
        backends = self._chosen()
        return [
            PlannedCase(self._case(fault, subject, level, seed), seed, self.points_max)
            for fault in self.faults
            for subject, level in subjects()
            if level in self.durabilities and _is_chosen(subject, backends)
        ]

    def mutant_trials(self, mutant: str, seeds: range) -> list[PlannedMutant]:
        """Return the mutant in each subject that it fits. Raises: ConfigError for an unknown one."""
        check_known("mutant", IO_MUTANTS, mutant)
        return planned_mutants(DEFAULT, seeds[0], self._chosen(), [mutant])

    def _chosen(self) -> list[str] | None:
        return None if self.backends is None else [subject_named(name) for name in self.backends]

    def _case(self, fault: str, subject: str, level: str, seed: int) -> IoFaultCase:
        kind, _, variant = fault.partition(" ")
        records = kind_in_turn(subject, level, f"{kind} {variant}".strip(), seed)
        states = self.states_per_position if IO_FAULTS[kind].several_at_a_point and kind != "tear" else None
        return IoFaultCase(subject, level, kind, variant, records=records, states_per_position=states)


@dataclass(frozen=True, kw_only=True)
class IoFaultSize:
    """The cases and mutants of a profile."""

    grids: tuple[IoFaultGrid, ...]
    task_points_max: int | None
    """The number of points of a fault that are tried on a task. Its stores and its changelog are also tried alone."""
    kills_at_disk: Mapping[str, int] = field(default_factory=dict)
    """More kills for subjects in which a mutant shows at few I/O operations of a commit: so many detect it in 95 % of
    runs."""
    measured_seeds: int
    """The number of seeds with which the default profile's own trials are run for each mutant. In the default profile
    it is one for kills, if it kills at every I/O operation."""
    variation_points_max: Mapping[str, int | None]
    """The number of points for variations of a subject that is tried at DISK: other pairs of engines, other levels. The
    key is the fault with its variant, else the fault, else an empty string."""
    unseen_points_max: int | None
    """The number of points of a fault that must not detect a mutant; 0 for none, None for all."""
    mutants_once: bool = False
    """True if there is one mutant for each fault, in one subject."""


def _tried(
    *faults: str, at: tuple[str, ...] = LEVELS, points_max: int | None = None, states: int | None = None
) -> IoFaultGrid:
    return IoFaultGrid(faults=faults, durabilities=at, points_max=points_max, states_per_position=states)


_DISK, _BELOW_DISK = ("DISK",), ("CHANGELOG", "PROCESS")
_ERRORS = tuple(f"error {variant}" for variant in FailingCall.variants)
_DAMAGES = tuple(f"damage {variant}" for variant in AtRest.variants)
SIZES: Mapping[str, IoFaultSize] = MappingProxyType(
    {
        SMOKE: IoFaultSize(
            grids=(
                _tried("kill", at=_DISK, points_max=4),
                _tried("power names", at=_DISK, points_max=8, states=2),
                _tried("error EIO once", at=_DISK, points_max=2),
            ),
            task_points_max=2,
            measured_seeds=0,
            variation_points_max={"": 2},
            unseen_points_max=0,
            mutants_once=True,
        ),
        DEFAULT: IoFaultSize(
            grids=(
                _tried("kill", at=_DISK),
                _tried("power names", at=_DISK, points_max=280, states=3),
                _tried("power names", at=_BELOW_DISK, points_max=64, states=3),
                _tried("kill", at=_BELOW_DISK, points_max=16),
                _tried("tear", at=_DISK, points_max=24),
                # A missing sync of a folder shows at some positions of a commit only, and only under this model.
                _tried("power strict", at=_DISK, points_max=64, states=4),
                _tried("power journal", "power torn-sectors", at=_DISK, points_max=8, states=4),
                _tried(*_ERRORS, at=_DISK, points_max=4),
                _tried("failed_sync", at=_DISK, points_max=6, states=3),
                _tried("error EIO once", "error ENOSPC lasting", at=_BELOW_DISK, points_max=4),
                _tried(*_DAMAGES, at=_DISK, points_max=48),
            ),
            task_points_max=24,
            kills_at_disk={TASKS[0]: 80, PUNCTUATION: 80, ONLINE_UPGRADE: 130, OFFSET_IMPORTS[1]: 120},
            measured_seeds=2,
            variation_points_max={"kill": 17, "power names": 8, "power": 0, "failed_sync": 0, "": 4},
            unseen_points_max=24,
        ),
        NIGHT: IoFaultSize(
            grids=(
                _tried("kill", "tear", *_ERRORS),
                _tried("power names", "power strict", "power torn-sectors", "power journal", states=3),
                _tried("kill_twice", "power_twice", "failed_sync names", "failed_sync strict", states=3),
                _tried(*_DAMAGES, at=_DISK),
            ),
            task_points_max=None,
            measured_seeds=20,
            variation_points_max={"": None},
            unseen_points_max=48,
        ),
    }
)


def planned_cases(name: str, seed: int, chosen: Sequence[str] | None = None) -> list[PlannedCase]:
    """Return the cases of the profile ``name`` (smoke, default, night), of all subjects or the ``chosen`` backends."""
    backends = None if chosen is None else tuple(chosen)
    cases = [item for grid in SIZES[name].grids for item in replace(grid, backends=backends).trials(seed)]
    if name == NIGHT:
        cases = [item for item in cases if _has_turn(item.case, seed)]
    bounded = [(item, _points_max(name, item)) for item in cases]
    return [replace(item, points_max=most) for item, most in bounded if most != 0]


def _has_turn(case: IoFaultCase, seed: int) -> bool:
    """Return False if another variant of the fault stands for its classes at this seed."""
    if case.fault != FailingCall.name:
        return True
    alike = [other for other in FailingCall.variants if group_of(replace(case, variant=other)) == group_of(case)]
    place = seed + [name for name, _ in subjects()].index(case.subject)
    return alike[place % len(alike)] == case.variant


def _points_max(name: str, item: PlannedCase) -> int | None:
    """Return the largest number of points of ``item`` that the profile ``name`` explores, or None for all."""
    case = item.case
    bounds = [item.points_max]
    profile = SIZES[name]
    kills = profile.kills_at_disk
    if (case.fault, case.level) == ("kill", "DISK") and case.subject in kills:
        bounds.append(kills[case.subject])
    elif (case.subject, case.level) == (TASKS[0], "DISK"):
        bounds.append(profile.task_points_max)
    elif case.subject in (*TASKS, *OFFSET_IMPORTS) and (case.subject, case.level) != (OFFSET_IMPORTS[0], "DISK"):
        variations = profile.variation_points_max
        fault = next(each for each in (f"{case.fault} {case.variant}", case.fault, "") if each in variations)
        bounds.append(variations[fault])
    return min((most for most in bounds if most is not None), default=None)


def planned_mutants(
    name: str, seed: int, chosen: Sequence[str] | None = None, mutants: Iterable[str] | None = None
) -> list[PlannedMutant]:
    """Return the profile's mutants, in each subject that they fit, and the faults that must not detect them.

    The default profile's own trials are measured at ``seed`` and at seeds derived from it. The profile smoke has one
    mutant for each fault, in one subject, and measures nothing.
    """
    trials: list[PlannedMutant] = []
    of_profile = SIZES[name]
    if mutants is None:
        one_each: dict[str, str] = {}
        for mutant, by in IO_MUTANTS.items():
            one_each.setdefault(by.fault, mutant)
        mutants = one_each.values() if of_profile.mutants_once else IO_MUTANTS
    for mutant in mutants:
        by = IO_MUTANTS[mutant]
        fitting = [subject for subject in subjects_with(mutant) if _is_chosen(subject, chosen)]
        for subject in fitting[:1] if of_profile.mutants_once else fitting:
            measured = of_profile.measured_seeds
            kills = PlannedCase(IoFaultCase(subject, LEVEL, "kill"), seed)
            if measured and name == DEFAULT and by.fault == "kill" and _points_max(DEFAULT, kills) is None:
                measured = 1
            profile = DEFAULT if measured else ""
            trials.append(PlannedMutant(mutant, subject, by.fault, seed, profile=profile))
            for drawn_seed in measured_seeds(seed, measured)[1:]:
                trials.append(PlannedMutant(mutant, subject, by.fault, drawn_seed, profile=profile, measured=True))
            if by.unseen_by and of_profile.unseen_points_max != 0:
                unseen = PlannedMutant(mutant, subject, by.unseen_by, seed, False, of_profile.unseen_points_max)
                trials.append(unseen)
    return trials


def subjects_with(mutant: str) -> list[str]:
    """Return the names of the subjects in which ``mutant`` is a defect, in the order of ``subjects``."""
    return [name for name, level in subjects() if level == LEVEL and IO_MUTANTS[mutant].fits(name)]


def case_of(mutant: str, subject: str, fault: str = "") -> IoFaultCase:
    """Return the case that must detect ``mutant``, or the case of another ``fault`` with the mutant built in."""
    by = IO_MUTANTS[mutant]
    variant = by.variant if fault in ("", by.fault) else ""
    states = STATES_PER_POSITION if (fault or by.fault) == "power" else None
    return IoFaultCase(
        subject, LEVEL, fault or by.fault, variant, mutant=mutant, records=by.records, states_per_position=states
    )


def measured_seeds(seed: int, number: int) -> list[int]:
    """Return ``seed`` and further seeds drawn from it, at which the default profile's own trials are measured."""
    return [seed, *random.Random(f"measured {seed}").sample(range(1_000, 1_000_000), max(0, number - 1))]


def kind_in_turn(subject: str, level: str, fault: str, seed: int) -> str:
    """Return the kind of store that a backend has under ``fault``. Kinds rotate with the backend, level and seed.

    The faults with the most points in the default profile have one kind, and all others the next but one. So a backend
    needs two recordings at a level. Subjects that are no backends have fixed kinds of stores.
    """
    if subject not in backends():
        return PLAIN
    turn = list(backends()).index(subject) + LEVELS.index(level) + (0 if fault in _MOST_TRIED else 2)
    return IN_TURN[(turn + seed) % len(IN_TURN)]


def in_turn(
    item: PlannedCase, points: Sequence[int], guides: Iterable[Guide] = (), classes: Mapping[int, str] | None = None
) -> list[tuple[Turn, int]]:
    """Return the points to explore, in order, with their turns.

    The seed draws them. Then one point of each class comes first: of those that were not tried with this code, and of
    those that were tried longest ago. Of a case with a bound, each fourth point is one of these. The guides draw the
    others, because few points find more where a broken promise shows most. Without ``classes`` the order is the drawn
    one. Points without a class are left out.
    """
    case = item.case
    choose = random.Random(f"points {item.seed} {case.subject} {case.level} {case.fault} {case.variant}")
    if classes is None:
        return [(Turn(FURTHER), point) for point in drawn(points, guides, choose)[: item.points_max]]
    there = [point for point in points if point in classes]
    turns = _turns(item, drawn(there, guides, choose), classes)
    if item.points_max is not None and item.points_max < len(turns):
        by_classes = sorted(turns, key=turns.__getitem__)
        few = drawn(there, guides, choose, by_classes)[: item.points_max]
        turns = {point: turns[point] for point in few}
    return sorted(((turn, point) for point, turn in turns.items()), key=lambda each: each[0])


def _turns(item: PlannedCase, order: Sequence[int], classes: Mapping[int, str]) -> dict[int, Turn]:
    """Return the turn of each point, in order: a point of each class comes before second ones."""
    met: Counter[str] = Counter()
    turns = {}
    for point in order:
        name = classes[point]
        last = item.last_tried(name)
        part = FURTHER if met[name] else KNOWN if last else NEW
        turns[point] = Turn(part, last if part == KNOWN else met[name])
        met[name] += 1
    return turns


def in_rounds(order: Sequence[tuple[Turn, int]], width: int) -> list[tuple[Turn, list[int]]]:
    """Divide the points of ``order`` into ascending subsets, of which the first are small and have the first points.

    So a run that its time ends early has tried the first points of every case. The widths double, up to ``width``. The
    points of a subset have the same part of the order; its turn is that of its first point.
    """
    rounds: list[tuple[Turn, list[int]]] = []
    for _, group in groupby(order, key=lambda each: each[0].part):
        of_part = list(group)
        at, size = 0, max(1, width // FIRST_ROUND)
        while at < len(of_part):
            points = of_part[at : at + size]
            rounds.append((points[0][0], sorted(point for _, point in points)))
            at, size = at + size, min(width, 2 * size)
    return rounds


def _is_chosen(subject: str, chosen: Sequence[str] | None) -> bool:
    """Return True if ``subject`` is chosen. A choice of backends excludes the subjects that are no backends."""
    return chosen is None or subject in chosen
