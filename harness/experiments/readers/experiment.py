"""The experiment that reads stores while they are written to, and checks every answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from harness.experiment import (
    Columns,
    Experiment,
    Failure,
    Figure,
    Figures,
    Placement,
    Request,
    Row,
    Rows,
    Worker,
    check_counts,
)
from harness.experiments.readers.run import COLUMNS, examine
from harness.experiments.readers.trial import ReadersTrial
from harness.grid import Grid, cut_to, full_names, times
from harness.mutants.registry import fitting
from harness.profiles import NIGHT, SMOKE
from harness.report import text
from harness.report.page import Page, PageFinding, Table, tables
from harness.typed_maps import check_kind
from stores.registry import backend_named, backends, checked_durability

_METHOD = """\
Each trial is a process of its own: a writer commits random writes for some seconds, and readers on other threads look
keys up, scan ranges and hold iterators at both isolation levels. The writer records its history. A checker that shares
no code with the stores compares every answer with it. Mutants must be detected: there `anomaly` is expected.
"""


def isolation(rows: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """Return one figure per trial, unchanged, in order."""
    return sorted(({**row, "kind": "isolation"} for row in rows), key=lambda figure: str(figure["trial"]))


def reader_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line for each trial, with its parameters, and its result with the expected one if they differ."""
    return Table(
        "Readers beside a writer; every answer checked against the writer's history",
        ("backend", "level", "built in", "operations", "commits", "committed answers", "uncommitted answers", "result"),
        [
            (
                str(row["backend"]),
                str(row["durability"]),
                str(row["mutant"] or "nothing"),
                *(f"{row[name]:,}" for name in ("operations", "commits", "committed_answers", "uncommitted_answers")),
                f"{row['result']}{'' if row['result'] == row['expected'] else ', not ' + str(row['expected'])}",
            )
            for row in rows
        ],
        right=(3, 4, 5, 6),
    )


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    own = figures["isolation"]
    as_expected = sum(figure["result"] == figure["expected"] for figure in own)
    wrong = text.failures("Trials that did not end as expected", failures) if failures else ""
    return Page(
        "isolation",
        "Isolation of readers",
        (
            "Readers on other threads ask a store while it is written, at both isolation levels.",
            "Every answer is compared with the history of the writer.",
        ),
        [*tables(reader_table(own)), wrong] if own else (),
        _METHOD,
        (PageFinding("trials of readers", len(own), as_expected, "ended as expected"),),
    )


@dataclass(frozen=True, kw_only=True)
class ReadersGrid(Grid):
    """Readers at each level, beside a writer that commits and rolls back, see nothing that their level does not show.

    ``backends`` None means all; a durability level that one of them does not carry is left out for it. Each is read for
    about ``seconds``, by ``readers`` readers at each level, once for each of ``seeds``. Each of ``mutants`` is built
    into a backend with a strategy that it fits, and must be detected.
    """

    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    seconds: float = 2.0
    readers: int = 4

    sizes = MappingProxyType({SMOKE: {"seconds": cut_to(0.5)}, NIGHT: {"seconds": times(10)}})
    above_0 = ("seeds", "seconds", "readers")

    def trials(self, seed: int) -> list[ReadersTrial]:
        """Return a trial for each backend and level. Raises: ConfigError for an unknown backend."""
        return [
            ReadersTrial(name, durability, self.seconds, seed, self.readers)
            for name in full_names(self.backends)
            for durability in self.durabilities
            if durability in backend_named(name).durabilities
        ]

    def mutant_trials(self, mutant: str, seeds: range) -> list[ReadersTrial]:
        """Return a trial of the first backend that the mutant fits. Raises: ConfigError if it fits none."""
        first = fitting(mutant, [backend_named(name) for name in full_names(self.backends)])[0]
        level = sorted(first.durabilities)[0]
        return [ReadersTrial(first.name, level, 10 * self.seconds, seeds[0], self.readers, mutant)]


class Readers(Experiment[ReadersTrial]):
    """One writer, and readers at each isolation level on other threads. No part of a bench; see the scenario."""

    name = "readers"
    title = "readers beside a writer"
    trial = ReadersTrial
    grid = ReadersGrid
    placement = Placement.SPREAD
    columns: Mapping[str, Columns] = MappingProxyType({"isolation": COLUMNS})

    def plan(self, request: Request) -> list[ReadersTrial]:
        """Return a trial for each backend and level."""
        return [
            ReadersTrial(name, str(level), seed=request.seed)
            for name in request.among(backends())
            for level in sorted(backend_named(name).durabilities)
        ]

    def read(self, text: str) -> ReadersTrial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown level, kind or mutant."""
        trial = cast(ReadersTrial, super().read(text))
        backend = backend_named(trial.backend)
        checked_durability(backend, trial.durability)
        check_counts(readers=trial.readers, seconds=trial.seconds, kinds=len(trial.kinds))
        for kind in trial.kinds:
            check_kind(kind)
        fitting(trial.mutant, [backend])
        return trial

    def run(self, trial: ReadersTrial, worker: Worker) -> Iterable[Row]:
        """Return the one row of a trial."""
        return [{"kind": "isolation", **examine(trial, worker.folder, worker.code)}]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the trials, in order."""
        return {"isolation": isolation(rows.get("isolation", ()))}

    def tables(self, figures: Figures, rows: Rows) -> list[Table]:
        """Return a line for each trial."""
        return [reader_table(rows["isolation"])] if rows.get("isolation") else []

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return every trial with an unexpected result."""
        return [
            Failure(
                f"{row['trial']}: {row['result']} instead of {row['expected']}. {row['detail']}", row["repeat_command"]
            )
            for row in rows.get("isolation", ())
            if row["result"] != row["expected"]
        ]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about isolation."""
        return page(figures, [str(failure) for failure in self.failures(figures, rows)])
