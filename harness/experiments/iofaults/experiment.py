"""The experiment that injects a fault at every I/O operation: kills, errors, power loss and corruption at rest."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import NEVER, Deadline, fair_order
from harness.experiment import (
    Again,
    Claim,
    Each,
    Experiment,
    Failure,
    Forks,
    Outcome,
    Request,
    Rows,
    TrialPlacement,
    TrialWorker,
)
from harness.experiments.iofaults import plan
from harness.experiments.iofaults.case import NOT_TRIED, Asked, IoFaultCase, is_wrong, read_asked
from harness.experiments.iofaults.detection import mutant_row, untried_row
from harness.experiments.iofaults.fault import IO_FAULTS
from harness.experiments.iofaults.plan import PlannedCase, PlannedMutant, group_of
from harness.experiments.iofaults.power import UnseenWritesError
from harness.experiments.iofaults.report import (
    PROMISES,
    SKIPPED,
    detections,
    drawings,
    in_words,
    left_out,
    mutants,
    operation_tables,
    operations,
    page,
)
from harness.experiments.iofaults.subjects import modules_of
from harness.experiments.iofaults.subsets import (
    Recorded,
    RecordedWriter,
    Subset,
    Unrecorded,
    make_recording,
    subsets_of,
    trial_rows,
)
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.recorder import recorder_library
from harness.mutants import MUTANTS
from harness.processes.fork_server import ForkServer, ForkServerError
from harness.report.coverage import Seen
from harness.report.figures import Figure, Figures
from harness.report.page import Page, TextTable
from harness.report.rows import Row
from stores.errors import ConfigError

_CASE: Mapping[str, type] = {
    "scenario": str,
    "slice": int,
    "backend": str,
    "durability": str,
    "fault": str,
    "variant": str,
    "records": str,
    "seed": int,
}
KINDS: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        "operation": {
            **_CASE,
            "point": int,
            "only": str,
            "description": str,
            "digest": str,
            "states": int,
            "acknowledged": int,
            "state": int,
            "attempted": int,
            "result": str,
            "noticed": str,
            "unverified": str,
            "detail": str,
            "expected": bool,
            "repeat": str,
        },
        "operation_slice": {
            **_CASE,
            "points": int,
            "points_in_all": int,
            "states": int,
            "trials": int,
            "seconds": float,
            "blind_spots": str,
            "classes": str,
        },
        "mutant": {
            **_CASE,
            "mutant": str,
            "meaning": str,
            "states": int,
            "wanted": str,
            "by_gate": bool,
            "by_classes": bool,
            "at_random": bool,
            "result": str,
            "description": str,
            "detail": str,
            "expected": bool,
            "repeat": str,
            "seconds": float,
        },
    }
)
"""A trial with its crash state; a subset of the points with its cost; a mutant and its result.

A subset has the explored points of each of its classes as JSON, and the number of points of its case."""
_EXPECTATIONS = {"found": "must detect it", "not seen": "must not detect it"}
"""The sentences for ``wanted`` of a mutant's row."""

RECORDING_PART = 0.5
"""The part of its time in which an experiment records writer processes. A point takes a fraction of a recording."""

IoTrial = PlannedCase | PlannedMutant | Subset | Unrecorded


class IoFaults(Experiment[IoTrial]):
    """Every fault at every I/O operation of a store, a task, or one of the library's own files."""

    name = "iofaults"
    title = "I/O faults"
    stage = "iofaults"
    trial: type[IoTrial] = Subset
    faults = IO_FAULTS
    grid = plan.IoFaultGrid
    placement = TrialPlacement.SPREAD
    share = 18
    night_share = 30
    forks = Forks.RECORDED
    unit = "subsets"
    columns = KINDS

    def missing(self) -> str:
        """Return the reason why I/O faults cannot be injected on this machine, or ""."""
        try:
            recorder_library()
        except ConfigError as error:
            return str(error)
        return ""

    def plan(self, request: Request) -> list[IoTrial]:
        """Return the cases of a profile, and its mutants."""
        coverage = request.coverage
        cases = plan.planned_cases(request.profile, request.seed, request.backends)
        mutants_ = plan.planned_mutants(request.profile, request.seed, request.backends)
        if coverage is not None:
            cases = [replace(each, coverage=coverage) for each in cases]
            mutants_ = [replace(each, last_tried=coverage.last_tried(each.group, each.name)) for each in mutants_]
        return [*cases, *mutants_]

    def prepare(self, trials: Sequence[IoTrial], kept: Path, each: Each) -> list[IoTrial]:
        """Record each writer process once, and return the points of each case in parts of some seconds.

        Parts with classes that were not tried come first, then the others, those that were tried longest ago first.
        Cases whose writer could not be recorded in time come last, and can't run. They are others in the next run that
        adds to what was tried.
        """
        work = [trial for trial in dict.fromkeys(trials) if not isinstance(trial, Subset)]
        cases = [trial for trial in work if isinstance(trial, PlannedCase)]
        mutants_ = [trial for trial in work if isinstance(trial, PlannedMutant)]
        turn = max((case.seed + (len(case.coverage.runs) if case.coverage else 0) for case in cases), default=0)
        writers = fair_order(dict.fromkeys(map(RecordedWriter.of, cases)), _levels, seed=turn)
        summaries = each(partial(_record, kept), writers, RECORDING_PART)
        recorded = {
            writer: Recorded(*fields) for writer, fields in zip(writers, summaries, strict=True) if fields is not None
        }
        can_run = [case for case in cases if RecordedWriter.of(case) in recorded]
        subsets: list[IoTrial] = [*subsets_of([*mutants_, *can_run], recorded, kept)]
        late = [Unrecorded(case) for case in cases if RecordedWriter.of(case) not in recorded]
        return [*sorted(fair_order(subsets, _strata, seed=len(subsets)), key=_turn), *late]

    def cost_s(self, trial: IoTrial) -> float:
        """Return 0: trials are short. A case without a recording can't run."""
        return math.inf if isinstance(trial, Unrecorded) else 0.0

    def extents(self, trials: Sequence[IoTrial], outcome: Outcome) -> dict[str, tuple[int, int]]:
        """Return the points and mutants that were tried, and, where some could not be recorded, the cases."""
        extents = dict(outcome.extent)
        if "cases" in extents:
            tried = {_case_key(row) for row in outcome.rows if row["kind"] == "operation_slice" and row["points"]}
            extents["cases"] = len(tried), len({trial for trial in trials if isinstance(trial, PlannedCase)})
        return extents

    def run(self, trial: IoTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return the rows of some points of a case, or of a mutant."""
        assert isinstance(trial, Subset)
        return [row | {"attempt": worker.attempt} for row in explore(trial, worker.fork_server, worker.deadline)]

    def extent(self, trial: IoTrial) -> tuple[str, int]:
        """Return the points of a subset, or one mutant; a case has no points before it is recorded."""
        if isinstance(trial, PlannedMutant) or (isinstance(trial, Subset) and trial.planned_mutant):
            return "mutants", 1
        return ("points", len(trial.points)) if isinstance(trial, Subset) else ("cases", 1)

    def tried(self, trial: IoTrial, rows: Sequence[Row]) -> int:
        """Return the number of points that were explored, or 1 for a mutant with a result."""
        assert isinstance(trial, Subset)
        if trial.planned_mutant:
            return sum(row["result"] != NOT_TRIED for row in rows)
        return sum(row["points"] for row in rows if row["kind"] == "operation_slice")

    def covered(self, trials: Sequence[IoTrial], rows: Sequence[Row]) -> list[Seen]:
        """Return the classes of each case, with the points that were explored, and the mutants that were tried."""
        return seen_in(rows)

    def untried(self, trial: IoTrial) -> list[Row]:
        """Return a row with no explored point, or a mutant that was not tried; none for a case without points."""
        if isinstance(trial, Unrecorded):
            return []
        assert isinstance(trial, Subset)
        row = _subset_row(trial) if trial.planned_mutant is None else untried_row(trial.planned_mutant)
        return [_of_subset(trial, row, 0.0)]

    def finish(self, trials: Sequence[IoTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows with the columns of their kinds, by case, in the order of their points."""
        first: dict[tuple[Any, ...], int] = {}
        for row in sorted(rows, key=lambda row: row["slice"]):
            first.setdefault(_case_key(row), row["slice"])
        ordered = sorted(
            rows, key=lambda row: (first[_case_key(row)], row["kind"], row.get("point") or 0, row["slice"])
        )
        return [{name: row.get(name) for name in ("kind", *KINDS[row["kind"]])} for row in ordered]

    def is_wrong(self, row: Row) -> bool:
        """Return True if a trial or a mutant does not end as it should."""
        return "result" in row and is_wrong(row)

    def tidy(self, kept: Path, rows: Sequence[Row]) -> None:
        """Remove the recordings that no command of an unexpected trial needs."""
        commands = [row["repeat"] for row in rows if row.get("repeat")]
        for file in kept.iterdir():
            # A command contains the name at the end of a path in JSON.
            if not any(f'/{file.name}"' in command for command in commands):
                # After an interruption, tasks may still use this folder.
                file.unlink(missing_ok=True)

    def subject(self, trial: IoTrial) -> str:
        """Return the number of the subset."""
        return f"subset {trial.number if isinstance(trial, Subset) else trial}"

    def read(self, text: str) -> Asked:
        """Return the trials that a command asks for. Raises: ConfigError if it asks for none that exists."""
        return read_asked(text)

    def repeat(self, trial: Asked, worker: TrialWorker) -> Again:
        """Run one trial, all trials at a point, or all trials of a case. Raises: ConfigError if it cannot run here."""
        try:
            rows = _rows_of(trial)
        except (ForkServerError, UnseenWritesError) as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(
                f"this trial can't be made here: {error}. Make room or correct that, and run it again"
            ) from error
        wrong = [row for row in rows if not row["expected"]]
        lines = [line for row in (wrong if trial.point is None else rows) for line in _lines(row)]
        if trial.point is None:
            lines.append(f"{len(rows):,} trials, {len(wrong):,} of them not as promised")
        return Again(lines, ok=not wrong)

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the trials by level, fault, variant and backend; the mutants; how often mutants are detected."""
        mutant_rows = rows.get("mutant", ())
        return {
            "operation": operations(rows),
            "mutant": mutants(mutant_rows),
            "detection": detections(mutant_rows),
            "drawing": drawings(mutant_rows),
        }

    def tables(self, figures: Figures, rows: Rows) -> list[TextTable]:
        """Return all tables that have rows."""
        return operation_tables(figures)

    def left_out(self, figures: Figures) -> str:
        """Return the number of points that were explored, unless all were."""
        return left_out(figures)

    def closing(self, figures: Figures, rows: Rows, *, all_right: bool) -> str:
        """Return the table of promises."""
        return PROMISES.table(in_words(figures)).plain() if rows.get("operation") else ""

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every broken promise, every missing verdict, and every mutant that was missed."""
        trials = [*rows.get("operation", ()), *rows.get("mutant", ())]
        return [_failure(row) for row in trials if is_wrong(row)]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about I/O faults."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)], str(facts.get(SKIPPED, "")))


def seen_in(rows: Sequence[Row]) -> list[Seen]:
    """Return the classes of all cases, with the points that were explored, and the mutants that were tried."""
    trials: Counter[tuple[int, int]] = Counter()
    failures: dict[tuple[int, int], str] = {}
    for row in rows:
        if row["kind"] == "operation":
            trials[row["slice"], row["point"]] += 1
            if is_wrong(row):
                failures[row["slice"], row["point"]] = row["repeat"]
    seen: list[Seen] = []
    for row in rows:
        if row["kind"] == "operation_slice":
            seen += _seen_of_subset(row, trials, failures)
        elif row["kind"] == "mutant":
            seen.append(_seen_of_mutant(row))
    return seen


def _seen_of_subset(
    row: Mapping[str, Any], trials: Mapping[tuple[int, int], int], failures: Mapping[tuple[int, int], str]
) -> Iterator[Seen]:
    fault = IO_FAULTS[row["fault"]]
    group = group_of(IoFaultCase(row["backend"], row["durability"], row["fault"], row["variant"]))
    modules = modules_of(row["backend"])
    for name, points in json.loads(row["classes"]).items():
        places = [(row["slice"], point) for point in points]
        number = sum(trials.get(place, 0) for place in places)
        failure = next((failures[place] for place in places if place in failures), "")
        yield Seen(group, name, modules, len(points), number * fault.kills, number * fault.losses, failure)


def _seen_of_mutant(row: Mapping[str, Any]) -> Seen:
    planned = PlannedMutant(row["mutant"], row["backend"], row["fault"], row["seed"], row["wanted"] != "not seen")
    modules = (*modules_of(row["backend"]), MUTANTS[row["mutant"]].build.__module__)
    failure = row["repeat"] if is_wrong(row) else ""
    return Seen(planned.group, planned.name, modules, int(row["result"] != NOT_TRIED), failure=failure)


def explore(subset: Subset, fork_server: ForkServer | None = None, deadline: Deadline = NEVER) -> list[Row]:
    """Run the subset, and return its rows. An error becomes a row without a verdict, which fails the run.

    After ``deadline`` no point begins; the row of the subset says how many were explored.
    ``fork_server`` is as for a workshop. A caller that explores several subsets can use one for all of them.
    """
    start = time.monotonic()
    if subset.planned_mutant is not None:
        rows = [mutant_row(subset.planned_mutant, fork_server, deadline)]
    else:
        rows, explored = trial_rows(subset, fork_server, deadline)
        states = sum(row["states"] for row in rows)
        rows.append(_subset_row(subset, explored) | {"states": states, "trials": len(rows)})
    return [_of_subset(subset, row, time.monotonic() - start) for row in rows]


def _rows_of(asked: Asked) -> list[Row]:
    """Return the rows of one trial, of all trials at its point, or of all trials of its case.

    Raises: ConfigError if the trial does not exist or cannot be run here; ForkServerError, as ``Workshop``.
    """
    recorder_library()
    case = asked.case
    with Workshop(case, asked.seed) as shop:
        points = range(0) if asked.point is None else range(asked.point, asked.point + 1)
        if asked.point is None or IO_FAULTS[case.fault].from_recording:
            there = shop.points()
            if asked.point is not None and asked.point not in there:
                raise ConfigError(f"{case.fault} of {case.subject} has points 0 to {there.stop - 1}, not {asked.point}")
            points = points or there
        try:
            rows = list(shop.explore(points, asked.only))
        except ValueError as error:
            raise ConfigError(f"only {asked.only!r}: {error}") from error
    if not rows:
        where = "anywhere" if asked.point is None else f"at point {asked.point}"
        raise ConfigError(f"there is nothing to try {where} with {case.fault}")
    return rows


def _lines(row: Row) -> list[str]:
    first = f"{row['backend']} at {row['durability']}, {row['description']}, seed {row['seed']}: {row['result']}"
    numbers = f"  acknowledged {row['acknowledged']}, found {row['state']}, attempted {row['attempted']}"
    return [first, numbers, *([f"  {row['detail']}"] if row["detail"] else [])]


def _subset_row(subset: Subset, explored: int = 0) -> Row:
    """Return the row of a subset whose first points were ``explored``."""
    there = set(subset.points[:explored])
    classes = {name: [point for point in points if point in there] for name, points in subset.classes.items()}
    return {
        "kind": "operation_slice",
        **subset.case.columns,
        "points": explored,
        "points_in_all": subset.points_in_all,
        "states": 0,
        "trials": 0,
        "blind_spots": subset.blind_spots,
        "classes": json.dumps(classes),
    }


def _of_subset(subset: Subset, row: Row, seconds: float) -> Row:
    """Return ``row`` with the subset it is of; the rows that stand for a whole subset have its ``seconds``."""
    cost = {} if row["kind"] == "operation" else {"seconds": seconds}
    return row | {"slice": subset.number, "scenario": subset.scenario, "seed": subset.seed} | cost


def _turn(trial: IoTrial) -> plan.Turn:
    assert isinstance(trial, Subset)
    return trial.turn


def _levels(writer: RecordedWriter) -> tuple[tuple[object, ...], ...]:
    """Return the groups of which each has a recording before any has a second one; see ``fair_order``."""
    return ((writer.case.subject,), (writer.case.level,))


def _strata(trial: IoTrial) -> tuple[tuple[object, ...], ...]:
    """Return the groups in which each first subset comes before every second one; see ``fair_order``."""
    assert isinstance(trial, Subset)
    case = trial.case
    fault = (case.fault, case.variant)
    if trial.planned_mutant:
        return ("mutant", trial.planned_mutant.mutant, trial.planned_mutant.found), ("mutant", *fault), ("mutant",)
    return (case.subject, case.level, case.records, trial.seed, *fault), (case.level, *fault), (case.subject,)


def _case_key(row: Row) -> tuple[Any, ...]:
    if row["kind"] == "mutant":
        return ("mutant", row["slice"])
    names = ("scenario", "seed", "backend", "durability", "fault", "variant", "records")
    return tuple(row[name] for name in names)


def _failure(row: Mapping[str, Any]) -> Failure:
    name = row["mutant"] if row["kind"] == "mutant" else row["fault"]
    trial = f"{row['backend']} at {row['durability']}, {name} {row['variant']}".rstrip()
    repeat = str(row["repeat"] or "")
    if row["kind"] != "mutant":
        return Failure(f"{trial}, {row['description']}, seed {row['seed']}: {row['result']}: {row['detail']}", repeat)
    expectation = _EXPECTATIONS.get(row["wanted"], "is tried")
    result = row["result"] or f"not detected in {row['states']} states"
    return Failure(f"{trial}: {row['fault']} {expectation}; the result is: {result} {row['detail']}".rstrip(), repeat)


def _record(kept: Path, writer: RecordedWriter, fork_server: ForkServer | None) -> tuple[Any, ...]:
    return astuple(make_recording(writer, kept / writer.name, fork_server))
