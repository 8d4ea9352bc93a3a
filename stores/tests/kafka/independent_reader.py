"""A consumer of one partition that shares no code with the library: the records that another process would see now."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import Consumer, KafkaError

from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition

SILENCE_S = 600.0
DEADLINE_S = 600.0


class Seen(NamedTuple):
    """One record."""

    offset: int
    key: bytes
    value: bytes


class IndependentReader:
    """Reads the partition from its start, any number of times. A ``with`` block closes it."""

    def __init__(self, broker: Broker, partition: TopicPartition, isolation_level: str = "read_committed") -> None:
        self._start = confluent_kafka.TopicPartition(*partition, 0)
        self._client = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "independent",
                "isolation.level": isolation_level,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def records(self) -> list[Seen]:
        """Return the records up to the end that the level has now."""
        self._client.assign([self._start])
        records: list[Seen] = []
        while True:
            message: Any = self._client.poll(SILENCE_S)
            assert message is not None, "no answer"
            error = message.error()
            if error is None:
                records.append(Seen(message.offset(), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                return records
            else:
                raise AssertionError(str(error))

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of each record."""
        return [(record.key, record.value) for record in self.records()]

    def await_records(self, number: int) -> list[Seen]:
        """Wait until there are so many records. The brokers show those of a commit a moment after it."""
        deadline = time.monotonic() + DEADLINE_S
        while len(records := self.records()) < number:
            assert time.monotonic() < deadline, records
            time.sleep(0.02)
        assert len(records) == number
        return records
