"""The committed offsets of consumer groups, as clients ask for them that are no members."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

from stores.changelog.arguments import checked_partition
from stores.changelog.kafka.client_errors import error_of, is_unanswered
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.deadline import returns_in_time
from stores.errors import ChangelogTimeoutError
from stores.interface import TopicPartition

COORDINATOR_S = 10.0
"""The time of one question to a group's coordinator. A client may not find the coordinator again after a restart of its
broker, and another client has to ask then. Source: librdkafka, issues 5456 and 5511."""
OPEN_COMMIT_S = 5.0
"""The time to wait for the end of a commit of offsets. The client waits for it, and does not say that it does."""

Theirs = list[confluent_kafka.TopicPartition]


class GroupOffsets:
    """The offsets of groups in a cluster. For any thread. Raises: as ``Cluster.asked``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._consumers: dict[str, confluent_kafka.Consumer] = {}
        self._metadata: dict[str, Any] = {}

    def committed(self, group: str, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, of these partitions or of all topics of the cluster.

        If a commit is open, it waits some seconds for its end (KIP-447).

        Consumers ask. The client for administration can ask as well, but after a restart of the coordinator's broker it
        does not find it again, and may then abort the process (librdkafka 2.16.0).
        """
        self._cluster.check_open()
        if partitions is None:
            topics = self._cluster.topics()
            partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        asked = [confluent_kafka.TopicPartition(*checked_partition(partition)) for partition in partitions]

        def ask(left_s: float) -> dict[TopicPartition, int]:
            try:
                return _committed(self._consumer(group), asked, min(left_s, OPEN_COMMIT_S))
            except KafkaException as exception:
                if not is_unanswered(error_of(exception)):
                    raise
            own = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
            consumer = self._cluster.client(confluent_kafka.Consumer, own)
            try:
                return _committed(consumer, asked, min(left_s, COORDINATOR_S))
            finally:
                consumer.close()

        return self._cluster.asked(f"asking for the offsets of group {group!r}", ask) if asked else {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group outside of any transaction. Kafka refuses it if the group has members.

        The client's own call has no timeout, and does not return while a broker hangs. Its consumer is left then.
        """
        theirs = as_theirs(offsets)
        doing = f"committing the offsets of group {group!r}"

        def ask(left_s: float) -> None:
            consumer = self._consumer(group)
            entries: Theirs = []

            def call() -> None:
                entries.extend(consumer.commit(offsets=theirs, asynchronous=False))

            if not returns_in_time(call, left_s):
                with self._lock:
                    self._consumers.pop(group, None)
                raise ChangelogTimeoutError(f"{doing}: the coordinator of the group did not answer in time")
            for entry in entries:
                if entry.error is not None:
                    raise KafkaException(entry.error)

        self._cluster.asked(doing, ask)

    def metadata(self, group: str) -> Any:
        """Return the group's metadata for a transaction: that of a client that is no member of it (KIP-447).

        A task's partitions are assigned by its caller, and older instances are fenced by its transactional ID.
        """
        with self._lock:
            metadata = self._metadata.get(group)
            if metadata is None:
                # Without callbacks: this call of the client holds Python's lock.
                own = {"group.id": group, "log_level": 0, "enable.auto.commit": False}
                consumer = confluent_kafka.Consumer(self._cluster.settings.with_own(own))
                try:
                    metadata = self._metadata[group] = consumer.consumer_group_metadata()
                finally:
                    consumer.close()
            return metadata

    def close(self) -> None:
        """Release the clients. May be called more than once."""
        with self._lock:
            consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def _consumer(self, group: str) -> confluent_kafka.Consumer:
        with self._lock:
            self._cluster.check_open()
            consumer = self._consumers.get(group)
            if consumer is None:
                own = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
                consumer = self._consumers[group] = self._cluster.client(confluent_kafka.Consumer, own)
            return consumer


def as_theirs(offsets: Mapping[TopicPartition, int]) -> Theirs:
    """Return offsets as the client takes them."""
    return [
        confluent_kafka.TopicPartition(topic, number, offset) for (topic, number), offset in sorted(offsets.items())
    ]


def _committed(consumer: confluent_kafka.Consumer, asked: Theirs, timeout_s: float) -> dict[TopicPartition, int]:
    offsets = {}
    for entry in consumer.committed(asked, timeout=timeout_s):
        if entry.error is not None:
            raise KafkaException(entry.error)
        if entry.offset >= 0:
            offsets[TopicPartition(entry.topic, entry.partition)] = int(entry.offset)
    return offsets
