"""The committed offsets of consumer groups, as clients ask for them that are no members."""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.arguments import checked_partition
from stores.changelog.interface import Committed
from stores.changelog.kafka.client import error_of, may_pass, returns_in_time
from stores.changelog.kafka.cluster import Cluster
from stores.errors import ChangelogError, ChangelogTimeoutError
from stores.interface import TopicPartition

COORDINATOR_S = 10.0
"""The time of one question to a group's coordinator. A client may not find the coordinator again after a restart of its
broker, and another client has to ask then. Source: librdkafka, issues 5456 and 5511."""
OPEN_COMMIT_S = 5.0
"""The time to wait for the end of a commit of offsets. The client waits for it, and does not say that it does."""

CLIENTS: Final = 4
"""The clients that stay open until they are asked again. Each has threads and connections of its own, and each store of
a task may have groups of its own."""

_OF_A_MEMBER = frozenset(getattr(KafkaError, name) for name in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"))

Theirs = list[confluent_kafka.TopicPartition]


class Membership(Protocol):
    """A membership in a group whose generation fences the offsets of its transactions (KIP-447)."""

    def metadata(self, partitions: Collection[TopicPartition]) -> Any:
        """Return the group's metadata for offsets of ``partitions``.

        Raises: ChangelogTimeoutError if no task has begun with all of them since the member got them, or it is no
        member at the moment.
        """

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """A task begins with the partitions, and no earlier one has them."""


class GroupOffsets:
    """The offsets of groups in a cluster. For any thread. Raises: as ``Cluster.asked``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, confluent_kafka.Consumer] = OrderedDict()
        """The clients that nobody uses at the moment, by their group, the one that was used last at the end."""
        self._closed = False
        self._metadata: dict[str, Any] = {}
        self._memberships: dict[str, Membership] = {}
        self._ended: dict[tuple[str, TopicPartition], object] = {}
        """Those that a transaction of this process has committed, until the brokers are seen to have its marker."""

    def committed(self, group: str, partitions: Collection[TopicPartition] | None = None) -> Committed:
        """Return the committed offsets of a group with their times, of these partitions or of all in the cluster.

        If a commit of others is open, it waits some seconds for its end (KIP-447). A commit of this process is awaited
        like an answer: a task that continued from the offsets before it would repeat its outputs.

        Consumers ask. The client for administration can ask as well, but after a restart of the coordinator's broker it
        does not find it again, and may then abort the process (librdkafka, issue 4605).
        """
        self._cluster.check_open()
        if partitions is None:
            topics = self._cluster.topics()
            partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        queried = [confluent_kafka.TopicPartition(*checked_partition(partition)) for partition in partitions]
        if not queried:
            return Committed({}, {})
        with self._lock:
            ended = {(group, each): self._ended[group, each] for each in partitions if (group, each) in self._ended}
        level = "read_committed" if ended else "read_uncommitted"
        committed = self._asked(f"asking for the offsets of group {group!r}", group, queried, level)
        with self._lock:
            for key, end in ended.items():
                if self._ended.get(key) is end:
                    del self._ended[key]
        return committed

    def ended(self, of_groups: Mapping[str, Committed]) -> None:
        """Note that a transaction of this process has committed offsets. Its marker may be written to them later.

        Source: KIP-98, "WriteTxnMarkerRequest".
        """
        end = object()
        with self._lock:
            for group, committed in of_groups.items():
                self._ended.update({(group, partition): end for partition in committed.offsets})

    def await_decided(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Wait until no open transaction has offsets of the group for these partitions (KIP-447).

        The brokers abort that of a killed producer after its ``transaction.timeout.ms``.
        """
        queried = [confluent_kafka.TopicPartition(topic, number) for topic, number in partitions]
        doing = f"waiting for the end of the open transactions with offsets of group {group!r}"
        self._asked(doing, group, queried, "read_committed")

    def fence_by(self, group: str, membership: Membership) -> None:
        """Let this membership fence the offsets of the group from now on, also when it has ended."""
        with self._lock:
            self._memberships[group] = membership

    def is_fenced(self, group: str) -> bool:
        """Return True if a membership fences the offsets of the group."""
        with self._lock:
            return group in self._memberships

    def begin(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """A task of the group begins with these partitions, and no earlier one of this process has them."""
        with self._lock:
            membership = self._memberships.get(group)
        if membership is not None:
            membership.begin(partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group outside of any transaction. Kafka refuses it if the group has members.

        The client's own call has no timeout, and does not return while a broker hangs. Its consumer is left then, and
        may still commit the offsets when the broker answers again: at least once, some records may be done twice.
        """
        theirs = as_theirs(offsets, times_ms)
        doing = f"committing the offsets of group {group!r}"

        def ask(left_s: float) -> None:
            entries: Theirs = []
            with self._consumer(group) as consumer:

                def call() -> None:
                    entries.extend(consumer.commit(offsets=theirs, asynchronous=False))

                if not returns_in_time(call, left_s):
                    raise ChangelogTimeoutError(f"{doing}: the coordinator of the group did not answer in time")
            for entry in entries:
                if entry.error is None:
                    continue
                if entry.error.code() in _OF_A_MEMBER:
                    # A transaction may be rolled back for these; here they stay.
                    raise ChangelogError(
                        f"{doing}: the group has members, and Kafka takes its offsets from them alone. Stop them, or "
                        "choose another name for the application"
                    )
                raise KafkaException(entry.error)

        self._cluster.asked(doing, ask)

    def metadata(self, group: str, partitions: Collection[TopicPartition]) -> Any:
        """Return the group's metadata for a transaction with offsets of ``partitions`` (KIP-447).

        Without a membership they are those of a client outside of the group. A task's partitions are assigned by its
        caller then, and older instances are fenced by its transactional ID. Raises: as ``Membership.metadata``.
        """
        with self._lock:
            membership = self._memberships.get(group)
        return self.outside_metadata(group) if membership is None else membership.metadata(partitions)

    def outside_metadata(self, group: str) -> Any:
        """Return the group's metadata of a client that is no member. The coordinator accepts them from anyone."""
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
            self._closed = True
            idle = [*self._idle.values()]
            self._idle.clear()
        for consumer in idle:
            consumer.close()

    def _asked(self, doing: str, group: str, asked: Theirs, isolation_level: str) -> Committed:
        """Ask, then with a new client of that level. With ``read_committed``, an open commit is no answer."""

        def ask(left_s: float) -> Committed:
            try:
                with self._consumer(group) as consumer:
                    return _committed(consumer, asked, min(left_s, OPEN_COMMIT_S))
            except KafkaException as exception:
                if not may_pass(error_of(exception)):
                    raise
            consumer = self._new_consumer(group, isolation_level)
            try:
                return _committed(consumer, asked, min(left_s, COORDINATOR_S))
            finally:
                consumer.close()

        return self._cluster.asked(doing, ask)

    def _new_consumer(self, group: str, isolation_level: str) -> confluent_kafka.Consumer:
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation_level}
        return self._cluster.client(confluent_kafka.Consumer, own)

    @contextmanager
    def _consumer(self, group: str) -> Iterator[confluent_kafka.Consumer]:
        """Yield a client that no other thread uses. After a ChangelogTimeoutError it is left: its call still runs.

        It is not kept if its call fails, and may succeed later: it may have lost the brokers for good.
        """
        with self._lock:
            consumer = self._idle.pop(group, None)
        consumer = consumer or self._new_consumer(group, "read_committed")
        try:
            yield consumer
        except ChangelogTimeoutError:
            raise
        except BaseException as exception:
            if isinstance(exception, KafkaException) and may_pass(error_of(exception)):
                consumer.close()
                raise
            self._keep(group, consumer)
            raise
        self._keep(group, consumer)

    def _keep(self, group: str, consumer: confluent_kafka.Consumer) -> None:
        """Keep a client for its next question, and close the one that was used least recently if there are too many."""
        with self._lock:
            closing = [self._idle.pop(group)] if group in self._idle else []
            self._idle[group] = consumer
            while len(self._idle) > (0 if self._closed else CLIENTS):
                closing.append(self._idle.popitem(last=False)[1])
        for each in closing:
            each.close()


def by_group(
    offsets: Mapping[tuple[str, TopicPartition], int], times_ms: Mapping[tuple[str, TopicPartition], int]
) -> dict[str, Committed]:
    """Return offsets and their times by group."""
    of_groups: dict[str, tuple[dict[TopicPartition, int], dict[TopicPartition, int]]] = {}
    for number, entries in enumerate((offsets, times_ms)):
        for (group, partition), value in sorted(entries.items()):
            of_groups.setdefault(group, ({}, {}))[number][partition] = value
    return {group: Committed(*each) for group, each in of_groups.items()}


_TIME = Struct(">bq")
_TIME_VERSIONS = (1, 2)
"""That of this library, whose metadata end with the time, and a later one, in which more follows."""
_TIME_CHARACTERS = 12
"""The characters of base64 that have the bytes of a version and a time."""


def as_theirs(offsets: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int]) -> Theirs:
    """Return offsets as the client takes them. Those with a stream time have it in their metadata."""
    return [
        confluent_kafka.TopicPartition(topic, number, offset, _metadata(times_ms.get(TopicPartition(topic, number))))
        for (topic, number), offset in sorted(offsets.items())
    ]


def _metadata(time_ms: int | None) -> str:
    """Return the metadata of an offset: its stream time in the form of Kafka Streams, ``TopicPartitionMetadata``."""
    return "" if time_ms is None else b64encode(_TIME.pack(_TIME_VERSIONS[0], time_ms)).decode()


def _time_of(metadata: str | None) -> int | None:
    """Return the stream time in the metadata of an offset, None if there is none. Others may have written it."""
    try:
        version, time_ms = _TIME.unpack_from(b64decode((metadata or "")[:_TIME_CHARACTERS], validate=True))
    except (ValueError, StructError):
        return None
    return time_ms if version in _TIME_VERSIONS and time_ms >= 0 else None


def _metadata_of(entry: confluent_kafka.TopicPartition) -> str | None:
    """Return the metadata of an offset. The client reads it up to a byte of zero, which may come after its end."""
    try:
        return entry.metadata
    except UnicodeDecodeError as error:
        return error.object.decode("ascii", "replace")


def _committed(consumer: confluent_kafka.Consumer, asked: Theirs, timeout_s: float) -> Committed:
    offsets, times_ms = {}, {}
    for entry in consumer.committed(asked, timeout=timeout_s):
        if entry.error is not None:
            raise KafkaException(entry.error)
        if entry.offset >= 0:
            partition = TopicPartition(entry.topic, entry.partition)
            offsets[partition] = int(entry.offset)
            time_ms = _time_of(_metadata_of(entry))
            if time_ms is not None:
                times_ms[partition] = time_ms
    return Committed(offsets, times_ms)
