"""The yardstick: consume, transform, produce, with the client and the workload of our tasks, and dictionaries.

It has the same transactions, offsets in them, and settings of the client. It restores nothing, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from harness.experiments.kafka.trial import EVENTS_TOPIC, WARM_UP_SHARE, checksum_of, workload_of
from harness.processes.load import SpeedMeter, clocks
from stores.changelog.interface import Record

_PIECE = 500
"""The most messages of one call of the client, as in our reader. With 5,000 a record takes longer."""
_LOOK_RECORDS = 100
"""The number of records after which it looks at the clock."""
_WAIT_S = 30.0
_OF_KEY = -1
"""The client chooses the partition, by its partitioner."""


class DictStore:
    """A dictionary, each change of which is also sent to a topic."""

    def __init__(self, topic: str, send: Callable[[str, bytes, bytes], None]) -> None:
        self._topic, self._send = topic, send
        self.pairs: dict[bytes, bytes] = {}
        self.get = self.pairs.get

    def put(self, key: bytes, value: bytes) -> None:
        """Keep the value, and send it."""
        self.pairs[key] = value
        self._send(self._topic, key, value)


class Loop:
    """The loop. It is the context of the workload as well."""

    def __init__(self, address: str, application: str, workload: str, partitions: int, commit_interval_ms: int) -> None:
        self._interval_s = commit_interval_ms / 1_000
        self._work = workload_of(workload)
        client = {"bootstrap.servers": address}
        self._consumer = Consumer(
            {
                **client,
                "group.id": application,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 16_384,
                "fetch.queue.backoff.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(EVENTS_TOPIC, number, 0) for number in range(partitions)])
        self._producer = Producer(
            {**client, "transactional.id": application, "enable.idempotence": True, "partitioner": "murmur2_random"}
        )
        self._producer.init_transactions(_WAIT_S)
        self._producer.begin_transaction()
        self._produce = self._producer.produce
        self._partition = self._timestamp_ms = 0
        self._next: dict[int, int] = {}
        self.stores: list[dict[str, DictStore]] = [
            {name: DictStore(f"{application}-{name}-changelog", self._send) for name in self._work.store_names}
            for _ in range(partitions)
        ]
        self._commit_at = monotonic() + self._interval_s

    def store(self, name: str) -> DictStore:
        """Return the store of the current partition."""
        return self.stores[self._partition][name]

    def forward(self, topic: str, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Send an output, to the partition of its key."""
        self._send(topic, key, value, _OF_KEY)

    def run(self, records: int, meter: SpeedMeter | None = None) -> int:
        """Process so many records, and commit. ``meter`` takes turns."""
        count = 0
        while count < records:
            first = self._consumer.poll(_WAIT_S)
            assert first is not None, "the topic has fewer records"
            more = min(_PIECE, records - count - 1)
            messages = [first, *(self._consumer.consume(more, 0) if more else ())]
            for at in range(0, len(messages), _LOOK_RECORDS):
                self._process(messages[at : at + _LOOK_RECORDS])
                if monotonic() >= self._commit_at:
                    self._commit()
            count += len(messages)
            if meter is not None:
                meter.turn_if_due()
        self._commit()
        return count

    def _process(self, messages: list[Any]) -> None:
        process = self._work.process
        for message in messages:
            assert message.error() is None, message.error()
            self._partition, offset = message.partition(), message.offset()
            _, self._timestamp_ms = message.timestamp()
            process(Record(offset, message.key(), message.value(), self._timestamp_ms), self)  # type: ignore[arg-type]
            self._next[self._partition] = offset + 1
        self._producer.poll(0)

    def _send(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        number = self._partition if partition is None else partition
        while True:
            try:
                self._produce(topic, value, key, number, None, None, self._timestamp_ms)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _commit(self) -> None:
        offsets = [TopicPartition(EVENTS_TOPIC, partition, offset) for partition, offset in self._next.items()]
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), _WAIT_S)
        self._producer.commit_transaction(_WAIT_S)
        self._producer.begin_transaction()
        self._commit_at = monotonic() + self._interval_s


def measured(
    address: str,
    application: str,
    workload: str,
    partitions: int,
    commit_interval_ms: int,
    events: int,
    folder: Path,
) -> dict[str, Any]:
    """Return the figures as ``tasks.measured`` does."""
    loop = Loop(address, application, workload, partitions, commit_interval_ms)
    warm = loop.run(events // WARM_UP_SHARE)
    meter, began = SpeedMeter(), clocks()
    count = loop.run(events - warm, meter)
    figures = meter.columns_since(began)
    pairs = (pair for stores in loop.stores for store in stores.values() for pair in store.pairs.items())
    return {"records": count, **figures, **checksum_of(pairs)}
