"""Inputs, outputs and ends of tasks whose stores report windows that close and records that expire."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest

from stores.changelog import Changelog
from stores.interface import TopicPartition
from stores.registry import backends
from stores.tasks import StreamTask
from stores.tests.tasks.setup import INPUT, OUTPUT

Output = tuple[bytes | None, bytes | None]
QUICK = ("lmdb-native", "memory-indexed-batch", "rocksdb-indexed-batch", "sqlite-indexed-batch")

over_each_backend = pytest.mark.parametrize(
    "backend",
    [backend if backend in QUICK else pytest.param(backend, marks=pytest.mark.long) for backend in sorted(backends())],
)


def feed(log: Changelog, pairs: list[tuple[bytes, int]]) -> None:
    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for key, time_ms in pairs:
            producer.send(INPUT, key, b"", time_ms)
        producer.flush()


def outputs(log: Changelog, partition: TopicPartition = OUTPUT) -> list[Output]:
    return [(record.key, record.value) for record in log.read(partition)]


def in_form(found: list[Output], batches: bool) -> list[Output]:
    """Outputs as they are compared: after a batch its records are reported together, in the order of their times."""
    return sorted(found, key=repr) if batches else found


def end(task: StreamTask, folder: Path, how: int) -> None:
    """End the task: in order or by a crash, on this machine or on one that another one replaces."""
    crashes, moves = how % 2 == 1, how % 4 >= 2
    if crashes:
        task.run(2)
    task.close(clean=not crashes)
    if moves:
        rmtree(folder / "state")
