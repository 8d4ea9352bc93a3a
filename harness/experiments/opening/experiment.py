"""The experiment that measures the time until a store is open and restored after a kill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness import profiles
from harness.experiment import (
    Claim,
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
)
from harness.experiments.opening import opening
from harness.experiments.opening.figures import opening as opening_figures
from harness.experiments.opening.opening import OpeningTrial
from harness.experiments.opening.report import page
from harness.report.page import Page
from stores.config import StoreConfig
from stores.interface import Durability
from stores.registry import backends


class Opening(Experiment[OpeningTrial]):
    """The time to open after a kill, against the number of records."""

    name = "opening"
    title = "opening after a kill"
    stage = "opening"
    trial = OpeningTrial
    placement = Placement.SPREAD
    unit = ""
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "opening": {
                "backend": str,
                "durability": str,
                "records": int,
                "repeat": int,
                "open_s": float,
                "restore_s": float,
                "replayed": int,
            }
        }
    )

    def plan(self, request: Request) -> list[OpeningTrial]:
        """Return a trial for each persistent backend and size at CHANGELOG, the longest first."""
        profile, default = profiles.profile(request.profile), StoreConfig().backend
        trials = [
            OpeningTrial(name, Durability.CHANGELOG, records, profile.opening_repeats, request.seed)
            for name, backend in backends().items()
            for records in (*profile.opening_records, *(profile.opening_records_default if name == default else ()))
            if backend.persistent and (request.backends is None or name in request.backends)
        ]
        return sorted(trials, key=lambda trial: -trial.records)

    def run(self, trial: OpeningTrial, worker: Worker) -> Iterable[Row]:
        """Return a row for each repeat. Raises: MeasurementFailedError."""
        return opening.run_opening(trial, code=worker.code, within=worker.folder.parent)

    def subject(self, trial: OpeningTrial) -> str:
        """Return the size, the backend and the level."""
        return f"opening {trial.records:,} records on {trial.backend}, {trial.durability}"

    def line(self, trial: OpeningTrial, rows: Sequence[Row]) -> str:
        """Return the seconds of each repeat."""
        return ", ".join(f"{row['open_s'] + row['restore_s']:.3f} s" for row in rows)

    def finish(self, trials: Sequence[OpeningTrial], rows: Sequence[Row], claim: Claim) -> list[Row]:
        """Return the rows, and rows of kind "ratio"."""
        return [*rows, *opening.ratios(rows)]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return medians over repeats, and the slowest time until ready."""
        return {"opening": opening_figures(rows.get("opening", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return nothing: a missed ratio fails a run only if it is asked to be strict."""
        return []

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about opening."""
        return page(figures)
