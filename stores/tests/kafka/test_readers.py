"""The readers of a Kafka changelog that wait for the next read of their partition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.kafka import KafkaChangelog, changelog
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.reader import END_WAIT_MS, KafkaPartitionReader
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import OffsetOutOfRangeError
from stores.interface import TopicPartition
from stores.tasks import Batch, TaskContext
from stores.tests.kafka.fresh import fresh_changelog, remove_all
from stores.tests.tasks.setup import (
    INPUT,
    Crash,
    batch_task,
    counting_task,
    expected_state,
    feed,
    over_both_forms,
    state,
)

PARTITIONS = [TopicPartition("many", number) for number in range(6)]
CHANGELOG = TopicPartition("of-a-store", 0)
READERS_MAX = 2


@pytest.mark.kafka
def test_reading_many_partitions_keeps_a_bounded_number_of_clients_and_closing_keeps_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[int] = set()

    class Counted(KafkaPartitionReader):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            readers.add(id(self))

        def close(self) -> None:
            super().close()
            readers.remove(id(self))

    monkeypatch.setattr(changelog, "READERS_MAX", READERS_MAX)
    monkeypatch.setattr(changelog, "KafkaPartitionReader", Counted)
    with fresh_changelog(broker) as log:
        log.create_topic("many", len(PARTITIONS))
        with log.producer() as producer:
            for partition in PARTITIONS:
                producer.send(partition, b"k", b"v")
            producer.flush()
        for _ in range(2):
            for partition in PARTITIONS:
                assert [record.value for record in log.read(partition)] == [b"v"]
            assert len(readers) == READERS_MAX
    assert not readers


@pytest.mark.kafka
def test_a_read_whose_records_are_removed_before_it_gets_them_says_so(broker: Broker) -> None:
    partition = TopicPartition("a", 0)
    with fresh_changelog(broker) as log:
        log.create_topic("a")
        with log.producer() as producer:
            producer.send_all(partition, [(b"%d" % number, b"v", -1) for number in range(3)])
            producer.flush()
        records = log.read(partition)
        log.truncate(partition, 2)
        with pytest.raises(OffsetOutOfRangeError):
            next(records)
        assert [record.key for record in log.read(partition, 2)] == [b"2"]


def fed(log: KafkaChangelog, number: int) -> None:
    """Commit so many records; the marker of the transaction follows them."""
    with log.producer("feeding") as producer:
        producer.begin()
        producer.send_all(CHANGELOG, [(b"%d" % each, b"v", -1) for each in range(number)])
        producer.commit()


def keys(log: KafkaChangelog, from_offset: int = 0) -> list[bytes | None]:
    return [record.key for record in log.read(CHANGELOG, from_offset)]


@pytest.mark.kafka
def test_a_reader_of_the_changelog_of_a_store_asks_for_nothing_between_two_reads(broker: Broker) -> None:
    """Otherwise it would read ahead what the task itself writes."""
    with fresh_changelog(broker) as log:
        log.create_store_topic(CHANGELOG.topic, 1)
        fed(log, 3)
        assert keys(log) == [b"0", b"1", b"2"]
        reader = log._readers[CHANGELOG]
        assert reader._client.assignment() == []
        fed(log, 2)
        assert keys(log, 3) == [b"0", b"1"]
        assert keys(log, 1) == [b"1", b"2", b"0", b"1"]
        assert next(iter(log.read(CHANGELOG))).key == b"0"
        assert len(reader._client.assignment()) == 1
        assert keys(log, log.end_offset(CHANGELOG)) == []
        assert reader._client.assignment() == []
        assert (log._readers[CHANGELOG] is reader, len(keys(log))) == (True, 5)


@pytest.mark.kafka
def test_a_reader_of_an_input_reads_ahead_between_two_reads(broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        log.create_topic(CHANGELOG.topic)
        fed(log, 3)
        assert keys(log) == [b"0", b"1", b"2"]
        assert len(log._readers[CHANGELOG]._client.assignment()) == 1


@pytest.mark.kafka
@pytest.mark.parametrize(("given", "wait_ms"), [({}, END_WAIT_MS), ({"fetch.wait.max.ms": "70"}, "70")])
def test_a_restore_does_not_wait_long_for_the_answer_that_nothing_follows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], wait_ms: Any
) -> None:
    waits: list[Any] = []
    client = Cluster.client

    def noted(cluster: Cluster, kind: Any, own: Mapping[str, Any], *arguments: Any) -> Any:
        waits.extend(value for name, value in own.items() if name == "fetch.wait.max.ms")
        return client(cluster, kind, own, *arguments)

    monkeypatch.setattr(Cluster, "client", noted)
    remove_all(broker)
    with KafkaChangelog({"bootstrap.servers": broker.address, **given}) as log:
        log.create_store_topic(CHANGELOG.topic, 1)
        fed(log, 1)
        assert keys(log) == [b"0"]
    assert waits == [wait_ms]


@pytest.mark.kafka
@pytest.mark.parametrize("poisoned", [None, 17])
def test_what_a_slice_of_batches_leaves_of_a_piece_is_next_unless_the_task_rolls_back(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, poisoned: int | None
) -> None:
    """A client that had to go back would drop what it has read ahead."""
    begun: list[int] = []
    begin = KafkaPartitionReader._begin

    def noted(reader: KafkaPartitionReader) -> None:
        begun.append(reader._next_offset)
        begin(reader)

    seen: list[int] = []

    def process_batch(batch: Batch, context: TaskContext) -> None:
        seen.extend(batch.offsets)
        if poisoned is not None and poisoned in batch.offsets and seen.count(poisoned) == 1:
            raise Crash

    with fresh_changelog(broker) as log:
        feed(log, range(60))
        with batch_task(tmp_path, log, process_batch, stores={}) as task:
            monkeypatch.setattr(KafkaPartitionReader, "_begin", noted)
            for _ in range(3):
                with suppress(Crash):
                    task.run(7)
            task.commit()
            while task.run(7, commit=True):
                pass
    if poisoned is None:
        assert (seen, begun) == ([*range(60)], [0])
    else:
        assert seen == [*range(18), *range(60)] or seen == [*range(21), *range(60)]
        assert begun == [0, 0]


@pytest.mark.kafka
@over_both_forms
def test_an_idle_task_does_not_ask_for_the_end_of_its_input_at_each_turn(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    asked: list[TopicPartition] = []
    bounds = Cluster.bounds

    def noted(cluster: Cluster, partition: TopicPartition) -> tuple[int, int]:
        asked.append(partition)
        return bounds(cluster, partition)

    monkeypatch.setattr(changelog, "ASK_S", 1_000.0)
    with fresh_changelog(broker) as log:
        feed(log, range(5))
        with counting_task(tmp_path, log, batches=batches) as task:
            assert task.run(commit=True) == 5
            monkeypatch.setattr(Cluster, "bounds", noted)
            for _ in range(50):
                task.run(10, only_arrived=True)
            task.run(wait_s=0.3, only_arrived=True)
            assert asked == []
            feed(log, range(5, 8))
            deadline = time.monotonic() + 600
            while task.run(10, commit=True, only_arrived=True) == 0:
                assert time.monotonic() < deadline
            while task.input_offsets() != {INPUT: 8}:
                task.run(10, commit=True, only_arrived=True)
                assert time.monotonic() < deadline
            assert state(task, "left") == expected_state(range(8))
            monkeypatch.setattr(changelog, "ASK_S", 0.0)
            asked.clear()
            task.run(10, only_arrived=True)
            assert asked == [INPUT]
