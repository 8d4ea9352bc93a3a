"""The experiment that times single stores, and compares them with each other and with plain code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, cast

from harness import profiles
from harness.experiment import Claim as Reason
from harness.experiment import Columns, Experiment, Failure, Figure, Figures, Placement, Request, Row, Rows, Worker
from harness.experiments.microbench import run as timing
from harness.experiments.microbench.case import case_named
from harness.experiments.microbench.report import benchmarks, page
from harness.report.page import Page


@dataclass(frozen=True)
class Trial:
    """One measurement of a case of a profile. Its rounds, each with its seconds, are rows."""

    case: str
    profile: str
    seed: int


class Microbench(Experiment[Trial]):
    """Records per second of stores by themselves, and the project's claims about them."""

    name = "microbench"
    title = "stores by themselves"
    stage = "store"
    trial = Trial
    placement = Placement.LOCAL
    share = 6
    unmeasured = "the store-level benchmarks were given up"
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "benchmark": {
                "suite": str,
                "name": str,
                "subject": str,
                "durability": str,
                "records_per_commit": int,
                "distribution": str,
                "median_s": float,
                "iqr_s": float,
                "rounds": int,
                "records": int,
                "records_per_s": float,
            }
        }
    )

    def plan(self, request: Request) -> list[Trial]:
        """Return all measurements in shuffled order; those that are compared with each other are adjacent."""
        return [
            Trial(case.id, request.profile, request.seed * 1_000 + repeat)
            for case, repeat in timing.planned(request.profile, request.seed, request.backends)
        ]

    def run(self, trial: Trial, worker: Worker) -> Iterable[Row]:
        """Return a row for each round of the case. Raises: RuntimeError with the command that repeats it."""
        return [
            {"kind": "round", "case": trial.case, "profile": trial.profile, "seconds": seconds}
            for seconds in timing.measure(trial.case, trial.profile, trial.seed)
        ]

    def read(self, text: str) -> Trial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown profile or case."""
        trial = super().read(text)
        profiles.profile(trial.profile)
        case_named(trial.case, trial.profile)
        return cast(Trial, trial)

    def line(self, trial: Trial, rows: Sequence[Row]) -> str:
        """Return the case and its median rate."""
        rate = case_named(trial.case, trial.profile).records / median(row["seconds"] for row in rows)
        return f"{trial.case}: {rate:,.0f} records/s"

    def finish(self, trials: Sequence[Trial], rows: Sequence[Row], claim: Reason) -> list[Row]:
        """Return a row of kind "benchmark" for each case, over all of its rounds, and rows of kind "ratio"."""
        return timing.summarized(rows)

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the cases, in order."""
        return {"benchmark": benchmarks(rows.get("benchmark", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return nothing: a missed ratio fails a run only if it is asked to be strict."""
        return []

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores by themselves."""
        return page(figures)
