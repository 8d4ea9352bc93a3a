"""A reader of one partition: committed records up to an offset, from a client that reads ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError

from stores.changelog.interface import Record
from stores.changelog.kafka.client_errors import is_unanswered
from stores.changelog.kafka.cluster import READER, Cluster
from stores.changelog.kafka.record_headers import read_headers
from stores.errors import ChangelogTimeoutError, OffsetOutOfRangeError
from stores.interface import TopicPartition

_PIECE = 5_000
_WAIT_S = 0.5


class PartitionReader:
    """A client that reads one partition from ``from_offset`` on. For one thread at a time."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, from_offset: int) -> None:
        self._cluster, self._partition = cluster, partition
        self._client = cluster.client(confluent_kafka.Consumer, {"group.id": "txstores-reader", **READER})
        self._read_ahead: deque[Any] = deque()
        self._next_offset = self._delivered_before = from_offset
        self._begin()

    def move(self, offset: int) -> None:
        """Continue at ``offset``, unless that is where the reader is: there is no record before its next one."""
        if not self._delivered_before <= offset <= self._next_offset:
            self._next_offset = self._delivered_before = offset
            self._begin()

    def _begin(self) -> None:
        self._read_ahead.clear()
        offset = self._next_offset
        theirs = confluent_kafka.TopicPartition(self._partition.topic, self._partition.partition, offset)
        self._client.assign([theirs])

    def records(self, end: int) -> Iterator[Record]:
        """Return the committed records before ``end``, which is not beyond the last stable offset.

        It ends at the first record from ``end`` on, or where the client says that it has reached ``end``: control
        records, aborted records and gaps may be all that is left. Raises: ChangelogTimeoutError if nothing comes for
        the cluster's timeout; OffsetOutOfRangeError; ChangelogError.
        """
        deadline = time.monotonic() + self._cluster.timeout_s
        read_ahead = self._read_ahead
        while self._next_offset < end:
            if not read_ahead:
                self._fetch()
                if not read_ahead:
                    if time.monotonic() > deadline:
                        raise ChangelogTimeoutError(f"reading {self._name}: Kafka sends nothing in time")
                    continue
                deadline = time.monotonic() + self._cluster.timeout_s
            message = read_ahead[0]
            error = message.error()
            if error is not None:
                read_ahead.popleft()
                if error.code() == KafkaError._PARTITION_EOF:
                    self._next_offset = max(self._next_offset, message.offset())
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise OffsetOutOfRangeError(f"{self._name} no longer has offset {self._next_offset}")
                elif not is_unanswered(error):
                    raise self._cluster.failure(error, f"reading {self._name}")
                continue
            offset = message.offset()
            if offset >= end:
                # It stays for the next read; there is nothing before it.
                self._next_offset = offset
                return
            read_ahead.popleft()
            self._next_offset = self._delivered_before = offset + 1
            yield _record(offset, message)

    def close(self) -> None:
        """Release the client."""
        self._client.close()

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.partition}"

    def _fetch(self) -> None:
        first = self._client.poll(_WAIT_S)
        if first is not None:
            self._read_ahead.append(first)
            self._read_ahead.extend(self._client.consume(_PIECE, 0))


def _record(offset: int, message: Any) -> Record:
    _, timestamp_ms = message.timestamp()
    headers = message.headers()
    if not headers:
        return Record(offset, message.key(), message.value(), timestamp_ms)
    timestamp_ms, kept = read_headers(timestamp_ms, headers)
    return Record(offset, message.key(), message.value(), timestamp_ms, kept)
