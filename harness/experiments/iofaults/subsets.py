"""The subsets of a run: each is the work of one task, some points of a case.

A fault explores ascending points of a case, and returns a row for each trial. A row depends on the case, the point and
the seed alone (and, in engines with threads, on their schedule). So rows do not depend on the subsets into which points
were divided.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.budget import NEVER, Deadline, TimeOverError
from harness.checkers.prefix import Found
from harness.experiments.iofaults.case import IoFaultCase, repeat_command
from harness.experiments.iofaults.classes import PointClasses
from harness.experiments.iofaults.fault import IO_FAULTS, Guide, Row
from harness.experiments.iofaults.plan import (
    FIRST,
    FURTHER,
    KNOWN,
    NEW,
    PlannedCase,
    PlannedMutant,
    Turn,
    case_of,
    in_rounds,
    in_turn,
    resolution_of,
)
from harness.experiments.iofaults.workshop import Workshop
from harness.folders import ROOT
from harness.io_trace.recorder import Kind
from harness.processes.fork_server import ForkServer


@dataclass(frozen=True, slots=True)
class RecordedWriter:
    """The parameters of a writer process that is recorded once, for all cases that need the recording."""

    case: IoFaultCase
    """Without a fault that strikes."""
    seed: int

    @classmethod
    def of(cls, item: PlannedCase) -> RecordedWriter:
        """Return the writer process that the trials of ``item`` run."""
        return cls(replace(item.case, fault="kill", variant="", recording="", states_per_position=None), item.seed)

    @property
    def name(self) -> str:
        """The name of the recording's file."""
        case = self.case
        kind = filter(None, (case.subject, case.records))
        return "-".join([*kind, case.level, str(case.commits), str(self.seed), *filter(None, [case.mutant])])


@dataclass(frozen=True, slots=True)
class Recorded:
    """A summary of a recording: the points of each fault, and the writes that it misses.

    ``error`` is the reason why there is no recording, or "". ``points`` is the number of points by fault and variant.
    ``guides`` holds, by fault, the points that are drawn first. ``classes`` are the points of each class, by fault and
    variant.
    """

    points: Mapping[str, int] = field(default_factory=dict)
    guides: Mapping[str, Sequence[Guide]] = field(default_factory=dict)
    blind_spots: str = ""
    error: str = ""
    classes: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subset:
    """The work of one task, as plain values: ``planned_mutant``, or, where that is None, ``points`` of ``case``.

    The case has ``points_in_all`` points. ``recording`` is the path of the recording in a command. ``error`` is the
    reason why the points cannot be explored, or "".
    """

    number: int
    scenario: str
    seed: int
    case: IoFaultCase
    recording: str = ""
    points: Sequence[int] = ()
    points_in_all: int = 0
    blind_spots: str = ""
    planned_mutant: PlannedMutant | None = None
    error: str = ""
    classes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The classes of the points with their points; in the first subset of a case also the others, with none."""
    turn: Turn = FIRST
    """When it is to be explored, among all subsets."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A case whose writer was not recorded in time: nothing of it can run."""

    planned: PlannedCase


def make_recording(writer: RecordedWriter, file: Path, fork_server: ForkServer | None = None) -> Recorded:
    """Record a writer process without faults in ``file``. Return a summary of the recording."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.new")
    # A killed process with the same ID may have left a file, which would be taken for the recording.
    beside.unlink(missing_ok=True)
    try:
        with Workshop(replace(writer.case, recording=str(beside)), writer.seed, fork_server) as shop:
            recording = shop.recording()
        beside.replace(file)
    except Exception as error:
        # Any error becomes a row of this subject; the rows of other subjects are kept.
        return Recorded(error=f"{type(error).__name__}: {error}")
    finally:
        beside.unlink(missing_ok=True)
    unseen = sorted({Path(operation.path).name for operation in recording if operation.kind is Kind.MAP_WRITABLE})
    known = PointClasses(recording)
    points, classes = {}, {}
    for name, fault in IO_FAULTS.items():
        for variant in fault.variants:
            case = replace(writer.case, fault=name, variant=variant)
            points[case.fault_and_variant] = len(fault.points(recording, variant, writer.seed))
            of = fault.classes(known, variant, writer.seed, resolution_of(case))
            classes[case.fault_and_variant] = by_class(of)
    guides = {name: fault.guides(recording) for name, fault in IO_FAULTS.items()}
    return Recorded(points, guides, ", ".join(unseen), "", classes)


def by_class(classes: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the points of each class."""
    points: dict[str, list[int]] = {}
    for point, name in classes.items():
        points.setdefault(name, []).append(point)
    return points


def subsets_of(
    planned: Iterable[PlannedCase | PlannedMutant],
    recorded: Mapping[RecordedWriter, Recorded],
    recordings: Path,
) -> list[Subset]:
    """Return all that is planned as tasks, each with its turn."""
    subsets: list[Subset] = []
    work = list(planned)
    for each in work:
        if isinstance(each, PlannedMutant):
            mutant = case_of(each.mutant, each.subject, each.fault)
            part = FURTHER if each.measured else KNOWN if each.last_tried else NEW
            turn = Turn(part, each.last_tried)
            subsets.append(Subset(len(subsets), each.scenario, each.seed, mutant, planned_mutant=each, turn=turn))
    for each in work:
        if isinstance(each, PlannedCase):
            writer = RecordedWriter.of(each)
            case, recording = each.case, ""
            if IO_FAULTS[case.fault].from_recording:
                file = recordings / writer.name
                case = replace(case, recording=str(file))
                recording = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
            of = recorded[writer]
            width = IO_FAULTS[case.fault].points_per_subset
            in_all = range(0 if of.error else of.points[case.fault_and_variant])
            classes = of.classes.get(case.fault_and_variant, {})
            of_point = {point: name for name, points in classes.items() for point in points}
            order = in_turn(each, in_all, of.guides.get(case.fault, ()), of_point)
            parts = [(FIRST, ())] if of.error else in_rounds(order, width)
            subsets += [
                Subset(
                    len(subsets) + place,
                    each.scenario,
                    each.seed,
                    case,
                    recording,
                    tuple(points),
                    len(in_all),
                    of.blind_spots,
                    error=of.error,
                    classes={**({} if place else dict.fromkeys(classes, ())), **by_class(_among(of_point, points))},
                    turn=turn,
                )
                for place, (turn, points) in enumerate(parts)
            ]
    return subsets


def _among(of_point: Mapping[int, str], points: Iterable[int]) -> dict[int, str]:
    return {point: of_point[point] for point in points if point in of_point}


def trial_rows(subset: Subset, fork_server: ForkServer | None, deadline: Deadline = NEVER) -> tuple[list[Row], int]:
    """Run the subset's trials of a case, and return a row for each, and the number of points that were explored.

    After ``deadline`` no trial begins, also within a point, which may have hundreds of them. A point that is not
    complete counts as left out. An error becomes a row without a verdict.
    """
    case = subset.case
    rows: list[Row] = []
    trouble = subset.error
    explored = len(subset.points)
    if not trouble:
        try:
            with Workshop(case, subset.seed, fork_server) as shop:
                for row in shop.explore(subset.points):
                    rows.append(row)
                    if deadline.passed:
                        raise TimeOverError
        except TimeOverError:
            # The last row shows that the points before its own are explored.
            last = rows[-1]["point"] if rows else -1
            explored = sum(point < last for point in subset.points)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
    own = replace(case, recording="" if subset.error else subset.recording)
    for row in rows:
        row["repeat"] = "" if row["expected"] else repeat_command(own, row["point"], row["seed"], row["only"])
    if trouble:
        rows.append(_no_verdict(case, trouble, subset.points) | {"repeat": repeat_command(own, None, subset.seed)})
    return rows, explored


def _no_verdict(case: IoFaultCase, trouble: str, points: Sequence[int]) -> Row:
    return {
        "kind": "operation",
        **case.columns,
        "point": points[0] if points else 0,
        "description": f"points {points[0]} to {points[-1]} were not explored to their end"
        if points
        else "no recording",
        **dict.fromkeys(("only", "digest", "noticed", "unverified"), ""),
        **dict.fromkeys(("acknowledged", "state", "attempted")),
        "states": 0,
        "result": str(Found.HARNESS_ERROR),
        "detail": trouble,
        "expected": False,
    }
