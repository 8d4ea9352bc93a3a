"""The search for a mutant, by trials of its own or by those of a profile; and how often a profile detects each.

The trials of a profile have the same points, states and faults as for correct code. Only the fault that the mutant
belongs to is tried, in all of its variants, at the level that promises most. Detections by other faults of the profile
are not counted, so the true rate is this one or higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from harness.budget import DEFAULT, NEVER, Deadline, TimeOverError
from harness.checkers.prefix import Found
from harness.experiments.iofaults.case import ENOUGH, NOT_TRIED, is_wrong, repeat_command
from harness.experiments.iofaults.classes import PointClasses
from harness.experiments.iofaults.fault import IO_FAULTS, Row
from harness.experiments.iofaults.plan import (
    LEVEL,
    NEW,
    PlannedCase,
    PlannedMutant,
    case_of,
    in_turn,
    planned_cases,
    resolution_of,
    subjects_with,
)
from harness.experiments.iofaults.subjects import subject_named
from harness.experiments.iofaults.workshop import Workshop
from harness.folders import quick_folder
from harness.io_trace.recorder import recorder_library
from harness.mutants import IO_MUTANTS, MUTANTS
from harness.processes.fork_server import ForkServer, fork_server
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError

POSITIONS_AT_ONCE = 4
"""The number of positions at which power is cut before the results are examined."""


class DetectionResult(NamedTuple):
    """The result for a mutant: the row that detected it, or None.

    ``states`` counts the checked states, with the one that detected the mutant. ``trouble`` is the first harness error
    among the trials, or "". If there was one and no row detected the mutant, the result is no verdict.
    """

    states: int = 0
    row: Row | None = None
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

    Raises: as ``Workshop`` and ``in_parts``.
    """
    case = case_of(mutant, subject, fault)
    cases = [PlannedCase(case, seed, points_max)]
    return _searched(cases, lambda row: not row["expected"], fork_server, deadline)


def _searched(
    planned: Iterable[PlannedCase],
    shows: Callable[[Row], bool],
    fork_server: ForkServer | None,
    deadline: Deadline,
) -> DetectionResult:
    """Make the trials of the ``planned`` cases, in the order in which a run draws them, until one shows the mutant."""
    result = DetectionResult()
    with TemporaryDirectory(prefix="detection-", dir=quick_folder()) as folder:
        for item in planned:
            # One recording is for all variants of the fault with the same kind of records, as in a run.
            case = replace(item.case, recording=str(Path(folder) / f"recording-{item.case.records}"))
            for row in _rows(replace(item, case=case), fork_server, deadline):
                if row["result"] == Found.HARNESS_ERROR:
                    result = result._replace(trouble=result.trouble or row["detail"] or "no verdict")
                    continue
                result = result._replace(states=result.states + 1)
                if shows(row):
                    again = repeat_command(item.case, row["point"], item.seed, row["only"])
                    return result._replace(row=row | {"repeat": again})
    return result


def _rows(item: PlannedCase, fork_server: ForkServer | None, deadline: Deadline) -> Iterator[Row]:
    """Yield the rows of a case in the order of its points. Raises: TimeOverError when ``deadline`` has passed."""
    with Workshop(item.case, item.seed, fork_server) as shop:
        fault, recording = IO_FAULTS[item.case.fault], shop.recording()
        classes = fault.classes(PointClasses(recording), item.case.variant, item.seed, resolution_of(item.case))
        order = in_turn(item, shop.points(), fault.guides(recording), classes)
        for points in in_parts([point for _, point in order], item.case.fault, deadline):
            for row in shop.explore(points):
                yield row
                if deadline.passed:
                    raise TimeOverError


def in_parts(points: Sequence[int], fault: str, deadline: Deadline = NEVER) -> Iterator[list[int]]:
    """Yield ``points`` in their order, in parts: the points explored before the results are examined.

    Raises: TimeOverError if ``deadline`` has passed before the next part.
    """
    width = POSITIONS_AT_ONCE if fault.startswith("power") else 1
    for at in range(0, len(points), width):
        if deadline.passed:
            raise TimeOverError
        yield sorted(points[at : at + width])


def trials_of(profile_name: str, mutant: str, subject: str, seed: int) -> list[PlannedCase]:
    """Return the cases of ``profile_name`` in ``subject`` with the fault of ``mutant``, which is built in.

    They use a store of the kind that the mutant needs. If the mutant has a variant of the fault, its cases come first.
    """
    by = IO_MUTANTS[mutant]
    cases = [
        replace(item, case=replace(item.case, mutant=mutant, records=by.records or item.case.records))
        for item in planned_cases(profile_name, seed, [subject])
        if (item.case.fault, item.case.level) == (by.fault, LEVEL)
    ]
    return sorted(cases, key=lambda item: bool(by.variant) and item.case.variant != by.variant)


def detect(
    mutant: str,
    subject: str,
    seed: int,
    profile_name: str = "default",
    fork_server: ForkServer | None = None,
    deadline: Deadline = NEVER,
) -> DetectionResult:
    """Run the trials that ``profile_name`` has for ``subject`` at ``seed``, until one fails the run.

    They run in the order in which they are drawn. A harness error detects no mutant. Raises: as ``Workshop`` and
    ``in_parts``.
    """
    cases = trials_of(profile_name, mutant, subject, seed)
    return _searched(cases, is_wrong, fork_server, deadline)


class Drawing(NamedTuple):
    """The result of a mutant with the same number of points drawn in two ways: True where one of them detects it."""

    by_classes: bool
    at_random: bool


def drawing(
    mutant: str, subject: str, seed: int, fork_server: ForkServer | None, deadline: Deadline = NEVER
) -> Drawing:
    """Try ``mutant`` at a point of each class, and at as many points that are drawn from all alike.

    A point that both have is tried once. Raises: as ``Workshop``, and TimeOverError.
    """
    item = PlannedCase(case_of(mutant, subject), seed)
    with TemporaryDirectory(prefix="drawing-", dir=quick_folder()) as folder:
        case = replace(item.case, recording=str(Path(folder) / "recording"))
        with Workshop(case, seed, fork_server) as shop:
            shows: dict[int, bool] = {}

            def detects(point: int) -> bool:
                if deadline.passed:
                    raise TimeOverError
                if point not in shows:
                    shows[point] = any(_shows(row) for row in shop.explore([point]))
                return shows[point]

            fault, recording = IO_FAULTS[case.fault], shop.recording()
            classes = fault.classes(PointClasses(recording), case.variant, seed, resolution_of(case))
            turns = in_turn(item, shop.points(), fault.guides(recording), classes)
            by_classes = [point for turn, point in turns if turn.part == NEW]
            at_random = [point for _, point in in_turn(item, sorted(classes))][: len(by_classes)]
            return Drawing(*(any(detects(point) for point in order) for order in (by_classes, at_random)))


def _shows(row: Row) -> bool:
    return not row["expected"] and row["result"] != Found.HARNESS_ERROR


def mutant_row(wanted: PlannedMutant, fork_server: ForkServer | None, deadline: Deadline = NEVER) -> Row:
    """Run the trials of a mutant, and return its row. An error becomes a row without a verdict.

    If ``deadline`` passes before the search has ended, the mutant was not tried.
    """
    row = untried_row(wanted)
    try:
        detection = _tried(wanted, row, fork_server, deadline)
    except TimeOverError:
        return row
    except Exception as error:
        trouble = {"result": str(Found.HARNESS_ERROR), "detail": f"{type(error).__name__}: {error}"}
        return row | trouble | {"expected": False}
    if detection.row is None and (detection.trouble or not detection.states):
        trouble = {"result": str(Found.HARNESS_ERROR), "detail": detection.trouble or "nothing was tried"}
        return row | trouble | {"states": detection.states, "expected": False}
    by = detection.row or {}
    return row | {
        "states": detection.states,
        "result": by.get("result", ""),
        "description": by.get("description", ""),
        "detail": by.get("detail", ""),
        "repeat": by.get("repeat", row["repeat"]),
        "expected": wanted.measured or (detection.row is not None) is wanted.found,
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
        **dict.fromkeys(Drawing._fields),
        "description": "",
        "repeat": repeat_command(case, None, wanted.seed),
        **case.columns,
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
        if wanted.measured:
            row |= drawing(wanted.mutant, wanted.subject, wanted.seed, fork_server, deadline)._asdict()
        if by_profile.row is not None or wanted.measured:
            return by_profile
    return detect_fully(
        wanted.mutant, wanted.subject, wanted.seed, wanted.fault, wanted.points_max, fork_server, deadline
    )


def measure(
    mutants: Sequence[str] | None, backends: Sequence[str] | None, seeds: range, *, by_classes: bool = False
) -> int:
    """Print how often the default profile's trials detect each mutant at ``seeds``. Return 1 if that is too rare.

    With ``by_classes`` it prints instead how often a point of each class detects it, and how often as many points that
    are drawn at random. It returns 1 if that is more often for all mutants together.

    ``mutants`` None means all, and ``backends`` None all that a mutant fits. Raises: ConfigError for an unknown name,
    and if there is nothing to measure.
    """
    check_known("mutant", IO_MUTANTS, *(mutants or ()))
    names = None if backends is None else [subject_named(name) for name in backends]
    pairs = [
        (mutant, subject)
        for mutant in mutants or IO_MUTANTS
        for subject in subjects_with(mutant)
        if names is None or subject in names
    ]
    if not pairs or not seeds:
        raise ConfigError(
            "there is nothing to measure: name mutants and backends that fit each other, and at least one seed"
        )
    recorder_library()
    if by_classes:
        return _compare_drawings(pairs, seeds)
    outcomes: dict[str, list[bool]] = {}
    with fork_server(preload=True) as server:
        for mutant, subject in pairs:
            misses = []
            for seed in seeds:
                detection = detect(mutant, subject, seed, DEFAULT, server)
                if detection.row is None and detection.trouble:
                    raise ConfigError(f"{mutant} in {subject} at seed {seed} has no verdict: {detection.trouble}")
                outcomes.setdefault(mutant, []).append(detection.row is not None)
                misses += [seed] if detection.row is None else []
            suffix = f", missed at {', '.join(map(str, misses))}" if misses else ""
            print(f"{mutant} in {subject}: {len(seeds) - len(misses)} of {len(seeds)} seeds{suffix}", flush=True)
    weak = [mutant for mutant, runs in outcomes.items() if sum(runs) < ENOUGH * len(runs)]
    for mutant, runs in outcomes.items():
        print(f"{mutant}: detected in {sum(runs)} of {len(runs)} runs, {100 * sum(runs) / len(runs):.0f} %")
    enough = f"{len(outcomes) - len(weak)} of {len(outcomes)} mutants"
    print(f"The {DEFAULT} profile detects {enough} in {ENOUGH:.0%} of their runs or more.")
    return 1 if weak else 0


def _compare_drawings(pairs: Sequence[tuple[str, str]], seeds: range) -> int:
    runs: list[Drawing] = []
    with fork_server(preload=True) as server:
        for mutant, subject in pairs:
            own = [drawing(mutant, subject, seed, server) for seed in seeds]
            print(f"{mutant} in {subject}: {_compared(own)}", flush=True)
            runs += own
    print(f"All: {_compared(runs)}.")
    return int(sum(run.by_classes for run in runs) < sum(run.at_random for run in runs))


def _compared(runs: Sequence[Drawing]) -> str:
    by_classes, at_random = (sum(run[place] for run in runs) for place in (0, 1))
    return f"by classes {by_classes} of {len(runs)} seeds, at random {at_random} of {len(runs)}"
