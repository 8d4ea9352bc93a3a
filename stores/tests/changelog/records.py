"""Putting records into a changelog, and reading them back in short."""

from __future__ import annotations

import time
from pathlib import Path

from stores.changelog.interface import Changelog, Producer
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.producer import PENDING_RECORDS_MAX, BufferedProducer
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MANY = 2 * PENDING_RECORDS_MAX + 5
"""More records than a producer holds back: some of them reach the log before their commit."""
DEADLINE_S = 600.0


def put(log: Changelog, *pairs: tuple[bytes | None, bytes | None], partition: TopicPartition = A) -> None:
    with log.producer() as producer:
        for key, value in pairs:
            producer.send(partition, key, value)
        producer.flush()


def marks(log: Changelog) -> int:
    """Return the control records at the end of a transaction, in each of its partitions: Kafka's brokers write one."""
    return 1 if isinstance(log, KafkaChangelog) else 0


def send_many(producer: Producer, count: int, value: bytes = b"v") -> None:
    for number in range(count):
        producer.send(A, b"%d" % number, value)


def await_sent(log: Changelog, producer: Producer, end: int, partition: TopicPartition = A) -> int:
    """Wait until the log has all records that the producer does not hold back; return the offset after them.

    ``end`` is the offset after those that it holds back. Kafka's client sends in the background, and may not have begun
    when the next record is sent or the transaction ends: an abort drops what it has not sent.
    """
    assert isinstance(producer, BufferedProducer)
    end -= producer._pending_records
    if isinstance(log, KafkaChangelog):
        deadline = time.monotonic() + DEADLINE_S
        while (written_end := log.written_end(partition)) < end:
            assert time.monotonic() < deadline, f"{written_end} of {end}"
            time.sleep(0.01)
    return end


def pairs(
    log: Changelog, partition: TopicPartition = A, from_offset: int = 0
) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.read(partition, from_offset)]


def filled(path: Path, records: int = 3) -> Path:
    """A changelog in a file, closed again; returns its path."""
    with SqliteChangelog(path) as log:
        log.create_topic("a")
        with log.producer() as producer:
            send_many(producer, records, bytes(100))
            producer.flush()
    return path
