"""A counting task over Kafka, in a process that may be killed, and an independent reader of what it has written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.testing.committed import committed_records
from stores.changelog.producer import BufferedProducer
from stores.tasks import StreamTask
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.tasks.setup import AT_LEAST_ONCE, EXACTLY_ONCE, INDEXED, counting_task, expected_outputs, feed

KEYS = [number % 4 for number in range(12)]
RECORDS_PER_COMMIT = 3
DEADLINE_S = 600.0

Pairs = list[tuple[bytes | None, bytes | None]]


def prepared(folder: Path, broker: Broker, keys: Sequence[int] = KEYS) -> None:
    """Put the input into fresh topics, and the broker's address into the folder."""
    (folder / "address").write_text(broker.address)
    with fresh_changelog(broker) as log:
        feed(log, keys)


def changelog(folder: Path, timeout_s: float = 300.0) -> KafkaChangelog:
    return KafkaChangelog({"bootstrap.servers": (folder / "address").read_text()}, timeout_s=timeout_s)


def task_over(
    folder: Path, log: KafkaChangelog, backend: str = INDEXED, batches: bool = False, *, exactly_once: bool = True
) -> StreamTask:
    guarantee = EXACTLY_ONCE if exactly_once else AT_LEAST_ONCE
    return counting_task(
        folder, log, backend, guarantee=guarantee, batches=batches, commit_every_records=RECORDS_PER_COMMIT
    )


def work(folder: Path, backend: str = INDEXED, batches: bool = False, *, exactly_once: bool = True) -> None:
    """Count the whole input."""
    with changelog(folder) as log, task_over(folder, log, backend, batches, exactly_once=exactly_once) as task:
        task.run()


def work_without_transactions(folder: Path, batches: bool) -> None:
    """Count the whole input at least once: a broken variant of exactly once."""
    work(folder, batches=batches, exactly_once=False)


def work_with_offsets_first(folder: Path) -> None:
    """Count with the order of commits turned round: input offsets are committed before the records."""
    with changelog(folder) as log, pytest.MonkeyPatch.context() as patch:

        def send_offsets(producer: BufferedProducer, *given: Any) -> None:
            with log.producer() as plain:
                original(plain, *given)

        original = BufferedProducer.send_offsets
        patch.setattr(BufferedProducer, "send_offsets", send_offsets)
        with task_over(folder, log) as task:
            task.run()


def committed_outputs(folder: Path, at_least: int) -> Pairs:
    """Return the committed outputs as another process reads them, once there are so many.

    The brokers show them to others a moment after the commit. Fewer are returned if no more come.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        outputs: Pairs = [*committed_records((folder / "address").read_text(), "output")]
        if len(outputs) >= at_least or time.monotonic() > deadline:
            return outputs
        time.sleep(0.1)


def lost_and_repeated(outputs: Pairs) -> tuple[int, int]:
    """Compare outputs with the model's; return how many of them are missing, and how many came besides."""
    expected = expected_outputs(KEYS)
    num_lost = sum(1 for pair in expected if pair not in outputs)
    repeated = len(outputs) + num_lost - len(expected)
    return num_lost, repeated
