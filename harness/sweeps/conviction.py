"""Whether the sweeps see: each mutant is put to the fault it belongs to until it is found out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.checkers.prefix import Found
from harness.effects.nursery import Nursery
from harness.sweeps.case import Case
from harness.sweeps.drawing import groups
from harness.sweeps.mutants import LEVEL, MUTANTS
from harness.sweeps.plan import Swept, in_turn
from harness.sweeps.sweep import EXPLORERS, all_points
from harness.sweeps.workshop import Row, Workshop

POSITIONS_AT_ONCE = 4
"""Power is cut at so many positions before it is looked whether that was enough."""

STATES_PER_POSITION = 6
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
    return Case(
        subject, LEVEL, fault or told.fault, variant, mutant=mutant, records=told.records, states_per_position=states
    )


def convict(
    mutant: str,
    subject: str,
    seed: int,
    fault: str = "",
    points_max: int | None = None,
    nursery: Nursery | None = None,
) -> Conviction:
    """Sweep ``mutant`` in ``subject`` until a promise is broken, with its own fault unless another is named.

    No more than ``points_max`` points are tried, in the order in which a run draws them. A harness error convicts
    nobody.

    Raises: as ``sweep``.
    """
    case = case_of(mutant, subject, fault)
    states, trouble = 0, ""
    with Workshop(case, seed, nursery) as shop:
        order = in_turn(Swept(case, seed, points_max), all_points(shop), groups(case.fault, shop.recording()))
        for points in in_parts(order, case.fault):
            for row in EXPLORERS[case.fault](shop, points, ""):
                if row["result"] == Found.HARNESS_ERROR:
                    trouble = trouble or row["detail"] or "no verdict"
                    continue
                states += 1
                if not row["expected"]:
                    return Conviction(mutant, subject, case.fault, states, row, trouble)
    return Conviction(mutant, subject, case.fault, states, None, trouble)


def in_parts(points: Sequence[int], fault: str) -> Iterator[list[int]]:
    """``points`` in their order, so many at once as are explored before it is looked whether that was enough."""
    width = POSITIONS_AT_ONCE if fault.startswith("power") else 1
    for at in range(0, len(points), width):
        yield sorted(points[at : at + width])
