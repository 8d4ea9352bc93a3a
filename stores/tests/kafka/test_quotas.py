"""Tasks whose client has reached a quota of the brokers: they lose time, and nothing else.

Source: KIP-13, KIP-124, KIP-219.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stores.changelog.interface import Record
from stores.changelog.kafka.testing.broker import Broker
from stores.tasks import TaskContext
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT
from stores.tests.kafka.java_programs import kafka_tool
from stores.tests.kafka.sharing_worker import feed_afresh
from stores.tests.kafka.two_tasks import (
    TASK,
    THREAD,
    check_that_repeated_outputs_are_found,
    differences,
    striking,
    two_tasks,
    work,
)
from stores.tests.tasks.sharing import KEYS, ROUND, count

pytestmark = pytest.mark.kafka

CLIENT = "throttled"
BYTES_PER_S = 20_000
BYTES, REQUESTS = f"producer_byte_rate={BYTES_PER_S}", "request_percentage=0.01"
"""With the second one, a pause of up to 1 s follows each request."""
WINDOW_S = 10
"""The time over which brokers measure a rate, about. Source: Kafka, ``quota.window.num``."""
FLOOD = "flood"


@contextmanager
def quota(broker: Broker, limit: str) -> Iterator[None]:
    """Give the clients of these tests a quota."""

    def alter(*change: str) -> None:
        whose = ["--entity-type", "clients", "--entity-name", CLIENT]
        kafka_tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, "--alter", *whose, *change)

    alter("--add-config", limit)
    try:
        yield
    finally:
        alter("--delete-config", limit.partition("=")[0])


def prepared(broker: Broker) -> None:
    def make_topic() -> None:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(FLOOD, len(KEYS), 1)])[FLOOD].result(600)

    feed_afresh(broker, make_topic)


@pytest.mark.parametrize(
    ("limit", "hit", "pause_s", "scope"),
    [(BYTES, 1, 5, THREAD), (BYTES, 1, 16, TASK), (REQUESTS, 5, 0, THREAD)],
    ids=["bytes", "more bytes", "requests"],
)
def test_a_quota_that_is_reached_in_a_commit_costs_time_only(
    tmp_path: Path, broker: Broker, limit: str, hit: int, pause_s: int, scope: str
) -> None:
    """The second transaction of the first task has so many bytes that a pause of ``pause_s`` follows each attempt."""
    prepared(broker)

    def process(record: Record, context: TaskContext) -> None:
        count(record, context)
        if pause_s and context.task_id.partition == 0 and record.offset == ROUND:
            context.forward(FLOOD, record.key, bytes(BYTES_PER_S * (WINDOW_S + pause_s)))
            # As a producer does that has many records.
            producer: Any = context._producer
            producer._append(ends=False)
            producer._writer._client.flush(600)

    throttled: list[Any] = []
    client = {"client.id": CLIENT, "throttle_cb": throttled.append}
    with ExitStack() as stack, two_tasks(tmp_path, broker.address, scope, client=client, process=process) as tasks:
        with striking({hit: lambda: stack.enter_context(quota(broker, limit))}, BEFORE_LOG_COMMIT):
            noted = work(tasks)
    assert max(event.throttle_time for event in throttled) > pause_s / 2
    assert noted == []
    assert differences(tmp_path, broker.address) == {}


def test_without_transactions_outputs_are_there_twice(tmp_path: Path, broker: Broker) -> None:
    """A broken variant of the test before."""
    prepared(broker)
    client = {"client.id": CLIENT}
    with ExitStack() as stack:

        def reach() -> None:
            stack.enter_context(quota(broker, BYTES))

        check_that_repeated_outputs_are_found(tmp_path, broker.address, reach, client)
