"""The readers of a Kafka changelog that wait for the next read of their partition."""

from __future__ import annotations

from typing import Any

import pytest

from stores.changelog.kafka import changelog
from stores.changelog.kafka.reader import PartitionReader
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import OffsetOutOfRangeError
from stores.interface import TopicPartition
from stores.tests.kafka.fresh import fresh_changelog

PARTITIONS = [TopicPartition("many", number) for number in range(6)]
READERS_MAX = 2


@pytest.mark.kafka
def test_reading_many_partitions_keeps_a_bounded_number_of_clients_and_closing_keeps_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[int] = set()

    class Counted(PartitionReader):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.add(id(self))

        def close(self) -> None:
            super().close()
            opened.remove(id(self))

    monkeypatch.setattr(changelog, "READERS_MAX", READERS_MAX)
    monkeypatch.setattr(changelog, "PartitionReader", Counted)
    with fresh_changelog(broker) as log:
        log.create_topic("many", len(PARTITIONS))
        with log.producer() as producer:
            for partition in PARTITIONS:
                producer.send(partition, b"k", b"v")
            producer.flush()
        for _ in range(2):
            for partition in PARTITIONS:
                assert [record.value for record in log.read(partition)] == [b"v"]
            assert len(opened) == READERS_MAX
    assert not opened


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
