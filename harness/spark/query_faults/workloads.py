"""The queries whose faults are tried, by name. The names are those of ``experiments.query_faults.trial``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.spark.query_faults.counting import Counting
from harness.spark.query_faults.task_workloads import TaskWorkload
from harness.spark.query_faults.timing import Timing
from harness.spark.query_faults.workload import Workload

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "count": Counting(),
        "timers": Timing(),
        "flights_by_hour": TaskWorkload("flights_by_hour"),
        "aircraft_sessions": TaskWorkload("aircraft_sessions"),
    }
)
