"""The work of one task of a run: it explores some points of a case, or detects a mutant, and returns rows.

Rows are of kind "effect", one per trial; "effect_slice", one per slice, with what it cost; and "mutant".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.checkers.prefix import Found
from harness.crash_states.files import Tree
from harness.crash_states.states import positions
from harness.experiments.iofaults.case import VARIANTS, Case, repeat_command
from harness.experiments.iofaults.damage import plan as damage_plan
from harness.experiments.iofaults.detection import detect
from harness.experiments.iofaults.drawing import Group, groups
from harness.experiments.iofaults.failed_syncs import syncs
from harness.experiments.iofaults.full_detection import DetectionResult, case_of, detect_fully
from harness.experiments.iofaults.plan import POINTS_PER_SLICE, Convicted, Swept, cut, picked
from harness.experiments.iofaults.sweep import EXPLORERS, record
from harness.experiments.iofaults.workshop import Row, Workshop
from harness.folders import ROOT
from harness.io_trace.recording import Kind, read_recording
from harness.mutants.registry import MUTANTS
from harness.processes.fork_server import ForkServer

FROM_RECORDING = ("tear", "kill_twice", "power", "power_twice", "failed_sync", "damage")
"""Faults whose trials are derived from a recording."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The parameters of a writer process that is recorded once, for all cases that need the recording."""

    subject: str
    level: str
    commits: int
    seed: int
    mutant: str = ""
    records: str = ""

    @classmethod
    def of(cls, swept: Swept) -> Writer:
        """Return the writer process that the trials of ``swept`` run."""
        return cls(
            swept.case.subject, swept.case.level, swept.case.commits, swept.seed, swept.case.mutant, swept.case.records
        )

    @property
    def name(self) -> str:
        """The name of the recording's file."""
        mutant = f"-{self.mutant}" if self.mutant else ""
        records = f"-{self.records}" if self.records else ""
        return f"{self.subject}{records}-{self.level}-{self.commits}-{self.seed}{mutant}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A summary of a recording: the number of effects, of corruptions that its end allows, and the writes it misses.

    ``error`` is the reason why there is no recording, or "". ``syncs`` is the number of effects that sync one file or
    folder. ``groups`` holds, by fault, the points that are drawn first.
    """

    effects: int = 0
    damages: Mapping[str, int] | None = None
    blind_spots: str = ""
    error: str = ""
    syncs: int = 0
    groups: Mapping[str, Sequence[Group]] = field(default_factory=dict)

    def points(self, case: Case) -> range:
        """Return every point of ``case``: one before each effect, and one after the last. None without a recording."""
        if self.error:
            return range(0)
        if case.fault == "damage":
            return range((self.damages or {}).get(case.variant, 0))
        if case.fault == "failed_sync":
            return range(self.syncs)
        return range(self.effects + 1)


@dataclass(frozen=True, slots=True)
class Slice:
    """The work of one task, as plain values: the mutant ``convicted``, or, where that is None, ``points`` of ``case``.

    The case has ``points_in_all`` points. ``recording`` is the path of the recording in a command. ``error`` is the
    reason why the points cannot be explored, or "".
    """

    number: int
    scenario: str
    seed: int
    case: Case
    recording: str = ""
    points: Sequence[int] = ()
    points_in_all: int = 0
    blind_spots: str = ""
    convicted: Convicted | None = None
    error: str = ""


def make_recording(writer: Writer, file: Path, fork_server: ForkServer | None = None) -> Recorded:
    """Record a writer process without faults in ``file``. Return a summary of the recording."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.new")
    # A killed process with the same ID may have left a file, which would be taken for the recording.
    beside.unlink(missing_ok=True)
    try:
        case = Case(
            writer.subject, writer.level, "kill", commits=writer.commits, mutant=writer.mutant, records=writer.records
        )
        record(case, writer.seed, str(beside), fork_server)
        beside.replace(file)
        recording = read_recording(file)
    except Exception as error:
        # Any error becomes a row of this subject; the rows of other subjects are kept.
        return Recorded(error=f"{type(error).__name__}: {error}")
    finally:
        beside.unlink(missing_ok=True)
    tree = Tree()
    for effect in recording:
        tree.apply(effect)
    unseen = sorted({Path(effect.path).name for effect in recording if effect.kind is Kind.MAP_WRITABLE})
    numbers = {variant: len(damage_plan(variant, tree, writer.seed)) for variant in VARIANTS["damage"]}
    first = {fault: groups(fault, recording) for fault in VARIANTS}
    return Recorded(len(positions(recording)) - 1, numbers, ", ".join(unseen), "", len(syncs(recording)), first)


def slices_of(
    planned: Iterable[Swept | Convicted],
    recorded: Mapping[Writer, Recorded],
    recordings: Path,
    points_per_slice: int | None = None,
) -> list[Slice]:
    """Return all that is planned as tasks. Mutants come first, because their duration is not known in advance."""
    found: list[Slice] = []
    wanted = list(planned)
    for each in wanted:
        if isinstance(each, Convicted):
            mutant = case_of(each.mutant, each.subject, each.fault)
            found.append(Slice(len(found), each.scenario, each.seed, mutant, convicted=each))
    for each in wanted:
        if isinstance(each, Swept):
            writer = Writer.of(each)
            case, recording = each.case, ""
            if case.fault in FROM_RECORDING:
                file = recordings / writer.name
                case = replace(case, recording=str(file))
                recording = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
            of = recorded[writer]
            width = points_per_slice or POINTS_PER_SLICE[case.fault]
            in_all = of.points(case)
            parts = cut(picked(each, in_all, of.groups.get(case.fault, ())), width) if not of.error else [()]
            found += [
                Slice(
                    len(found) + place,
                    each.scenario,
                    each.seed,
                    case,
                    recording,
                    tuple(points),
                    len(in_all),
                    of.blind_spots,
                    error=of.error,
                )
                for place, points in enumerate(parts)
            ]
    return found


def explore(slice_: Slice, fork_server: ForkServer | None = None) -> list[Row]:
    """Run the slice, and return its rows. An error becomes a row without a verdict, which fails the run.

    ``fork_server`` is as for a workshop. A caller that explores several slices can use one for all of them.
    """
    begun = time.monotonic()
    if slice_.convicted is not None:
        rows = [_mutant_row(slice_.convicted, fork_server)]
    else:
        rows = _trials(slice_, fork_server)
        rows.append(
            {
                "kind": "effect_slice",
                **_named(slice_.case),
                "points": len(slice_.points),
                "points_in_all": slice_.points_in_all,
                "states": sum(row["states"] for row in rows),
                "trials": len(rows),
                "blind_spots": slice_.blind_spots,
            }
        )
    seconds = time.monotonic() - begun
    for row in rows:
        row |= {"slice": slice_.number, "scenario": slice_.scenario, "seed": slice_.seed}
        if row["kind"] != "effect":
            row["seconds"] = seconds
    return rows


def _trials(slice_: Slice, fork_server: ForkServer | None) -> list[Row]:
    case = slice_.case
    rows: list[Row] = []
    trouble = slice_.error
    if not trouble:
        try:
            with Workshop(case, slice_.seed, fork_server) as shop:
                rows += EXPLORERS[case.fault](shop, slice_.points, "")
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
    shown = replace(case, recording="" if slice_.error else slice_.recording)
    for row in rows:
        row["kind"] = "effect"
        row["repeat"] = "" if row["expected"] else repeat_command(shown, row["point"], row["seed"], row["only"])
    if trouble:
        rows.append(_no_verdict(case, trouble, slice_.points) | {"repeat": repeat_command(shown, None, slice_.seed)})
    return rows


def _named(case: Case) -> Row:
    return {
        "backend": case.subject,
        "durability": case.level,
        "fault": case.fault,
        "variant": case.variant,
        "records": case.records,
    }


def _no_verdict(case: Case, trouble: str, points: Sequence[int]) -> Row:
    return {
        "kind": "effect",
        **_named(case),
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


def _mutant_row(wanted: Convicted, fork_server: ForkServer | None) -> Row:
    case = case_of(wanted.mutant, wanted.subject, wanted.fault)
    row: Row = {
        "kind": "mutant",
        "mutant": wanted.mutant,
        "meaning": MUTANTS[wanted.mutant].meaning,
        "wanted": "measured" if wanted.measured else "found" if wanted.found else "not seen",
        "by_gate": None,
        "description": "",
        "repeat": repeat_command(case, None, wanted.seed),
        **_named(case),
    }
    try:
        found = _tried(wanted, row, fork_server)
    except Exception as error:
        trouble = {"result": str(Found.HARNESS_ERROR), "detail": f"{type(error).__name__}: {error}"}
        return row | trouble | {"states": 0, "expected": False}
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


def _tried(wanted: Convicted, row: Row, fork_server: ForkServer | None) -> DetectionResult:
    """Try the gate's own trials if they are to be measured, then all. ``row`` records if the gate found the mutant."""
    if wanted.gate:
        by_gate = detect(wanted.mutant, wanted.subject, wanted.seed, wanted.gate, fork_server)
        if by_gate.row is not None or not by_gate.trouble:
            row["by_gate"] = by_gate.row is not None
        if by_gate.row is not None or wanted.measured:
            return by_gate
    return detect_fully(wanted.mutant, wanted.subject, wanted.seed, wanted.fault, wanted.points_max, fork_server)
