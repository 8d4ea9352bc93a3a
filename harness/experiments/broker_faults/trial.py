"""The faults that tasks and workers over a Kafka broker must survive, and a trial of one as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.mutants.registry import BROKER_TRIALS
from harness.workloads.suggestion import check_known
from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE
from stores.changelog.producer import AFTER_COMMIT, BEFORE_COMMIT
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.registry import backend_named
from stores.tasks import task
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT, AFTER_STORE_COMMIT
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT

INSIDE = "inside a transaction"
"""The place between two records of a transaction: the function of the task reaches it, and no failpoint is there."""
LOG_COMMIT = (BEFORE_COMMIT, AFTER_COMMIT)
"""The failpoints of a transaction's end. At least once there are no transactions."""
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the places in a commit or a rebalance at which it may strike."""

    meaning: str
    places: tuple[str, ...]
    partitions: int = 1
    """The partitions of the input. Workers share several."""


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "task killed": Fault("the process of a task is killed", (INSIDE, *task.FAILPOINTS, *LOG_COMMIT)),
        "worker killed": Fault(
            "one of two workers is killed in the middle of a rebalance",
            (
                BEFORE_REVOKE,
                BEFORE_LOG_COMMIT,
                BEFORE_COMMIT,
                AFTER_COMMIT,
                AFTER_LOG_COMMIT,
                AFTER_STORE_COMMIT,
                AFTER_REVOKE,
                BEFORE_ASSIGN,
            ),
            partitions=4,
        ),
        "broker killed": Fault(
            "the broker is killed, and comes back when the task has reported an error",
            (INSIDE, BEFORE_LOG_COMMIT, BEFORE_COMMIT, AFTER_COMMIT, AFTER_LOG_COMMIT),
        ),
        "broker restarted": Fault(
            "the broker is killed and started again within one step of the task",
            (INSIDE, BEFORE_LOG_COMMIT, BEFORE_COMMIT, AFTER_COMMIT, AFTER_LOG_COMMIT),
        ),
        "zombie wakes": Fault(
            "the process of a task is stopped, and goes on when its successor has done all work",
            (INSIDE, BEFORE_LOG_COMMIT, BEFORE_COMMIT),
        ),
        "network stalls": Fault(
            "the network passes on nothing until the task has reported an error", (BEFORE_LOG_COMMIT, BEFORE_COMMIT)
        ),
        "answers stall": Fault(
            "the network passes on requests and no answers until the task has reported an error", (BEFORE_COMMIT,)
        ),
        "connections cut": Fault("in each commit, connections are cut at a random byte", (BEFORE_LOG_COMMIT,)),
        "commit held back": Fault(
            "the network holds a commit back until the task's successor has done all work", (BEFORE_COMMIT,)
        ),
    }
)


def places_of(fault: str, guarantee: str = EXACTLY_ONCE) -> tuple[str, ...]:
    """Return the places of a fault that a task with this guarantee reaches."""
    left_out = () if guarantee == EXACTLY_ONCE else LOG_COMMIT
    return tuple(place for place in FAULTS[fault].places if place not in left_out)


@dataclass(frozen=True, slots=True)
class Trial:
    """Counting tasks over a broker of their own, with ``fault`` at ``place``.

    ``seed`` determines the input, and which commit the fault strikes. ``mutant`` is built into the processes that the
    fault strikes. ``jars`` is the folder with Kafka's jars; empty for that of this clone.
    """

    fault: str
    place: str
    backend: str = StoreConfig().backend
    guarantee: str = EXACTLY_ONCE
    seed: int = 1
    mutant: str = ""
    jars: str = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown name, and for a place that the fault does not have."""
        check_known("fault of a broker called", FAULTS, self.fault)
        check_known("guarantee", (EXACTLY_ONCE, AT_LEAST_ONCE), self.guarantee)
        backend_named(self.backend)
        places = places_of(self.fault, self.guarantee)
        if self.mutant:
            check_known("mutant of trials over a broker called", BROKER_TRIALS, self.mutant)
            places += tuple(by.place for by in BROKER_TRIALS[self.mutant])
        check_known(f"place of the fault {self.fault!r} called", places, self.place)
        if self.guarantee == AT_LEAST_ONCE and not self.fault.endswith("killed"):
            raise ConfigError(f"the fault {self.fault!r} is about transactions: it needs guarantee {EXACTLY_ONCE!r}")


def mutant_trials(mutant: str, backend: str, seed: int) -> list[Trial]:
    """Return the trials that must detect a mutant. Raises: ConfigError for an unknown one."""
    check_known("mutant of trials over a broker called", BROKER_TRIALS, mutant)
    return [Trial(by.fault, by.place, backend, by.guarantee, seed, mutant) for by in BROKER_TRIALS[mutant]]
