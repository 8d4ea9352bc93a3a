"""The experiment that measures how soon readers on other threads see a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import Request, check_counts
from harness.experiments.stores_alone import StoresAlone
from harness.experiments.visibility import visibility
from harness.experiments.visibility.report import REPORT
from stores.config import StoreConfig
from stores.registry import backends

SIZES: Mapping[str, tuple[tuple[float, ...], int]] = MappingProxyType(
    {SMOKE: ((0.05,), 10), DEFAULT: ((0.02, 0.1), 20), NIGHT: ((0.02, 0.1, 1.0), 50)}
)
"""Commit intervals, and commits. 0.1 s is the default of Kafka Streams under exactly once (``commit.interval.ms``)."""


@dataclass(frozen=True)
class VisibilityTrial:
    """One backend, with commits at each of ``intervals_s``, for ``commits`` intervals or a second."""

    backend: str
    intervals_s: tuple[float, ...]
    commits: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(
            intervals=len(self.intervals_s),
            shortest_interval_s=min(self.intervals_s, default=1.0),
            commits=self.commits,
        )


class Visibility(StoresAlone[VisibilityTrial]):
    """The time until a write is seen, at each isolation level. Only the default backend, except in a night."""

    name = "visibility"
    words = "visibility to readers"
    trial = VisibilityTrial
    program = visibility
    figures_by = {"visibility": "select * from visibility"}
    report = REPORT
    columns = {
        "visibility": {
            "backend": str,
            "durability": str,
            "committed_by": str,
            "isolation_level": str,
            "commit_interval_s": float,
            "writes": int,
            "lag_p50_s": float,
            "lag_p99_s": float,
            "lag_max_s": float,
        }
    }

    def plan(self, request: Request) -> list[VisibilityTrial]:
        """Return a trial for each backend."""
        names = backends() if request.profile == NIGHT else [StoreConfig().backend]
        return [VisibilityTrial(name, *SIZES[request.profile]) for name in request.among(names)]
