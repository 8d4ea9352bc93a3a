"""The trials of a profile, run with a mutant: the same points, states and faults as for correct code.

Only the fault that the mutant belongs to is tried, in all of its variants, at the level that promises most. Detections
by other faults of the profile are not counted, so the true rate is this one or higher.

``mutant_row`` is the work of one task of a run: the row of kind "mutant" that says if one was detected.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.budget import NEVER, Deadline
from harness.checkers.prefix import Found
from harness.experiments.iofaults.case import NOT_TRIED, is_wrong, repeat_command
from harness.experiments.iofaults.drawing import groups
from harness.experiments.iofaults.full_detection import DetectionResult, detect_fully, in_parts, in_time
from harness.experiments.iofaults.plan import LEVEL, PlannedCase, PlannedMutant, case_of, in_turn, planned_cases
from harness.experiments.iofaults.subsets import EXPLORERS, all_points, case_columns
from harness.experiments.iofaults.workshop import Row, Workshop
from harness.folders import quick_folder
from harness.mutants.registry import IO_FAULTS, MUTANTS
from harness.processes.fork_server import ForkServer
from harness.processes.time_over import TimeOverError


def trials_of(profile_name: str, mutant: str, subject: str, seed: int) -> list[PlannedCase]:
    """Return the cases of ``profile_name`` in ``subject`` with the fault of ``mutant``, which is built in.

    They use a store of the kind that the mutant needs. If the mutant has a variant of the fault, its cases come first.
    """
    by = IO_FAULTS[mutant]
    made = [
        replace(item, case=replace(item.case, mutant=mutant, records=by.records or item.case.records))
        for item in planned_cases(profile_name, seed, [subject])
        if (item.case.fault, item.case.level) == (by.fault, LEVEL)
    ]
    return sorted(made, key=lambda item: bool(by.variant) and item.case.variant != by.variant)


def detect(
    mutant: str,
    subject: str,
    seed: int,
    profile_name: str = "default",
    fork_server: ForkServer | None = None,
    deadline: Deadline = NEVER,
) -> DetectionResult:
    """Run the trials that ``profile_name`` has for ``subject`` at ``seed``, until one fails the run.

    They run in the order in which they are drawn. A harness error detects no mutant. Raises: as ``Workshop``,
    ``all_points`` and ``in_parts``.
    """
    trials, trouble = 0, ""
    planned = trials_of(profile_name, mutant, subject, seed)
    with TemporaryDirectory(prefix="detection-", dir=quick_folder()) as folder:
        for item in planned:
            # One recording is for all variants of the fault, as in a run.
            case = replace(item.case, recording=str(Path(folder) / "recording"))
            with Workshop(case, seed, fork_server) as shop:
                order = in_turn(item, all_points(shop), groups(case.fault, shop.recording()))
                for points in in_parts(order, case.fault, deadline):
                    for row in in_time(EXPLORERS[case.fault](shop, points, ""), deadline):
                        if row["result"] == Found.HARNESS_ERROR:
                            trouble = trouble or row["detail"] or "no verdict"
                            continue
                        trials += 1
                        if is_wrong({"kind": "effect", **row}):
                            again = repeat_command(item.case, row["point"], seed, row["only"])
                            return DetectionResult(
                                mutant, subject, case.fault, trials, row | {"repeat": again}, trouble
                            )
    return DetectionResult(mutant, subject, IO_FAULTS[mutant].fault, trials, None, trouble)


def mutant_row(wanted: PlannedMutant, fork_server: ForkServer | None, deadline: Deadline = NEVER) -> Row:
    """Run the trials of a mutant, and return its row. An error becomes a row without a verdict.

    If ``deadline`` passes before the search has ended, the mutant was not tried.
    """
    row = untried_row(wanted)
    try:
        found = _tried(wanted, row, fork_server, deadline)
    except TimeOverError:
        return row
    except Exception as error:
        trouble = {"result": str(Found.HARNESS_ERROR), "detail": f"{type(error).__name__}: {error}"}
        return row | trouble | {"expected": False}
    if found.row is None and (found.trouble or not found.states):
        trouble = {"result": str(Found.HARNESS_ERROR), "detail": found.trouble or "nothing was tried"}
        return row | trouble | {"states": found.states, "expected": False}
    by = found.row or {}
    return row | {
        "states": found.states,
        "result": by.get("result", ""),
        "description": by.get("description", ""),
        "detail": by.get("detail", ""),
        "repeat": by.get("repeat", row["repeat"]),
        "expected": wanted.measured or (found.row is not None) is wanted.found,
    }


def untried_row(wanted: PlannedMutant) -> Row:
    """Return the row of a mutant that a run has left out."""
    case = case_of(wanted.mutant, wanted.subject, wanted.fault)
    return {
        "kind": "mutant",
        "mutant": wanted.mutant,
        "meaning": MUTANTS[wanted.mutant].meaning,
        "wanted": "measured" if wanted.measured else "found" if wanted.found else "not seen",
        "by_gate": None,
        "description": "",
        "repeat": repeat_command(case, None, wanted.seed),
        **case_columns(case),
        "states": 0,
        "result": NOT_TRIED,
        "detail": "",
        "expected": None,
    }


def _tried(wanted: PlannedMutant, row: Row, fork_server: ForkServer | None, deadline: Deadline) -> DetectionResult:
    """Try the profile's own trials if they are measured, then all. ``row`` records if they detected the mutant."""
    if wanted.profile:
        by_profile = detect(wanted.mutant, wanted.subject, wanted.seed, wanted.profile, fork_server, deadline)
        if by_profile.row is not None or not by_profile.trouble:
            row["by_gate"] = by_profile.row is not None
        if by_profile.row is not None or wanted.measured:
            return by_profile
    return detect_fully(
        wanted.mutant, wanted.subject, wanted.seed, wanted.fault, wanted.points_max, fork_server, deadline
    )
