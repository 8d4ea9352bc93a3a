"""The changelog in Apache Kafka: one topic for each store, compacted by the brokers.

The settings of these topics are here, too: those of a new one, and those that an existing one must change.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from operator import length_hint
from types import MappingProxyType
from typing import Any, ClassVar, Final

from confluent_kafka.cimpl import NewTopic

from stores.changelog.arguments import check_name, check_readable, check_topic, check_truncation, checked_partition
from stores.changelog.group import Copies, GroupListener
from stores.changelog.interface import Changelog, Committed, IsExpired, IsNeeded, Record, RecordColumns, SharedProducer
from stores.changelog.kafka.client import READ_AHEAD, UNSENT, ClientSettings
from stores.changelog.kafka.cluster import CLIENT_BYTES_MAX, Cluster
from stores.changelog.kafka.group_member import KafkaGroupMember, check_members
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.producer import KafkaProducer, KafkaSharedProducer
from stores.changelog.kafka.reader import READ_AHEAD_KIB, KafkaPartitionReader
from stores.changelog.kafka.writer import KafkaWriter
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, StoreClosedError
from stores.interface import TopicPartition

_log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
ASK_S = 1.0
"""The time after which the end of an input is asked for again, although its client has got nothing: a client that has
lost its broker gets nothing, either."""
READERS_MAX = 32
"""The most readers that wait for the next read of their partition. Each is a client with threads of its own."""
_LARGEST = "message.max.bytes"
_UNSENT_KIB_MAX = 1 << 20
"""The client's default."""
_READ_AHEAD_KIB_MIN = 64
_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Brokers delete by the wall clock and by size. A store's records expire by its stream time, which may be years behind:
so the task alone decides what is deleted (``Changelog.drop_before``)."""
_EXPIRING: Final = {"cleanup.policy": "compact,delete", **_FOR_EVER}
"""Kafka deletes records on request only in topics whose policy has ``delete``. Source: KIP-107."""
_LAG: Final = "min.compaction.lag.ms"
_MORE_LAG_MS: Final = 86_400_000
"""Brokers compare the times of records with their clock. Source: Kafka Streams, ``VersionedChangelogTopicConfig``."""
_NUMBER_MAX: Final = (1 << 63) - 1


class KafkaChangelog(Changelog):
    """A changelog in the Kafka cluster at ``bootstrap.servers``. May be used from any thread, each producer from one.

    ``settings`` are those of the client, by its own names (librdkafka's CONFIGURATION.md), TLS and SASL among them.
    Their secrets are in no message, log or ``repr``. ``timeout_s`` is the time in which each call is tried again; then
    ChangelogTimeoutError is raised. ``replication_factor`` and ``topic_settings`` are those of topics that it creates;
    -1 is the brokers' default. ``while_connecting`` is called each second until a broker answers, and may raise an
    exception. Closing it closes its producers.

    Raises: TypeError; ConfigError for a setting that does not exist or can't be given; ChangelogTimeoutError if no
    broker answers; ChangelogError if the brokers refuse the client. Source: KIP-98, KIP-129, KIP-447.
    """

    compacts_itself: ClassVar[bool] = True
    reads_hold_snapshots: ClassVar[bool] = False
    takes_inputs_elsewhere: ClassVar[bool] = False

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        timeout_s: float = TIMEOUT_S,
        replication_factor: int = -1,
        topic_settings: Mapping[str, str] | None = None,
        while_connecting: Callable[[], None] | None = None,
    ) -> None:
        if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not 0 < timeout_s <= 1_000_000:
            raise ConfigError(f"timeout_s is more than 0 and at most 1000000 seconds, not {timeout_s!r}")
        if type(replication_factor) is not int or not (replication_factor == -1 or replication_factor >= 1):
            raise ConfigError(
                f"replication_factor is 1 or more, or -1 for the brokers' own, not {replication_factor!r}"
            )
        self._replication_factor = replication_factor
        self._topic_settings = checked_topic_settings({} if topic_settings is None else topic_settings)
        self._cluster = Cluster(ClientSettings(settings), timeout_s, while_connecting)
        self._groups = GroupOffsets(self._cluster)
        self._producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._readers: dict[TopicPartition, KafkaPartitionReader] = {}
        self._empty: dict[TopicPartition, tuple[int, int]] = {}
        """Offsets without a record, from the first up to the second one, by partition: the end of the last read."""
        self._topic_ids: dict[str, str] = {}
        """The IDs of topics as they were when they were asked for last."""
        self._asked_at: dict[TopicPartition, float] = {}
        """The time of the last question for the end of a partition that is read."""
        self._whole_topics: set[str] = set()
        """The topics that are read to their ends: those of stores, by restores, and those of global stores."""

    def __repr__(self) -> str:
        return f"<KafkaChangelog at {self._cluster.settings.servers}>"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        check_topic(topic, partitions)
        self._create(topic, partitions, self._topic_settings)

    def create_store_topic(
        self, topic: str, partitions: int, *, expires: bool = False, history_ms: int | None = None
    ) -> None:
        check_topic(topic, partitions)
        self.expect_reads_to_end(topic)
        own = store_topic_settings(expires=expires, history_ms=history_ms, given=self._topic_settings)
        settings = {**self._topic_settings, **own}
        existing = self._cluster.topics().get(topic)
        if existing is None and self._create(topic, partitions, settings):
            return
        self._mend(topic, due_settings(topic, self._cluster.topic_settings(topic), own, expires=expires))
        if existing is not None and existing < partitions:
            raise ChangelogError(
                f"topic {topic!r} has {existing} partitions, and the application needs {partitions}: it keeps the "
                "stores of earlier partitions, so give the application another name, or its inputs fewer partitions"
            )

    def _mend(self, topic: str, changes: Mapping[str, str]) -> None:
        """Change settings of an existing topic. Raises: ChangelogError if it loses records without these."""
        if not changes:
            return
        try:
            self._cluster.alter_topic(topic, changes)
        except ChangelogTimeoutError:
            raise
        except ChangelogError as error:
            if loses_records(changes):
                raise ChangelogError(
                    f"brokers delete records of the changelog topic {topic!r} by their times or their size, also those "
                    f"that its store needs, and refuse other settings: {error}. Let someone with the permission change "
                    f"them: {altering(topic, changes)}"
                ) from error
            _log.warning(
                "the changelog topic %r grows for ever, because it keeps what has expired, and brokers refuse other "
                "settings: %s. Let someone with the permission change them: %s",
                topic,
                error,
                altering(topic, changes),
            )
        else:
            _log.info("the changelog topic %r has got other settings: %s", topic, dict(changes))

    def expect_reads_to_end(self, topic: str) -> None:
        self._whole_topics.add(topic)

    def topics(self) -> Mapping[str, int]:
        return self._cluster.topics()

    def topic_id(self, topic: str) -> str:
        check_topic(topic, 1)
        topic_id = self._cluster.topic_id(topic)
        if self._topic_ids.setdefault(topic, topic_id) != topic_id:
            self._topic_ids[topic] = topic_id
            self._forget(topic)
        return topic_id

    def _forget(self, topic: str) -> None:
        """Forget what is known of a topic that was deleted and created again."""
        self._cluster.forget(topic)
        with self._lock:
            stale = [self._readers.pop(partition) for partition in [*self._readers] if partition.topic == topic]
        for reader in stale:
            reader.close()
        for partition in [each for each in self._empty if each.topic == topic]:
            del self._empty[partition]

    def deletes_kept_s(self, topic: str) -> float | None:
        return int(self._cluster.topic_settings(topic)["delete.retention.ms"]) / 1_000

    def producer(self, transactional_id: str | None = None, timeout_s: float | None = None) -> KafkaProducer:
        self._cluster.check_open()
        if transactional_id is not None:
            check_name("transactional id", transactional_id)
        return self._make_producer(transactional_id, timeout_s)

    def shared_producer(self, transactional_id: str, timeout_s: float | None = None) -> SharedProducer:
        self._cluster.check_open()
        check_name("transactional id", transactional_id)
        return KafkaSharedProducer(self._make_producer, self._cluster, self._groups, transactional_id, timeout_s)

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        return self._records(*self._checked(partition, from_offset))

    def read_columns(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[RecordColumns]:
        return self._pieces(*self._checked(partition, from_offset))

    def has_arrived(self, partition: TopicPartition, from_offset: int) -> bool:
        if time.monotonic() - self._asked_at.get(partition, float("-inf")) >= ASK_S:
            return True
        with self._lock:
            reader = self._readers.pop(partition, None)
        if reader is None:
            return True
        try:
            return reader.has_arrived(from_offset)
        finally:
            self._keep(partition, reader)

    def _checked(self, partition: TopicPartition, from_offset: int) -> tuple[TopicPartition, int, int]:
        self._asked_at[partition] = time.monotonic()
        start, end = self._cluster.bounds(partition)
        check_readable(partition, from_offset, start, end, self._cluster.written_end)
        return checked_partition(partition), from_offset, end

    def start_offset(self, partition: TopicPartition) -> int:
        return self._cluster.bounds(partition)[0]

    def end_offset(self, partition: TopicPartition) -> int:
        return self._cluster.bounds(partition)[1]

    def written_end(self, partition: TopicPartition) -> int:
        return self._cluster.written_end(partition)

    def await_decided(self, partition: TopicPartition) -> None:
        self._cluster.await_decided(partition)

    def lag(self, partition: TopicPartition, next_offset: int) -> int:
        first, before = self._empty.get(partition, (0, 0))
        reached = before if first <= next_offset < before else next_offset
        return max(self.end_offset(partition) - reached, 0)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, int]:
        return self._groups.committed(group, partitions).offsets

    def committed(self, group: str, partitions: Collection[TopicPartition] | None = None) -> Committed:
        return self._groups.committed(group, partitions)

    def check_group(self, group: str, *, fingerprint: str, fencing: bool = False) -> None:
        check_name("group", group)
        check_members(self._cluster, group, fingerprint, fencing=fencing)

    def join_group(
        self,
        group: str,
        topics: Sequence[str],
        listener: GroupListener,
        *,
        fingerprint: str,
        session_timeout_s: float,
        server: str = "",
        copies: Copies | None = None,
        instance_id: str | None = None,
        fencing: bool = False,
    ) -> KafkaGroupMember:
        return KafkaGroupMember(
            self._cluster,
            group,
            topics,
            listener,
            fingerprint,
            session_timeout_s,
            server=server,
            copies=copies,
            instance_id=instance_id,
            fencing=self._groups if fencing else None,
        )

    def compact(
        self, partition: TopicPartition, is_expired: IsExpired | None = None, is_needed: IsNeeded | None = None
    ) -> int:
        """Check the partition only: Kafka's brokers compact their topics themselves. Return 0."""
        self._cluster.check_partition(partition)
        return 0

    def can_truncate(self, topic: str) -> bool:
        return "delete" in self._cluster.topic_settings(topic).get("cleanup.policy", "")

    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        start, end = self._cluster.bounds(partition)
        check_truncation(partition, before_offset, start, end)
        self._cluster.truncate(partition, before_offset)
        return before_offset - start

    def drop_before(self, partition: TopicPartition, before_offset: int) -> None:
        self._cluster.check_open()
        self._cluster.drop_before(checked_partition(partition), before_offset)

    def close(self) -> None:
        try:
            for producer in list(self._producers):
                producer.close()
        finally:
            with self._lock:
                readers, self._readers = self._readers, {}
            for reader in readers.values():
                reader.close()
            self._groups.close()
            self._cluster.close()

    def _make_producer(self, transactional_id: str | None, transaction_timeout_s: float | None = None) -> KafkaProducer:
        writer = KafkaWriter(self._cluster, self._groups, transactional_id, transaction_timeout_s)
        producer = KafkaProducer(writer, transactional_id)
        self._producers.add(producer)
        return producer

    def _create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> bool:
        existing = self._cluster.topics().get(topic)
        if existing is None:
            new = NewTopic(topic, partitions, self._replication_factor, config=dict(settings))
            if self._cluster.create(new):
                return True
            existing = self._cluster.await_topic(topic)
        if existing != partitions:
            raise ChangelogError(f"topic {topic!r} has {existing} partitions, not {partitions}")
        return False

    def _records(self, partition: TopicPartition, from_offset: int, end: int) -> Iterator[Record]:
        """Return the records one by one. Those of a piece that are not taken are given back."""
        rest: Iterator[Record] = iter(())
        pieces = self._pieces(partition, from_offset, end, lambda: length_hint(rest))
        with closing(pieces):
            for piece in pieces:
                rest = iter(list(piece.records()))
                yield from rest

    def _pieces(
        self, partition: TopicPartition, from_offset: int, end: int, num_left: Callable[[], int] = int
    ) -> Generator[RecordColumns, None, None]:
        """Return the records some at a time. ``num_left`` says how many of a piece are not taken."""
        with self._lock:
            reader = self._readers.pop(partition, None)
        if from_offset >= end:
            if reader is not None:
                reader.rest()
                self._keep(partition, reader)
            return
        if reader is None:
            reader = KafkaPartitionReader(self._cluster, partition, from_offset, partition.topic in self._whole_topics)
        else:
            reader.move(from_offset)
        piece = None
        try:
            for piece in reader.pieces(end):
                self._cluster.check_open()
                yield piece
        except GeneratorExit:
            if piece is not None and num_left():
                reader.give_back(piece.part(len(piece.offsets) - num_left()))
            self._keep(partition, reader)
            raise
        except BaseException:
            reader.close()
            raise
        self._empty[partition] = (reader.after_records, end)
        self._keep(partition, reader)

    def _keep(self, partition: TopicPartition, reader: KafkaPartitionReader) -> None:
        """Keep a reader for the next read of its partition, or close it."""
        with self._lock:
            try:
                self._cluster.check_open()
                keep = partition not in self._readers and len(self._readers) < READERS_MAX
            except StoreClosedError:
                keep = False
            if keep:
                self._readers[partition] = reader
        if not keep:
            reader.close()


def buffer_limits(max_bytes: int, producers: int, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings by which all buffers of a process have ``max_bytes``, unless ``settings`` has its own ones.

    Half is for unsent records, in equal parts for ``producers``. Each part has room for two of the largest records,
    because the client takes no record that does not fit. The other half is for read-ahead, in parts for the most
    readers that wait for their next read. A reader has up to one answer of a broker (``fetch.message.max.bytes``) more.
    """
    half_kib, largest = max_bytes // 2 >> 10, CLIENT_BYTES_MAX
    with suppress(TypeError, ValueError):  # The client refuses such a setting, and names it.
        largest = int(settings.get(_LARGEST, CLIENT_BYTES_MAX))
    room_kib = 2 * largest >> 10
    limits = {
        UNSENT: min(max(half_kib // producers, room_kib), _UNSENT_KIB_MAX),
        READ_AHEAD: min(max(half_kib // READERS_MAX, _READ_AHEAD_KIB_MIN), READ_AHEAD_KIB),
    }
    return {name: limit for name, limit in limits.items() if name not in settings}


def checked_topic_settings(settings: object) -> dict[str, str]:
    """Return a copy of the settings that a user gives. Raises: TypeError."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"topic_settings are a mapping of names to texts, not {type(settings).__name__}")
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"topic_settings are texts, by name: write {str(name)!r}: {str(value)!r}")
    return dict(settings)


def store_topic_settings(
    *, expires: bool, history_ms: int | None = None, given: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the settings of a new topic for a store whose records expire, or are needed for ever.

    With ``history_ms`` compaction leaves records alone for so long and a day, or for longer if that is ``given``.
    """
    if history_ms is None:
        return dict(_EXPIRING) if expires else {"cleanup.policy": "compact"}
    lag_ms = max(history_ms + _MORE_LAG_MS, _number(given.get(_LAG)))
    return {"cleanup.policy": "compact", _LAG: str(min(lag_ms, _NUMBER_MAX))}


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def due_settings(
    topic: str, settings: Mapping[str, str], own: Mapping[str, str] = MappingProxyType({}), *, expires: bool
) -> dict[str, str]:
    """Return the settings of an existing topic that must change, so that it loses nothing and does not grow for ever.

    ``own`` are those of a new topic. Raises: ChangelogError, with the setting, for one that its owner has to decide.
    """
    if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        reason = "its store restores the times of records"
        raise _refused(topic, "message.timestamp.type", settings, reason, "CreateTime")
    policies = {policy.strip() for policy in settings.get("cleanup.policy", "").split(",")}
    due = store_topic_settings(expires=expires)["cleanup.policy"]
    if "compact" not in policies:
        raise _refused(topic, "cleanup.policy", settings, "it must have compact", due)
    if not expires:
        if "delete" in policies:
            raise _refused(topic, "cleanup.policy", settings, "its store needs every key for ever", due)
        return {_LAG: own[_LAG]} if _LAG in own and _number(settings.get(_LAG)) < _number(own[_LAG]) else {}
    if "delete" not in policies:
        return dict(_EXPIRING)
    return {name: value for name, value in _FOR_EVER.items() if settings.get(name, value) != value}


def loses_records(changes: Mapping[str, str]) -> bool:
    """Return True if a topic without these changes would lose records. Otherwise it only grows for ever."""
    return bool(changes) and "cleanup.policy" not in changes


def altering(topic: str, changes: Mapping[str, str]) -> str:
    """Return the command of Kafka that changes the settings."""
    values = ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in changes.items())
    return (
        f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name {topic} "
        f"--add-config {values}"
    )


def _refused(topic: str, name: str, settings: Mapping[str, str], reason: str, due: str) -> ChangelogError:
    return ChangelogError(
        f"the changelog topic {topic!r} has {name}={settings.get(name, '')}, and would lose records: {reason}. Change "
        f"that setting of the topic: {altering(topic, {name: due})}"
    )
