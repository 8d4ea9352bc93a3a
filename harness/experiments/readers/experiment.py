"""The experiment that reads stores while they are written to, and checks every answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from harness.experiments.readers.report import isolation, page, reader_table
from harness.experiments.readers.row import COLUMNS, examine
from harness.experiments.readers.trial import Trial
from harness.mutants.registry import fitting
from harness.report.page import Page
from harness.report.table import Table
from harness.typed_maps import check_kind
from stores.registry import backend_named, backends, checked_durability


class Readers(Experiment[Trial]):
    """One writer, and readers at each isolation level on other threads. No part of a bench; see the scenario."""

    name = "readers"
    title = "readers beside a writer"
    trial = Trial
    placement = Placement.SPREAD
    columns: Mapping[str, Columns] = MappingProxyType({"isolation": COLUMNS})

    def plan(self, request: Request) -> list[Trial]:
        """Return a trial for each backend and level."""
        names = backends() if request.backends is None else request.backends
        return [
            Trial(name, str(level), seed=request.seed)
            for name in names
            for level in sorted(backend_named(name).durabilities)
        ]

    def read(self, text: str) -> Trial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown level, kind or mutant."""
        trial = cast(Trial, super().read(text))
        backend = backend_named(trial.backend)
        checked_durability(backend, trial.durability)
        check_counts(readers=trial.readers, seconds=trial.seconds, kinds=len(trial.kinds))
        for kind in trial.kinds:
            check_kind(kind)
        fitting(trial.mutant, [backend])
        return trial

    def run(self, trial: Trial, worker: Worker) -> Iterable[Row]:
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
