"""The cases of a profile, how many points of each are explored, and their subsets: pure functions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness import profiles
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.drawing import Group, drawn
from harness.experiments.iofaults.subjects import OFFSET_IMPORTS, TASKS, subjects
from harness.mutants.registry import IO_FAULTS
from harness.report.coverage import Covered
from harness.typed_maps import IN_TURN, PLAIN
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
    night: int | None = None
    """The seed that draws the points instead of ``seed``, those first that no night has tried; None for no night."""
    covered: Covered | None = None
    """The points that earlier nights have tried."""


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


_MOST_TRIED = ("kill", "tear", "power names")
DEFAULT = "default"
"""The profile whose detection rate is measured: the one that runs before a change is accepted."""


def planned_cases(name: str, seed: int, chosen: Sequence[str] | None = None) -> list[PlannedCase]:
    """Return the cases of the profile ``name`` (smoke, default, night), of all subjects or the ``chosen`` backends."""
    planned = [
        item
        for share in profiles.profile(name).shares
        for fault in share.faults
        for item in cases_of_fault(
            fault,
            share.levels,
            seed,
            chosen,
            points_max=share.points_max,
            states_per_position=share.states_per_position,
        )
    ]
    bounded = [(item, _points_max(name, item)) for item in planned]
    return [replace(item, points_max=most) for item, most in bounded if most != 0]


def _points_max(name: str, item: PlannedCase) -> int | None:
    """Return the largest number of points of ``item`` that the profile ``name`` explores, or None for all."""
    case = item.case
    bounds = [item.points_max]
    profile = profiles.profile(name)
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
    found: list[PlannedMutant] = []
    of_profile = profiles.profile(name)
    if mutants is None:
        one_each: dict[str, str] = {}
        for mutant, by in IO_FAULTS.items():
            one_each.setdefault(by.fault, mutant)
        mutants = one_each.values() if of_profile.mutants_once else IO_FAULTS
    for mutant in mutants:
        by = IO_FAULTS[mutant]
        fitting = [subject for subject in subjects_with(mutant) if _is_chosen(subject, chosen)]
        for subject in fitting[:1] if of_profile.mutants_once else fitting:
            measured = of_profile.measured_seeds
            kills = PlannedCase(IoFaultCase(subject, LEVEL, "kill"), seed)
            if measured and name == DEFAULT and by.fault == "kill" and _points_max(DEFAULT, kills) is None:
                measured = 1
            profile = DEFAULT if measured else ""
            found.append(PlannedMutant(mutant, subject, by.fault, seed, profile=profile))
            for drawn_seed in measured_seeds(seed, measured)[1:]:
                found.append(PlannedMutant(mutant, subject, by.fault, drawn_seed, profile=profile, measured=True))
            if by.unseen_by and of_profile.unseen_points_max != 0:
                unseen = PlannedMutant(mutant, subject, by.unseen_by, seed, False, of_profile.unseen_points_max)
                found.append(unseen)
    return found


def subjects_with(mutant: str) -> list[str]:
    """Return the names of the subjects in which ``mutant`` is a defect, in the order of ``subjects``."""
    return [name for name, level in subjects() if level == LEVEL and IO_FAULTS[mutant].fits(name)]


def case_of(mutant: str, subject: str, fault: str = "") -> IoFaultCase:
    """Return the case that must detect ``mutant``, or the case of another ``fault`` with the mutant built in."""
    by = IO_FAULTS[mutant]
    variant = by.variant if fault in ("", by.fault) else ""
    states = STATES_PER_POSITION if (fault or by.fault) == "power" else None
    return IoFaultCase(
        subject, LEVEL, fault or by.fault, variant, mutant=mutant, records=by.records, states_per_position=states
    )


def measured_seeds(seed: int, number: int) -> list[int]:
    """Return ``seed`` and further seeds drawn from it, at which the default profile's own trials are measured."""
    return [seed, *random.Random(f"measured {seed}").sample(range(1_000, 1_000_000), max(0, number - 1))]


def cases_of_fault(
    fault: str,
    levels: Iterable[str],
    seed: int,
    chosen: Sequence[str] | None = None,
    *,
    points_max: int | None = None,
    states_per_position: int | None = None,
) -> list[PlannedCase]:
    """Return the cases of ``fault`` in every subject that carries one of ``levels``. A variant follows after a blank.

    Raises: ConfigError for a fault or variant that does not exist.
    """
    kind, _, variant = fault.partition(" ")
    fault = f"{kind} {variant}".strip()
    wanted = tuple(levels)
    most_states = states_per_position if kind in ("power", "failed_sync") else None
    return [
        PlannedCase(
            IoFaultCase(
                subject,
                level,
                kind,
                variant,
                records=kind_in_turn(subject, level, fault, seed),
                states_per_position=most_states,
            ),
            seed,
            points_max,
        )
        for subject, level in subjects()
        if level in wanted and _is_chosen(subject, chosen)
    ]


def kind_in_turn(subject: str, level: str, fault: str, seed: int) -> str:
    """Return the kind of store that a backend has under ``fault``. Kinds rotate with the backend, level and seed.

    The faults with the most points in the default profile have one kind, and all others the next but one. So a backend
    needs two recordings at a level. Subjects that are no backends have fixed kinds of stores.
    """
    if subject not in backends():
        return PLAIN
    turn = list(backends()).index(subject) + profiles.LEVELS.index(level) + (0 if fault in _MOST_TRIED else 2)
    return IN_TURN[(turn + seed) % len(IN_TURN)]


def picked(item: PlannedCase, points: Sequence[int], groups: Iterable[Group] = ()) -> list[int]:
    """Return the points to explore, ascending: ``points_max`` of ``points``, or all; see ``in_turn``."""
    return sorted(in_turn(item, points, groups))


def in_turn(item: PlannedCase, points: Sequence[int], groups: Iterable[Group] = ()) -> list[int]:
    """Return the points to explore, in the order in which the seed draws them."""
    case = item.case
    seed = item.seed if item.night is None else item.night
    choose = random.Random(f"points {seed} {case.subject} {case.level} {case.fault} {case.variant}")
    return drawn(points, groups, choose)[: item.points_max]


def cut(points: Sequence[int], width: int) -> list[Sequence[int]]:
    """Divide ``points`` into subsets of about the same size and at most ``width`` points; none for no points."""
    number = -(-len(points) // width)
    return [points[len(points) * at // number : len(points) * (at + 1) // number] for at in range(number)]


def in_rounds(order: Sequence[int], width: int) -> list[Sequence[int]]:
    """Divide the points of ``order`` into ascending subsets, of which the first are small and have the first points.

    So a run that its time ends early has tried the first points of every case. The widths double, up to ``width``.
    """
    parts: list[Sequence[int]] = []
    at, size = 0, max(1, width // FIRST_ROUND)
    while at < len(order):
        parts.append(sorted(order[at : at + size]))
        at, size = at + size, min(width, 2 * size)
    return parts


def _is_chosen(subject: str, chosen: Sequence[str] | None) -> bool:
    """Return True if ``subject`` is chosen. A choice of backends excludes the subjects that are no backends."""
    return chosen is None or subject in chosen
