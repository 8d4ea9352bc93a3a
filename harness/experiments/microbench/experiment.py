"""The experiment that times single stores, and compares them with each other and with plain code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from harness import replay
from harness.budget import check_profile
from harness.experiment import (
    Figures,
    Request,
    Row,
    Rows,
    TrialWorker,
)
from harness.experiments.microbench import run as timing
from harness.experiments.microbench.claim import case_named
from harness.experiments.microbench.report import QUERY, REPORT, ycsb_tables
from harness.experiments.stores_alone import StoresAlone
from harness.report.page import Page


@dataclass(frozen=True)
class MicrobenchTrial:
    """A measurement of some cases of a profile, in one process. Their rounds, each with its seconds, are rows."""

    cases: tuple[str, ...]
    profile: str
    seed: int


class Microbench(StoresAlone[MicrobenchTrial]):
    """Records per second of stores by themselves, and the project's claims about them."""

    name = "microbench"
    trial = MicrobenchTrial
    share = 36
    figures_by = {"benchmark": QUERY, "round": lambda _: []}
    derived_by = timing.summarized
    columns = {
        "round": {"case": str, "profile": str, "seed": int, "seconds": float},
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
        },
    }

    def plan(self, request: Request) -> list[MicrobenchTrial]:
        """Return all measurements in shuffled order; those that are compared with each other are adjacent."""
        return [
            MicrobenchTrial(
                tuple(case.id for case in batch.cases), request.profile, request.seed * 1_000 + batch.repeat
            )
            for batch in timing.planned(request.profile, request.seed, request.backends)
        ]

    def extent(self, trial: MicrobenchTrial) -> tuple[str, int]:
        """Return the number of its cases."""
        return "measurements", len(trial.cases)

    def tried(self, trial: MicrobenchTrial, rows: Sequence[Row]) -> int:
        """Return the number of cases that were measured before the time was over."""
        return len({row["case"] for row in rows})

    def run(self, trial: MicrobenchTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for each round of each case. Raises: RuntimeError with the command that repeats it."""
        try:
            found = timing.measure(trial.cases, trial.profile, trial.seed, worker.deadline)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n  repeat it with: {replay.command(self.name, trial)}") from error
        return [
            {"kind": "round", "case": case, "profile": trial.profile, "seed": trial.seed, "seconds": seconds}
            for case, rounds in found.items()
            for seconds in rounds
        ]

    def read(self, text: str) -> MicrobenchTrial:
        """Return the trial. Raises: ConfigError, as of any experiment, and for an unknown profile or case."""
        trial = super().read(text)
        check_profile(trial.profile)
        for name in trial.cases:
            case_named(name, trial.profile)
        return cast(MicrobenchTrial, trial)

    def line(self, trial: MicrobenchTrial, rows: Sequence[Row]) -> str:
        """Return the last case and its median rate."""
        name = rows[-1]["case"]
        rate = case_named(name, trial.profile).records / median(row["seconds"] for row in rows if row["case"] == name)
        return f"{len({row['case'] for row in rows})} measurements, the last one {name}: {rate:,.0f} records/s"

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores by themselves."""
        return REPORT.page(figures, more=ycsb_tables(figures))
