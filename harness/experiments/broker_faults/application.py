"""The input of a trial by its seed, and the application that counts it: one output for each input."""

from __future__ import annotations

from random import Random

from harness.checkers.counting import COUNTS, NEWEST, Pair
from stores.changelog.interface import Record
from stores.config import StoreConfig
from stores.tasks.context import TaskContext
from stores.worker import Application, Processor

NAME = "trial"
INPUT, OUTPUT = "events", "counted"
STORES = (COUNTS, NEWEST)
RECORDS_PER_COMMIT = 6
COMMITS = 10
"""The number of commits of one task, if nothing goes wrong."""
_KEYS = 7


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
