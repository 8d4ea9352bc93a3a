"""The experiment that injects a fault at every I/O operation: kills, errors, power loss and corruption at rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiment import (
    Columns,
    Each,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
)
from harness.experiments.iofaults import plan
from harness.experiments.iofaults.columns import KINDS
from harness.experiments.iofaults.figures import detections, effects, mutants
from harness.experiments.iofaults.gate import is_wrong
from harness.experiments.iofaults.plan import Convicted, Swept
from harness.experiments.iofaults.report import SKIPPED, page
from harness.experiments.iofaults.slices import Recorded, Slice, Writer, explore, make_recording, slices_of
from harness.io_trace.library import recorder_library
from harness.processes.fork_server import ForkServer
from harness.report.page import Page
from stores.errors import ConfigError

IoTrial = Swept | Convicted | Slice


class IoFaults(Experiment[IoTrial]):
    """Every fault at every I/O operation of a store, a task, or one of the library's own files."""

    name = "iofaults"
    title = "I/O faults"
    stage = "effects"
    trial: type[IoTrial] = Slice
    placement = Placement.SPREAD
    columns: Mapping[str, Columns] = KINDS

    def missing(self) -> str:
        """Return the reason why I/O faults cannot be injected on this machine, or ""."""
        try:
            recorder_library()
        except ConfigError as error:
            return str(error)
        return ""

    def plan(self, request: Request) -> list[IoTrial]:
        """Return the cases of a profile, and its mutants."""
        return [
            *plan.profile(request.profile, request.seed, request.backends),
            *plan.convictions(request.profile, request.seed, request.backends),
        ]

    def prepare(self, trials: Sequence[IoTrial], kept: Path, each: Each) -> list[IoTrial]:
        """Record each writer process once, and return the points of each case in parts of some seconds."""
        wanted = [trial for trial in dict.fromkeys(trials) if not isinstance(trial, Slice)]
        writers = list(dict.fromkeys(Writer.of(trial) for trial in wanted if isinstance(trial, Swept)))
        made = each(partial(_record, kept), writers)
        recorded = {writer: Recorded(*fields) for writer, fields in zip(writers, made, strict=True)}
        return list(slices_of(wanted, recorded, kept))

    def run(self, trial: IoTrial, worker: Worker) -> Iterable[Row]:
        """Return the rows of some points of a case, or of a mutant."""
        assert isinstance(trial, Slice)
        return [row | {"attempt": worker.attempt} for row in explore(trial, worker.fork_server)]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the trials by level, fault, variant and backend; the mutants; how often mutants are detected."""
        tried = rows.get("mutant", ())
        return {
            "effect": effects(rows),
            "mutant": mutants(tried),
            "detection": detections(tried),
        }

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every broken promise, every missing verdict, and every mutant that was missed."""
        tried = [*rows.get("effect", ()), *rows.get("mutant", ())]
        return [_failure(row) for row in tried if is_wrong(row)]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about I/O faults."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)], str(facts.get(SKIPPED, "")))


def _failure(row: Mapping[str, Any]) -> Failure:
    name = row["mutant"] if row["kind"] == "mutant" else row["fault"]
    trial = f"{row['backend']} at {row['durability']}, {name} {row['variant']}".rstrip()
    repeat = str(row["repeat"] or "")
    if row["kind"] != "mutant":
        return Failure(f"{trial}, {row['description']}, seed {row['seed']}: {row['result']}: {row['detail']}", repeat)
    seen = row["result"] or f"not seen in {row['states']} states"
    found = f"{row['fault']} should have left it {row['wanted']}, and it is {seen} {row['detail']}"
    return Failure(f"{trial}: {found}".rstrip(), repeat)


def _record(kept: Path, writer: Writer, fork_server: ForkServer | None) -> tuple[Any, ...]:
    return astuple(make_recording(writer, kept / writer.name, fork_server))
