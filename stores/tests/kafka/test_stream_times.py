"""The stream time of a task is in the metadata of its committed offsets, as that of Kafka Streams is."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from struct import pack
from typing import Any

import confluent_kafka
import pytest

from stores.changelog.interface import Committed
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.writer import KafkaWriter
from stores.interface import TopicPartition
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.counting import changelog, prepared, task_over
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INPUT,
    counting_task,
    crashing_at,
    over_both_forms,
    send,
)

pytestmark = pytest.mark.kafka

TIMES_MS = (5, 7, 60, 50)


def fed(folder: Path, broker: Broker) -> None:
    prepared(folder, broker, ())
    with changelog(folder) as log:
        send(log, [(b"k", b"v", time_ms) for time_ms in TIMES_MS])


def work(folder: Path, batches: bool) -> None:
    with changelog(folder) as log, counting_task(folder, log, batches=batches, commit_every_records=2) as task:
        task.run()


@over_both_forms
@pytest.mark.parametrize(
    ("failpoint", "committed"),
    [
        ("changelog.before_commit", Committed({INPUT: 2}, {INPUT: 7})),
        ("changelog.after_commit", Committed({INPUT: 4}, {INPUT: 60})),
    ],
)
def test_a_kill_in_a_commit_leaves_the_stream_time_of_the_offsets(
    tmp_path: Path, broker: Broker, failpoint: str, committed: Committed, batches: bool
) -> None:
    fed(tmp_path, broker)
    assert call_until_killed(work, tmp_path, failpoint, 2, batches)
    with changelog(tmp_path) as log, task_over(tmp_path, log, batches=batches) as task:
        assert log.committed("app", [INPUT]) == log.committed("app") == committed
        assert task._timing.stream_time.ms == committed.times_ms[INPUT]
        task.run(commit=True)
        assert log.committed("app") == ({INPUT: 4}, {INPUT: 60})


def test_a_transaction_that_is_aborted_takes_its_stream_time_along(tmp_path: Path, broker: Broker) -> None:
    fed(tmp_path, broker)
    with changelog(tmp_path) as log, counting_task(tmp_path, log) as task:
        assert task.run(1, commit=True) == 1
        assert task.run(2) == 2
        with crashing_at("changelog.before_commit"):
            task.commit()
        assert (task._timing.stream_time.ms, task.input_offsets()) == (5, {INPUT: 1})
        assert log.committed("app", [INPUT]) == ({INPUT: 1}, {INPUT: 5})
        assert task.run(commit=True) == 3
        assert log.committed("app", [INPUT]) == ({INPUT: 4}, {INPUT: 60})


def test_a_commit_sends_offsets_and_stream_time_in_one_request(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[str] = []
    send_offsets = KafkaWriter._send_offsets

    def noted(writer: KafkaWriter, group: str, *given: Any) -> None:
        groups.append(group)
        send_offsets(writer, group, *given)

    monkeypatch.setattr(KafkaWriter, "_send_offsets", noted)
    fed(tmp_path, broker)
    with changelog(tmp_path) as log, counting_task(tmp_path, log, commit_every_records=2) as task:
        task.run()
    assert groups == ["app", "app"]


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_the_metadata_have_the_form_of_kafka_streams(tmp_path: Path, broker: Broker, guarantee: Any) -> None:
    """Source: Kafka Streams, ``TopicPartitionMetadata``: base64 of the version 1 and the time."""
    fed(tmp_path, broker)
    with changelog(tmp_path) as log, counting_task(tmp_path, log, guarantee=guarantee) as task:
        task.run(commit=True)
    [entry] = asked(broker)
    assert (entry.offset, entry.metadata) == (4, b64encode(pack(">bq", 1, 60)).decode())


@pytest.mark.parametrize(
    ("metadata", "times_ms"),
    [
        (b64encode(pack(">bq", 2, 41) + b"more of a later version").decode(), {INPUT: 41}),
        (b64encode(pack(">bq", 1, -1)).decode(), {}),
        (b64encode(pack(">bq", 9, 41)).decode(), {}),
        ("", {}),
        ("AQ==", {}),
        ("of someone else: überall", {}),
    ],
)
def test_metadata_of_others_are_read_or_left_alone(
    tmp_path: Path, broker: Broker, metadata: str, times_ms: dict[TopicPartition, int]
) -> None:
    fed(tmp_path, broker)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "app"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(*INPUT, 1, metadata)], asynchronous=False)
    consumer.close()
    with changelog(tmp_path) as log, counting_task(tmp_path, log) as task:
        assert log.committed("app", [INPUT]) == ({INPUT: 1}, times_ms)
        assert task.run(commit=True) == 3
        assert log.committed("app", [INPUT]) == ({INPUT: 4}, {INPUT: 60})


def asked(broker: Broker) -> list[confluent_kafka.TopicPartition]:
    """Ask as a client without our code does."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "app"})
    try:
        return list(consumer.committed([confluent_kafka.TopicPartition(*INPUT)], timeout=60))
    finally:
        consumer.close()
