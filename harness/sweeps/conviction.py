"""Whether the sweeps see: each mutant is put to the fault it belongs to until it is found out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import gcd
from typing import NamedTuple

from harness.checkers.prefix import Found
from harness.effects.nursery import Nursery
from harness.effects.recording import Effect, Kind
from harness.sweeps.case import Case
from harness.sweeps.mutants import LEVEL, MUTANTS
from harness.sweeps.sweep import EXPLORERS, all_points
from harness.sweeps.workload import LARGE_EVERY
from harness.sweeps.workshop import Row, Workshop

POSITIONS_AT_ONCE = 4
"""Power is cut at so many positions in a row before it is looked whether that was enough."""

STATES_PER_POSITION = 16
"""Of each position no more than so many states are tried: where something is wrong, it is in many of them."""


class Conviction(NamedTuple):
    """What became of a mutant of ``subject`` under ``fault``: the row that found it after ``states`` states, or None.

    ``states`` counts those that were judged, the one that convicts included. ``trouble`` is the first harness error
    among them, "" where there was none: where nothing was found either, that nobody saw anything says nothing.
    """

    mutant: str
    subject: str
    fault: str
    states: int
    row: Row | None
    trouble: str = ""


def case_of(mutant: str, subject: str, fault: str = "") -> Case:
    """The sweep that must convict ``mutant``, or another one of it."""
    told = MUTANTS[mutant]
    variant = told.variant if fault in ("", told.fault) else ""
    states = STATES_PER_POSITION if (fault or told.fault) == "power" else None
    return Case(subject, LEVEL, fault or told.fault, variant, mutant=mutant, states_per_position=states)


def convict(
    mutant: str,
    subject: str,
    seed: int,
    fault: str = "",
    points_max: int | None = None,
    nursery: Nursery | None = None,
) -> Conviction:
    """Sweep ``mutant`` in ``subject`` until a promise is broken, with its own fault unless another is named.

    No more than ``points_max`` points are tried, spread over all there are. A harness error convicts nobody.

    Raises: as ``sweep``.
    """
    case = case_of(mutant, subject, fault)
    states, trouble = 0, ""
    with Workshop(case, seed, nursery) as shop:
        for points in _in_turn(shop, points_max):
            for row in EXPLORERS[case.fault](shop, points, ""):
                if row["result"] == Found.HARNESS_ERROR:
                    trouble = trouble or row["detail"] or "no verdict"
                    continue
                states += 1
                if not row["expected"]:
                    return Conviction(mutant, subject, case.fault, states, row, trouble)
    return Conviction(mutant, subject, case.fault, states, None, trouble)


def _in_turn(shop: Workshop, points_max: int | None) -> Iterator[range]:
    """The points in slices, from many places rather than in order.

    First where a commit was acknowledged, and behind a renaming: what was not synced before it is missed there. Of a
    mutant that shows in spilled transactions first in large commits, before what was spilled is removed.
    """
    points = all_points(shop)
    power = shop.case.fault == "power"
    width = POSITIONS_AT_ONCE if power else 1
    slices = [points[at : at + width] for at in range(0, len(points), width)]
    # A step that goes round the whole list and comes by every slice once.
    step = next(step for step in count(len(slices) * 5 // 8 + 1) if gcd(step, len(slices)) == 1)
    order = [slices[(number + 1) * step % len(slices)] for number in range(len(slices))]
    if power:
        told = {effect.index + (effect.kind is Kind.RENAME) for effect in shop.recording() if _is_telling(effect)}
        order.sort(key=told.isdisjoint)
        if MUTANTS[shop.case.mutant].spilled:
            left = _to_removal(shop.recording(), shop.case.commits)
            order.sort(key=lambda some: min(left.get(position, len(points)) for position in some))
    yield from order if points_max is None else order[: max(1, points_max // width)]


def _to_removal(recording: Sequence[Effect], commits: int) -> dict[int, int]:
    """How many positions lie between a position in a large commit and the first removal of a file in that commit.

    A copy is then nearly complete, and all that is missing comes from what was spilled. Only the first half of the
    ``commits`` is looked at: the process that opens a store the second time has room in memory for all of them.
    """
    left: dict[int, int] = {}
    begun: int | None = None
    for effect in recording:
        told, _, number = effect.text.partition(" ")
        if told == "attempt" and int(number) in range(LARGE_EVERY, commits // 2 + 1, LARGE_EVERY):
            begun = effect.index
        elif begun is not None and effect.kind is Kind.UNLINK:
            left.update({position: effect.index - position for position in range(begun, effect.index + 1)})
            begun = None
        elif told == "ack":
            begun = None
    return left


def _is_telling(effect: Effect) -> bool:
    return effect.kind is Kind.RENAME or effect.text.startswith("ack")
