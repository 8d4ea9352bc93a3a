"""A trial of a stateful query under a fault, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.experiment import check_counts
from harness.experiments.query_faults.faults import FAULTS, FULL_DISKS
from harness.mutants import QUERY_TRIALS
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError
from stores.registry import backend_named

COUNT = "count"
WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        COUNT: "counts by name",
        "timers": "timers by event time",
        "flights_by_hour": "departures in windows, by the function of a task",
        "aircraft_sessions": "flights in sessions, by the function of a task",
    }
)
"""The queries, by name, and what each of them keeps. ``harness.spark.query_faults`` has them."""


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """The query ``workload`` over stores of ``backend`` under ``fault``. ``seed`` determines its events."""

    fault: str
    backend: str
    seed: int = 1
    mutant: str = ""
    workload: str = COUNT

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown name."""
        check_known("fault of a query called", FAULTS, self.fault)
        check_known("query called", WORKLOADS, self.workload)
        backend_named(self.backend)
        if self.mutant:
            check_known("mutant of queries called", QUERY_TRIALS, self.mutant)
        check_counts(seed=self.seed)
        if self.fault in FULL_DISKS and not backend_named(self.backend).persistent:
            raise ConfigError(f"{self.backend} has no files: choose another backend for a full disk")
