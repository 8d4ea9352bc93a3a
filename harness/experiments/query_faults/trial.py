"""The faults that a stateful query must survive, and a trial of one as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from harness.experiment import check_counts
from harness.mutants.registry import QUERY_TRIALS
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError
from stores.registry import backend_named

CLUSTER = "cluster"
"""A master and two workers on loopback, each with local files of its own."""
COUNT = "count"
WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        COUNT: "counts by name",
        "timers": "timers by event time",
        "flights_by_hour": "departures in windows, by the function of a task",
        "aircraft_sessions": "flights in sessions, by the function of a task",
    }
)
"""The queries, by name, and what each of them keeps. ``harness.spark.query_faults.workloads`` has them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the Spark that it needs."""

    meaning: str
    master: str = "local"
    max_failures: int = 1
    cores: int = 1
    """The cores of a worker of the cluster. A stalled attempt keeps one."""
    batches: int = 6
    partitions: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    retention: Mapping[str, int] = field(default_factory=lambda: {"snapshot_versions": 2, "keep_versions": 2})
    kills: bool = False
    """True if it kills at each failpoint of a batch, one in each batch."""
    starts_max: int = 1
    """The number of drivers that the query may need, one after the other."""
    fails: int = 0
    """The number of times that the query fails and is started again."""
    may_go_on: bool = False
    """True if a query over some backend goes on without a failure."""
    error: str = ""
    """Words that the error of a failed query must have."""
    full: str = "nothing"
    """The folder of the trial that it fills."""
    durability: str = "CHANGELOG"
    """The level of the stores. At PROCESS their commits survive a kill, so a store that leads its log is seen."""
    shared_local: bool = True
    """True for local copies in a folder of the trial, false for the folders of Spark's executors."""
    seconds: float = 60.0
    """The time of a trial on two idle cores, roughly."""


_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.efficiency.enabled": "false",
    # Else Spark kills the worker of the attempt that came second, and there is no zombie.
    "spark.python.task.killTimeout": "600s",
}
_FULL = "No space left on device"
FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "worker killed": Fault(
            "a Python worker is killed at each failpoint of a batch",
            max_failures=4,
            partitions=2,
            kills=True,
            durability="PROCESS",
            seconds=75,
        ),
        "executor killed": Fault(
            "an executor's JVM is killed at each failpoint of a batch; its Python worker lives on",
            CLUSTER,
            max_failures=12,
            partitions=2,
            kills=True,
            shared_local=False,
            seconds=90,
        ),
        "driver killed in a batch": Fault(
            "the driver is killed at each failpoint of a batch, and restarted from its checkpoint",
            partitions=2,
            kills=True,
            starts_max=16,
            seconds=90,
        ),
        "driver killed between batches": Fault(
            "the driver is killed after every second batch, and restarted from its checkpoint",
            starts_max=8,
            seconds=80,
        ),
        "stalled attempt": Fault(
            "with speculation, the first attempt at a batch stalls and goes on two batches later",
            CLUSTER,
            max_failures=4,
            cores=2,
            batches=8,
            settings=_SPECULATION,
            retention={"snapshot_versions": 1, "keep_versions": 0},
            shared_local=False,
            seconds=55,
        ),
        "batch fails halfway": Fault(
            "a batch fails after all partitions but one have finished, and is repeated",
            fails=1,
            error="this partition fails on purpose",
            seconds=35,
        ),
        "local disk full": Fault(
            "the disk with the local copies is full, until the query has failed",
            max_failures=2,
            fails=1,
            may_go_on=True,
            error=_FULL,
            full="local",
        ),
        "log disk full": Fault(
            "the disk with the log is full, until the query has failed",
            max_failures=2,
            fails=1,
            error=_FULL,
            full="state",
        ),
        "machine lost": Fault(
            "one of two machines is lost for good between two batches",
            CLUSTER,
            max_failures=4,
            partitions=4,
            retention={"snapshot_versions": 100},
            shared_local=False,
            seconds=45,
        ),
    }
)

KINDS = (
    ("worker killed", "executor killed", "driver killed in a batch", "driver killed between batches"),
    ("stalled attempt",),
    ("batch fails halfway",),
    ("local disk full", "log disk full"),
    ("machine lost",),
)
"""The faults by their kind."""
FULL_DISKS = KINDS[3]


@dataclass(frozen=True, slots=True)
class Trial:
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
        if self.fault.endswith("disk full") and not backend_named(self.backend).persistent:
            raise ConfigError(f"{self.backend} has no files: choose another backend for a full disk")
