"""Kafka's own tools read what a task wrote: the console consumer, committed records only, against the model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.counting import KEYS, RECORDS_PER_COMMIT, Pairs, changelog, prepared, task_over, work
from stores.tests.kafka.java_programs import kafka_tool
from stores.tests.tasks.setup import LEFT, expected_outputs, expected_state

pytestmark = pytest.mark.kafka

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SILENCE_MS = 6_000
"""The console consumer ends when it has got no record for so long."""
ATTEMPTS = 3


def consumed(broker: Broker, topic: str, isolation_level: str, at_least: int) -> Pairs:
    """Return what the console consumer prints of a topic. On a busy machine it may end before its first record."""
    for _ in range(ATTEMPTS):
        output = kafka_tool(
            CONSUMER,
            *("--bootstrap-server", broker.address, "--topic", topic),
            *("--partition", "0", "--offset", "earliest"),
            *("--isolation-level", isolation_level, "--timeout-ms", str(SILENCE_MS)),
            *("--property", "print.key=true", "--property", "key.separator=="),
        )
        pairs = [line.partition("=") for line in output.splitlines()]
        if len(pairs) >= at_least:
            break
    return [(key.encode(), value.encode()) for key, _, value in pairs]


def test_the_console_consumer_reads_the_models_outputs_and_nothing_uncommitted(tmp_path: Path, broker: Broker) -> None:
    """A task is killed before its third commit; its successor ends the work. Source: KIP-98, read_committed."""
    prepared(tmp_path, broker)
    assert call_until_killed(work, tmp_path, "changelog.before_commit", 3)
    work(tmp_path)
    # At the same time: each ends after a silence.
    with ThreadPoolExecutor() as threads:
        levels = "read_committed", "read_uncommitted"
        committed, uncommitted = threads.map(lambda level: consumed(broker, "output", level, len(KEYS)), levels)
    assert committed == expected_outputs(KEYS)
    assert len(uncommitted) == len(KEYS) + RECORDS_PER_COMMIT  # The killed transaction is there, and not read.


def test_the_console_consumer_reads_the_models_state_from_the_changelog(tmp_path: Path, broker: Broker) -> None:
    prepared(tmp_path, broker)
    with changelog(tmp_path) as log, task_over(tmp_path, log) as task:
        task.run()
        task.commit()
    model = expected_state(KEYS)
    assert dict(consumed(broker, LEFT.topic, "read_committed", len(model))) == model
