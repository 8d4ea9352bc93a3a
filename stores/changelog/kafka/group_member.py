"""A member of a consumer group. It only takes part in the group: tasks read their partitions by themselves.

If each task has a transactional ID, the IDs fence older instances. The members are then in a group beside that of the
offsets, ``APPLICATION/workers``. Kafka takes offsets outside of transactions from members alone, if there are any, and
the client can't commit while another thread of it polls.

If tasks share a transaction, the group fences (KIP-447): the members are in the group of the offsets. A transaction has
the client's metadata. The coordinator refuses those of an earlier generation, and of a member that it has removed. Two
cases are left to this module, because another thread than that of the transaction polls. A client that knows of its
removal has the metadata of no generation, which the coordinator accepts from anyone. A client that has joined again has
valid metadata, while a task that it lost before may still run; the group may even have given the task back. So metadata
are given out to a member alone, and only for partitions whose task began after the member got them for the last time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE, Copies, GroupListener, GroupMember, Peer
from stores.changelog.kafka.client_errors import error_of, may_pass
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.group_addresses import GroupAddresses, member_id
from stores.changelog.kafka.group_members import check_members, group_of_members, mark_of
from stores.changelog.kafka.group_offsets import GroupOffsets
from stores.changelog.kafka.group_peers import GroupPeers
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, StoreError
from stores.failpoints import reach
from stores.interface import TopicPartition

_ASSIGNOR = "cooperative-sticky"
_INSTANCE_FENCED = getattr(KafkaError, "FENCED_INSTANCE_ID")  # noqa: B009
_INSTANCE_FENCED_TEXT = "group.instance.id"
"""A part of the client's text for that error. It is all that the client reports after the first time."""
HEARTBEAT_MS = 500
"""The time after which a member learns of a rebalance. The client's default is 3 s, in which the tasks of a worker that
leaves have no owner."""
_LOOK_S = 0.02
"""The time between two looks at the metadata. After a rebalance the coordinator refuses those of the one before."""
_Theirs = list[confluent_kafka.TopicPartition]


class KafkaGroupMember(GroupMember):
    """A member of the consumer group ``group``, which shares the partitions of ``topics``. Source: KIP-429.

    With an ``instance_id`` the group waits for the session timeout before it gives the partitions to others, also after
    ``close`` (KIP-345). With ``fencing``, the group's generation fences the offsets of ``group`` in transactions.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        listener: GroupListener,
        fingerprint: str,
        session_timeout_s: float,
        *,
        server: str = "",
        copies: Copies | None = None,
        instance_id: str | None = None,
        fencing: GroupOffsets | None = None,
    ) -> None:
        """Join. Raises: ChangelogError if the group has members that are none of this application's."""
        self._cluster, self._group, self._listener = cluster, group, listener
        self._topics, self._instance_id, self._fencing = frozenset(topics), instance_id, fencing
        self._held: frozenset[TopicPartition] = frozenset()
        self._begun: frozenset[TopicPartition] = frozenset()
        """Those of them whose tasks have begun since the member got them: their offsets may be committed."""
        self._changing = threading.Lock()
        """For the last two: other threads read them, and tasks begin on other threads."""
        self._closed = False
        self._metadata: Any = None
        """The client's metadata as of the last look at it, None if it must not be used."""
        check_members(cluster, group, fingerprint, fencing=fencing is not None)
        mark = mark_of(group, fingerprint)
        members = group_of_members(group, fencing=fencing is not None)
        self._addresses = GroupAddresses(cluster, members, mark)
        given = str(cluster.settings.value("client.id", ""))
        directory = None if copies is None else copies.directory
        self._peers = None if copies is None else GroupPeers(cluster, members, mark)
        self._name: str | None = None
        own: dict[str, Any] = {
            "group.id": members,
            "client.id": member_id("-".join(filter(None, [given, directory, mark])), server),
            "partition.assignment.strategy": _ASSIGNOR,
            "session.timeout.ms": round(session_timeout_s * 1000),
            "heartbeat.interval.ms": cluster.settings.value(
                "heartbeat.interval.ms", max(1, min(HEARTBEAT_MS, round(session_timeout_s * 1000 / 3)))
            ),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if instance_id is not None:
            own["group.instance.id"] = instance_id
        self._consumer = cluster.client(confluent_kafka.Consumer, own)
        if fencing is not None:
            fencing.fence_by(group, self)
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, wait_s: float) -> None:
        ends = time.monotonic() + wait_s
        while True:
            left_s = max(ends - time.monotonic(), 0)
            self._poll(left_s if self._fencing is None else min(left_s, _LOOK_S))
            self._look()
            if self._fencing is None or time.monotonic() >= ends:
                return

    def _poll(self, wait_s: float) -> None:
        self._cluster.check_open()
        try:
            message = self._consumer.poll(wait_s)
        except KafkaException as exception:
            raise self._failure(error_of(exception)) from None
        if self._peers is not None:
            self._name = self._consumer.memberid()
        error = None if message is None else message.error()
        if error is None or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return  # The next polls lose the partitions, and join again.
        if _ends_member(error) or not may_pass(error):
            raise self._failure(error)

    def metadata(self, partitions: Collection[TopicPartition]) -> Any:
        """Return the group's metadata for offsets of ``partitions`` in a transaction. For any thread.

        Raises: ChangelogTimeoutError if this is no member at the moment, or has not all of the partitions.
        """
        assert self._fencing is not None
        metadata = self._metadata
        # Only now: the client joins again after the lost partitions have left ``_begun``.
        begun = self._begun
        lost = [each for each in partitions if each.topic in self._topics and each not in begun]
        outside = _generation(self._fencing.outside_metadata(self._group), self._group)
        if metadata is None or lost or _generation(metadata, self._group) == outside:
            raise ChangelogTimeoutError(
                f"the group {self._group!r} has given tasks of this worker to others, or the worker has not joined it "
                "again yet: the transaction is rolled back"
            )
        return metadata

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Let transactions have the offsets of those of ``partitions`` that the member has, until they are taken away.

        The task that reads them has just begun: no earlier one has them. For any thread.
        """
        with self._changing:
            self._begun |= self._held & set(partitions)

    def peers(self) -> list[Peer] | None:
        return None if self._peers is None else self._peers.read(self._name)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        held = self._consumer.assignment()
        if held:
            self._release(held, self._listener.revoke)
        self._metadata = None
        with suppress(KafkaException):  # A fatal error is raised again here.
            self._consumer.close()

    def addresses(self) -> Mapping[TopicPartition, str]:
        return self._addresses.ask()

    def _look(self) -> None:
        """Look at the metadata. Only the thread that polls can: the client does not answer others meanwhile."""
        if self._fencing is not None and not self._closed:
            self._metadata = self._consumer.consumer_group_metadata()

    def _failure(self, error: KafkaError) -> StoreError:
        told_again = error.code() == KafkaError._FATAL and _INSTANCE_FENCED_TEXT in str(error.str())
        if error.code() == _INSTANCE_FENCED or told_again:
            return ConfigError(
                f"another worker has joined the group {self._group!r} with group.instance.id={self._instance_id}: give "
                "each worker its own. This one ends, and the other one has its tasks"
            )
        failure = self._cluster.failure(error, f"taking part in the group {self._group!r}")
        return ChangelogError(str(failure)) if _ends_member(error) else failure

    def _assigned(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        self._look()
        if self._fencing is not None:
            # Otherwise the client asks for the committed offsets, and waits until no transaction has others.
            for each in partitions:
                each.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
            reach(BEFORE_ASSIGN)
            with self._changing:
                self._held |= set(_ours(partitions))
            self._listener.assign(_ours(partitions))

    def _revoked(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        self._look()
        if not self._closed:
            self._release(partitions, self._listener.revoke)
        self._take_away(partitions)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        self._metadata = None
        self._take_away(partitions)  # First: no commit may begin with them any more.
        self._release(partitions, self._listener.lose)
        consumer.incremental_unassign(partitions)

    def _take_away(self, partitions: _Theirs) -> None:
        with self._changing:
            self._held -= set(_ours(partitions))
            self._begun -= set(_ours(partitions))

    def _release(self, partitions: _Theirs, tell: Callable[[list[TopicPartition]], None]) -> None:
        if partitions:
            reach(BEFORE_REVOKE)
            tell(_ours(partitions))
            reach(AFTER_REVOKE)


def _ours(partitions: _Theirs) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _ends_member(error: KafkaError) -> bool:
    """Return True if the client has failed for good: polled again, it says only that it has, by ``_FATAL``."""
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def _generation(metadata: Any, group: str) -> bytes:
    """Return the part of the client's metadata before the group's name, which has the generation.

    Source: librdkafka, ``rd_kafka_consumer_group_metadata_write``.
    """
    return bytes(metadata).partition(group.encode() + b"\0")[0]
