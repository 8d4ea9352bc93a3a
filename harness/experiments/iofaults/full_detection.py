"""The check of the checks: each mutant is tried with its fault until it is detected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.budget import NEVER, Deadline
from harness.checkers.prefix import Found
from harness.experiments.iofaults.drawing import groups
from harness.experiments.iofaults.plan import PlannedCase, case_of, in_turn
from harness.experiments.iofaults.subsets import EXPLORERS, all_points
from harness.experiments.iofaults.workshop import Row, Workshop
from harness.processes.fork_server import ForkServer
from harness.processes.time_over import TimeOverError

POSITIONS_AT_ONCE = 4
"""The number of positions at which power is cut before the results are examined."""


class DetectionResult(NamedTuple):
    """The result for a mutant of ``subject`` under ``fault``: the row that detected it, or None.

    ``states`` counts the checked states, with the one that detected the mutant. ``trouble`` is the first harness error
    among the trials, or "". If there was one and no row detected the mutant, the result is no verdict.
    """

    mutant: str
    subject: str
    fault: str
    states: int
    row: Row | None
    trouble: str = ""


def detect_fully(
    mutant: str,
    subject: str,
    seed: int,
    fault: str = "",
    points_max: int | None = None,
    fork_server: ForkServer | None = None,
    deadline: Deadline = NEVER,
) -> DetectionResult:
    """Try ``mutant`` in ``subject`` until a promise is broken, with its own fault unless another is named.

    At most ``points_max`` points are tried, in the order in which a run draws them. A harness error detects no mutant.

    Raises: as ``Workshop``, ``all_points`` and ``in_parts``.
    """
    case = case_of(mutant, subject, fault)
    states, trouble = 0, ""
    with Workshop(case, seed, fork_server) as shop:
        order = in_turn(PlannedCase(case, seed, points_max), all_points(shop), groups(case.fault, shop.recording()))
        for points in in_parts(order, case.fault, deadline):
            for row in in_time(EXPLORERS[case.fault](shop, points, ""), deadline):
                if row["result"] == Found.HARNESS_ERROR:
                    trouble = trouble or row["detail"] or "no verdict"
                    continue
                states += 1
                if not row["expected"]:
                    return DetectionResult(mutant, subject, case.fault, states, row, trouble)
    return DetectionResult(mutant, subject, case.fault, states, None, trouble)


def in_parts(points: Sequence[int], fault: str, deadline: Deadline = NEVER) -> Iterator[list[int]]:
    """Yield ``points`` in their order, in parts: the points explored before the results are examined.

    Raises: TimeOverError if ``deadline`` has passed before the next part.
    """
    width = POSITIONS_AT_ONCE if fault.startswith("power") else 1
    for at in range(0, len(points), width):
        if deadline.passed:
            raise TimeOverError
        yield sorted(points[at : at + width])


def in_time(rows: Iterator[Row], deadline: Deadline = NEVER) -> Iterator[Row]:
    """Yield the rows of trials until ``deadline``. Raises: TimeOverError then."""
    for row in rows:
        yield row
        if deadline.passed:
            raise TimeOverError
