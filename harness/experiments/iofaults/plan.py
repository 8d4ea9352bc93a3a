"""The cases of a profile, how many points of each are explored, and their slices: pure functions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from harness.experiments.iofaults.case import VARIANTS, Case
from harness.experiments.iofaults.drawing import Group, drawn
from harness.experiments.iofaults.mutated import LEVEL, subjects_with
from harness.experiments.iofaults.subjects import ADOPTIONS, ONLINE_UPGRADE, PUNCTUATION, TASKS, subjects
from harness.mutants.registry import IO_FAULTS
from harness.typed_maps import IN_TURN, PLAIN
from stores.registry import backends

POINTS_PER_SLICE: Mapping[str, int] = MappingProxyType(
    {
        "kill": 120,
        "tear": 60,
        "kill_twice": 6,
        "error": 60,
        "power": 96,
        "power_twice": 4,
        "failed_sync": 4,
        "damage": 60,
    }
)
"""The number of points of a fault that make a task of some seconds."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A case to explore with ``seed``: all of its points, or at most ``points_max`` that the seed picks."""

    case: Case
    seed: int
    points_max: int | None = None
    scenario: str = ""


@dataclass(frozen=True, slots=True)
class Convicted:
    """A mutant to be detected in ``subject`` by ``fault``, or, if ``found`` is false, not to be detected by it.

    ``gate`` is a profile whose own trials run first, to measure if they detect the mutant; "" for none. If ``measured``
    is true, only these trials run, and a mutant that they miss does not fail the run.
    """

    mutant: str
    subject: str
    fault: str
    seed: int
    found: bool = True
    points_max: int | None = None
    scenario: str = ""
    gate: str = ""
    measured: bool = False


@dataclass(frozen=True, slots=True)
class _Share:
    """The share of a profile that a fault has at some levels. ``points_max`` is None for every point, 0 for none."""

    faults: tuple[str, ...]
    levels: tuple[str, ...] = ("CHANGELOG", "PROCESS", "DISK")
    points_max: int | None = None
    states_per_position: int | None = None


LEVELS = ("CHANGELOG", "PROCESS", "DISK")
_MOST_TRIED = ("kill", "tear", "power gate")
_BELOW_DISK = ("CHANGELOG", "PROCESS")
_ERRORS = tuple(f"error {variant}" for variant in VARIANTS["error"])
_DAMAGES = tuple(f"damage {variant}" for variant in VARIANTS["damage"])
_SHARES: Mapping[str, tuple[_Share, ...]] = MappingProxyType(
    {
        "smoke": (
            _Share(("kill",), ("DISK",), 4),
            _Share(("power gate",), ("DISK",), 8, 2),
            _Share(("error EIO once",), ("DISK",), 2),
        ),
        "default": (
            _Share(("kill",), ("DISK",)),
            _Share(("power gate",), ("DISK",), 280, 3),
            _Share(("power gate",), _BELOW_DISK, 64, 3),
            _Share(("kill",), _BELOW_DISK, 16),
            _Share(("tear",), ("DISK",), 24),
            # A missing sync of a folder shows at some positions of a commit only, and only under this model.
            _Share(("power strict",), ("DISK",), 64, 4),
            _Share(("power journal", "power beyond"), ("DISK",), 8, 4),
            _Share(_ERRORS, ("DISK",), 4),
            _Share(("failed_sync",), ("DISK",), 6, 3),
            _Share(("error EIO once", "error ENOSPC lasting"), _BELOW_DISK, 4),
            _Share(_DAMAGES, ("DISK",), 48),
        ),
        "full": (
            _Share(("kill", "tear", "power gate", "power journal", "power strict", "power beyond")),
            _Share((*_ERRORS, *_DAMAGES)),
            _Share(("kill_twice", "failed_sync gate", "failed_sync strict")),
            _Share(("power_twice",), points_max=64),
        ),
    }
)
_TASK_POINTS_MAX: Mapping[str, int | None] = MappingProxyType({"smoke": 2, "default": 24, "full": None})
"""The number of points of a fault that are tried on a task. Its stores and its changelog are also tried alone."""
_KILLS_AT_DISK: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"default": {TASKS[0]: 80, PUNCTUATION: 80, ONLINE_UPGRADE: 60, ADOPTIONS[1]: 120}, "smoke": {}, "full": {}}
)
"""More kills for subjects in which a mutant shows at few effects of a commit: so many detect it in 95 % of runs."""
GATE = "default"
"""The profile whose detection rate is measured: the one that runs before a change is accepted."""
_MEASURED_SEEDS: Mapping[str, int] = MappingProxyType({"smoke": 0, "default": 2, "full": 20})
"""The number of seeds with which the gate's own trials are run for each mutant. In the default profile it is one for
kills, if the gate kills at every effect."""
_VARIATION_POINTS_MAX: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "smoke": {"": 2},
        "default": {"kill": 17, "power gate": 8, "power": 0, "failed_sync": 0, "": 4},
        "full": {"kill": 200, "": 48},
    }
)
"""The number of points for variations of a subject that is tried at DISK: other pairs of engines, other levels. The key
is the fault with its variant, else the fault, else an empty string."""
_UNSEEN_POINTS_MAX: Mapping[str, int | None] = MappingProxyType({"smoke": 0, "default": 24, "full": None})


def profile(name: str, seed: int, chosen: Sequence[str] | None = None) -> list[Swept]:
    """Return the cases of the profile ``name`` (smoke, default, full), of all subjects or the ``chosen`` backends."""
    planned = [
        swept
        for share in _SHARES[name]
        for fault in share.faults
        for swept in sweeps(
            fault,
            share.levels,
            seed,
            chosen,
            points_max=share.points_max,
            states_per_position=share.states_per_position,
        )
    ]
    bounded = [(swept, _points_max(name, swept)) for swept in planned]
    return [replace(swept, points_max=most) for swept, most in bounded if most != 0]


def _points_max(name: str, swept: Swept) -> int | None:
    """Return the largest number of points of ``swept`` that the profile ``name`` explores, or None for all."""
    case = swept.case
    bounds = [swept.points_max]
    kills = _KILLS_AT_DISK[name]
    if (case.fault, case.level) == ("kill", "DISK") and case.subject in kills:
        bounds.append(kills[case.subject])
    elif (case.subject, case.level) == (TASKS[0], "DISK"):
        bounds.append(_TASK_POINTS_MAX[name])
    elif case.subject in TASKS or (case.subject in ADOPTIONS and (case.subject, case.level) != (ADOPTIONS[0], "DISK")):
        variations = _VARIATION_POINTS_MAX[name]
        fault = next(each for each in (f"{case.fault} {case.variant}", case.fault, "") if each in variations)
        bounds.append(variations[fault])
    return min((most for most in bounds if most is not None), default=None)


def convictions(
    name: str, seed: int, chosen: Sequence[str] | None = None, mutants: Iterable[str] | None = None
) -> list[Convicted]:
    """Return the profile's mutants, in each subject that they fit, and the faults that must not detect them.

    The gate's own trials are measured at ``seed`` and at seeds derived from it. The profile smoke has one mutant for
    each fault, in one subject, and measures nothing.
    """
    found: list[Convicted] = []
    if mutants is None:
        one_each: dict[str, str] = {}
        for mutant, by in IO_FAULTS.items():
            one_each.setdefault(by.fault, mutant)
        mutants = one_each.values() if name == "smoke" else IO_FAULTS
    for mutant in mutants:
        by = IO_FAULTS[mutant]
        fitting = [subject for subject in subjects_with(mutant) if _is_chosen(subject, chosen)]
        for subject in fitting[:1] if name == "smoke" else fitting:
            measured = _MEASURED_SEEDS[name]
            kills = Swept(Case(subject, LEVEL, "kill"), seed)
            if measured and name == GATE and by.fault == "kill" and _points_max(GATE, kills) is None:
                measured = 1
            gate = GATE if measured else ""
            found.append(Convicted(mutant, subject, by.fault, seed, gate=gate))
            for drawn_seed in measured_seeds(seed, measured)[1:]:
                found.append(Convicted(mutant, subject, by.fault, drawn_seed, gate=gate, measured=True))
            if by.unseen_by and _UNSEEN_POINTS_MAX[name] != 0:
                unseen = Convicted(mutant, subject, by.unseen_by, seed, False, _UNSEEN_POINTS_MAX[name])
                found.append(unseen)
    return found


def measured_seeds(seed: int, number: int) -> list[int]:
    """Return ``seed`` and further seeds drawn from it, at which the gate's own trials are measured."""
    return [seed, *random.Random(f"measured {seed}").sample(range(1_000, 1_000_000), max(0, number - 1))]


def sweeps(
    fault: str,
    levels: Iterable[str],
    seed: int,
    chosen: Sequence[str] | None = None,
    *,
    points_max: int | None = None,
    states_per_position: int | None = None,
) -> list[Swept]:
    """Return the cases of ``fault`` in every subject that carries one of ``levels``. A variant follows after a blank.

    Raises: ConfigError for a fault or variant that does not exist.
    """
    kind, _, variant = fault.partition(" ")
    wanted = tuple(levels)
    most_states = states_per_position if kind in ("power", "failed_sync") else None
    return [
        Swept(
            Case(
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
    turn = list(backends()).index(subject) + LEVELS.index(level) + (0 if fault in _MOST_TRIED else 2)
    return IN_TURN[(turn + seed) % len(IN_TURN)]


def picked(swept: Swept, points: Sequence[int], groups: Iterable[Group] = ()) -> list[int]:
    """Return the points to explore, ascending: ``points_max`` of ``points``, or all; see ``in_turn``."""
    return sorted(in_turn(swept, points, groups))


def in_turn(swept: Swept, points: Sequence[int], groups: Iterable[Group] = ()) -> list[int]:
    """Return the points to explore, in the order in which the seed draws them."""
    case = swept.case
    choose = random.Random(f"points {swept.seed} {case.subject} {case.level} {case.fault} {case.variant}")
    return drawn(points, groups, choose)[: swept.points_max]


def cut(points: Sequence[int], width: int) -> list[Sequence[int]]:
    """Divide ``points`` into slices of about the same size and at most ``width`` points; none for no points."""
    number = -(-len(points) // width)
    return [points[len(points) * at // number : len(points) * (at + 1) // number] for at in range(number)]


def _is_chosen(subject: str, chosen: Sequence[str] | None) -> bool:
    """Return True if ``subject`` is chosen. A choice of backends excludes the subjects that are no backends."""
    return chosen is None or subject in chosen
