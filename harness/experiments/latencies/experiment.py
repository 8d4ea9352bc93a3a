"""The experiment that measures the latency of each put and each commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import Request, check_counts
from harness.experiments.latencies import latencies
from harness.experiments.latencies.report import QUERY, REPORT
from harness.experiments.stores_alone import StoresAlone
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


class Latencies(StoresAlone[LatencyTrial]):
    """Percentiles of the latency of puts, and of commits."""

    name = "latencies"
    words = "latencies of puts and commits"
    trial = LatencyTrial
    program = latencies
    figures_by = {"latency": QUERY}
    report = REPORT
    columns = {
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

    def plan(self, request: Request) -> list[LatencyTrial]:
        """Return a trial for each backend."""
        return [LatencyTrial(name, COMMITS[request.profile], request.seed) for name in request.among(backends())]
