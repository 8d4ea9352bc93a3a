"""A trial of tasks or workers over a Kafka broker under a fault, as a plain value.

Beside it: its input by the seed, the application that counts it, with one output for each input, and the moment at
which a process dies or waits.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType

from harness.checkers.counting import COUNTS, NEWEST, Pair
from stores import failpoints
from stores.changelog.interface import Record
from stores.config import StoreConfig
from stores.tasks.context import TaskContext
from stores.worker import Application, Processor

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"
PLACES_UNDER_LOAD: Mapping[str, str] = MappingProxyType(
    {"transactions of tasks": "task", "transactions of threads": "thread"}
)
"""The places of faults under load: they strike at any moment. The values are those of ``transaction.scope``."""
RECORDS_PER_ROUND = 500
"""The records that each partition gets before a fault under load strikes."""
SHORT_S, LONG_S = 4.0, 300.0
"""The timeout of a changelog that is to report that no answer comes, and of one that is not to."""
ROUND_S = 6
"""The time of a round of a fault under load, about."""
ROUNDS_MIN = 3
NAME = "trial"
INPUT, OUTPUT = "events", "counted"
STORES = (COUNTS, NEWEST)
RECORDS_PER_COMMIT = 6
COMMITS = 10
"""The number of commits of one task, if nothing goes wrong."""
_KEYS = 7
INSIDE = "inside a transaction"
"""The place between two records of a transaction: the function of the task reaches it, and no failpoint is there."""
NOTED, STATUS = "noted", "status"
"""The files in which a task notes errors that pass, and a worker its status."""
DIE, WAIT, WAIT_EACH = "die", "wait", "wait each"
"""The acts: die at the ``hit``-th time, wait at that time, or wait at that time and at each later one."""
POLL_S = 0.02
STATE, FRESH = "state", "fresh"
"""The state directory of the tasks, and an empty one, into which the changelogs are restored whole."""


@dataclass(frozen=True, slots=True)
class BrokerTrial:
    """Counting tasks over a broker of their own, with ``fault`` at ``place``.

    ``seed`` determines the input, and which commit the fault strikes. ``mutant`` is built into the processes that the
    fault strikes. ``jars`` is the folder with Kafka's jars; empty for that of this clone. ``seconds`` is the time of a
    load, about; the input grows with it. ``faults.checked`` refuses unknown names.
    """

    fault: str
    place: str
    backend: str = StoreConfig().backend
    guarantee: str = EXACTLY_ONCE
    seed: int = 1
    mutant: str = ""
    jars: str = ""
    seconds: int = 30

    @property
    def rounds(self) -> int:
        """The number of rounds of a fault under load; 0 for another one."""
        return max(ROUNDS_MIN, self.seconds // ROUND_S) if self.place in PLACES_UNDER_LOAD else 0


def inputs(seed: int, partitions: int, records: int = RECORDS_PER_COMMIT * COMMITS) -> list[list[Pair]]:
    """Return the inputs of each partition; equal seeds give equal inputs."""
    choose = Random(f"inputs {seed}")
    return [
        # A key is in one partition only, so that its counts do not depend on the order of tasks.
        [(f"{partition}-{choose.randrange(_KEYS)}", str(partition * records + number)) for number in range(records)]
        for partition in range(partitions)
    ]


def count(record: Record, context: TaskContext) -> None:
    """Count the record's key, keep the record's number, and send an output. See ``harness.checkers.counting``."""
    assert record.key is not None
    assert record.value is not None
    counts = context.store(COUNTS)
    number = int(counts.get(record.key) or b"0") + 1
    counts.put(record.key, b"%d" % number)
    context.store(NEWEST).put(record.key, record.value)
    context.forward(OUTPUT, record.value, b"%s %d" % (record.key, number))


def application(backend: str) -> Application:
    """Return the application for workers, with stores of a backend."""
    return Application(NAME, Processor([INPUT], count, dict.fromkeys(STORES, StoreConfig(backend))))


def reached_file(count: int) -> str:
    """Return the name of the file that says that the process waits."""
    return f"reached-{count}"


def go_file(count: int) -> str:
    """Return the name of the file for which it waits."""
    return f"go-{count}"


def die() -> None:
    """End this process like a crash."""
    os.kill(os.getpid(), signal.SIGKILL)


class Moment:
    """The moment at which a fault strikes, as the process of a trial sees it: it dies, or waits for its starter.

    It acts when the process is at its place for the ``hit``-th time; never for an empty place. A process that waits
    makes the file ``reached-N``, and continues when the file ``go-N`` is there. N counts how often it was at its place.
    """

    def __init__(self, place: str, hit: int, act: str, folder: Path) -> None:
        self._place, self._hit, self._act, self._folder = place, hit, act, folder
        self._count = 0
        if place and place != INSIDE:
            failpoints.arm(place, self._come)

    def inside(self) -> None:
        """Say that the process is between two records of a transaction."""
        if self._place == INSIDE:
            self._come()

    def _come(self) -> None:
        self._count += 1
        if self._count < self._hit or (self._count > self._hit and self._act != WAIT_EACH):
            return
        if self._act == DIE:
            die()
        (self._folder / reached_file(self._count)).touch()
        while not (self._folder / go_file(self._count)).exists():
            time.sleep(POLL_S)
