"""The experiment that measures the latency of each put and each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

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
from harness.experiments.latencies import latencies
from harness.experiments.latencies.report import latency, page
from harness.processes.child import figures_apart
from harness.profiles import DEFAULT, NIGHT, SMOKE
from harness.report.page import Page
from stores.registry import backends

COMMITS: Mapping[str, int] = MappingProxyType({SMOKE: 20, DEFAULT: 100, NIGHT: 500})


@dataclass(frozen=True)
class LatencyTrial:
    """One backend, and the number of commits whose latencies are measured."""

    backend: str
    commits: int
    seed: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(commits=self.commits)


class Latencies(Experiment[LatencyTrial]):
    """Percentiles of the latency of puts, and of commits."""

    name = "latencies"
    title = "stores by themselves"
    words = "latencies of puts and commits"
    stage = "store"
    trial = LatencyTrial
    placement = Placement.LOCAL
    columns: Mapping[str, Columns] = MappingProxyType(
        {
            "latency": {
                "backend": str,
                "durability": str,
                "operation": str,
                "records_per_commit": int,
                "operations": int,
                "p50_us": float,
                "p90_us": float,
                "p99_us": float,
                "p999_us": float,
                "max_us": float,
            }
        }
    )

    def plan(self, request: Request) -> list[LatencyTrial]:
        """Return a trial for each backend."""
        return [LatencyTrial(name, COMMITS[request.profile], request.seed) for name in request.among(backends())]

    def run(self, trial: LatencyTrial, worker: Worker) -> Iterable[Row]:
        """Return a row for the puts and one for the commits. Raises: MeasurementFailedError."""
        found = figures_apart(latencies.__name__, self.name, asdict(trial), latencies.DEADLINE_S)
        return [{"kind": "latency", **row} for row in found["rows"]]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        """Return the percentiles, each compared with the backend without isolation."""
        return {"latency": latency(rows.get("latency", ()))}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return nothing: the latencies are reported only."""
        return []

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about latencies."""
        return page(figures)
