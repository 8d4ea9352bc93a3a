"""A member of a consumer group, and the other members as brokers describe them.

A member only takes part in the group: tasks read their partitions by themselves.

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

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE, Copies, GroupListener, GroupMember, Peer
from stores.changelog.kafka.client import (
    PROTOCOL,
    REMOTE_ASSIGNOR,
    ClientSettings,
    error_of,
    may_pass,
    returns_in_time,
)
from stores.changelog.kafka.cluster import CLIENT_LOG, Cluster
from stores.changelog.kafka.group_offsets import COORDINATOR_S, GroupOffsets
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, StoreError
from stores.failpoints import reach
from stores.interface import TopicPartition

_BESIDE = "/workers"
"""The end of the name of a group of members beside that of the offsets. No application can have such a name."""
ASK_S = 2.0
"""The time in which the brokers have to answer for addresses. A query waits for it."""
OPEN_S = 3_600.0
"""The longest time of a question that the client takes."""


def mark_of(group: str, fingerprint: str) -> str:
    """Return what the client ID of each member has in it."""
    return f"txstores-{group}-{fingerprint}"


def group_of_members(group: str, *, fencing: bool) -> str:
    """Return the name of the group that members join whose offsets are those of ``group``."""
    return group if fencing else group + _BESIDE


def check_members(cluster: Cluster, group: str, fingerprint: str, *, fencing: bool) -> None:
    """Check that all members of ``group`` are of the same application, with the same ``fencing``.

    Raises: ChangelogError if there are others; as ``Cluster.asked``.
    """
    mark = mark_of(group, fingerprint)
    foreign = _clients(cluster, group_of_members(group, fencing=not fencing))
    foreign += [client for client in _clients(cluster, group_of_members(group, fencing=fencing)) if mark not in client]
    if foreign:
        raise ChangelogError(
            f"the group {group!r} is in use by another application, or by this one with other sub-topologies or "
            f"another transaction.scope (client {foreign[0]!r}): choose another name for the application, or stop the "
            "others first"
        )


class GroupMembers:
    """Asks the brokers for the members of ``group``, whose client IDs have ``mark``. For any thread.

    The client gives no data of its own to the group. But brokers tell the client ID of each member with its partitions,
    and the client ID is one setting. So it has a mark in it: the name of the group, and the fingerprint of the
    application. Members of other applications have another one, and are foreign. Before the mark is the ID of the
    member's state directory, as that of Kafka Streams has the process ID. After it is the address at which the member
    answers queries. Source: KIP-222, ``describeConsumerGroups``.
    """

    def __init__(self, cluster: Cluster, group: str, mark: str = "") -> None:
        self._cluster, self._group, self._mark = cluster, group, mark
        self._directory = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-" + re.escape(mark))
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def addresses(self) -> dict[TopicPartition, str]:
        """Return the addresses of members by their partitions, as the brokers have them now.

        Partitions that move have no member for a moment. Raises: ChangelogTimeoutError after ``ASK_S``; ChangelogError,
        also if the group can't be seen; StoreClosedError.
        """
        self._cluster.check_open()
        try:
            members = self._described(ASK_S).members
        except KafkaException as exception:
            doing = f"asking for the members of group {self._group!r}"
            raise self._cluster.failure(error_of(exception), doing) from None
        addresses: dict[TopicPartition, str] = {}
        for member in members:
            if server := self._server_of(member):
                addresses.update(dict.fromkeys(_partitions_of(member), server))
        return addresses

    def peers(self, own: str | None) -> list[Peer] | None:
        """Return the members, of which ``own`` is this one; None while the group is rebalancing.

        Raises: ChangelogTimeoutError; ChangelogError if the client may not describe the group.
        """
        description = self.described()
        if description.state is not ConsumerGroupState.STABLE:
            return None
        return [self._peer(member, own) for member in description.members]

    def described(self) -> Any:
        """Return the client's description of the group. Raises: as ``Cluster.asked``."""
        doing = f"asking for the members of group {self._group!r}"
        return self._cluster.asked(doing, lambda left_s: self._described(min(left_s, COORDINATOR_S)))

    def _described(self, left_s: float) -> Any:
        """Ask, and drop the client if it does not answer. A refusal is an answer.

        The client must not give up the question itself: it would abort the process as soon as the coordinator is back.
        Source: librdkafka, issue 4605.
        """
        with self._lock:
            admin = self._admin = self._admin or self._cluster.client(AdminClient, {})
        try:
            [future] = admin.describe_consumer_groups([self._group], request_timeout=OPEN_S).values()
            return future.result(left_s)
        except (KafkaException, TimeoutError) as exception:
            error = error_of(exception) if isinstance(exception, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            with self._lock:
                if self._admin is admin and may_pass(error):
                    self._admin = None
            raise KafkaException(error) from None

    def _peer(self, member: Any, own: str | None) -> Peer:
        match = self._directory.search(member.client_id)
        directory = None if match is None else match[1]
        is_self = member.member_id == own
        return Peer(member.member_id, directory, frozenset(_partitions_of(member)), is_self, self._server_of(member))

    def _server_of(self, member: Any) -> str:
        """Return the address of a member, empty if it gave none."""
        _, marked, server = member.client_id.rpartition(f"{self._mark}@")
        return str(server) if marked else ""


def _partitions_of(member: Any) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in member.assignment.topic_partitions]


def _clients(cluster: Cluster, group: str) -> list[str]:
    """Return the client IDs of the group's members; empty if there is no such group, or it can't be seen."""
    try:
        return [member.client_id for member in GroupMembers(cluster, group).described().members]
    except ChangelogTimeoutError:
        raise
    except ChangelogError:
        return []


_CLASSIC, _CONSUMER = "classic", "consumer"
_HEARTBEAT = "ConsumerGroupHeartbeat"
"""In the client's text for a fatal answer to a member with the protocol ``consumer``."""
_ASSIGNOR = "cooperative-sticky"
_INSTANCE_FENCED = getattr(KafkaError, "FENCED_INSTANCE_ID")  # noqa: B009
_INSTANCE_FENCED_TEXT = "group.instance.id"
"""A part of the client's text for that error. It is all that the client reports after the first time."""
HEARTBEAT_MS = 500
"""The time after which a member learns of a rebalance. The client's default is 3 s, in which the tasks of a worker that
leaves have no owner."""
BROKERS_LOOK_S = 5.0
"""The time between two looks of a member for brokers."""
BROKERS_ANSWER_S = 0.5
LOST_S = 10.0
"""The time after which a client that knows no broker is replaced, while they answer others."""
CLOSE_S = 10.0
"""The time in which a member leaves its group. Without an answer, the group waits for the session timeout."""
_NO_GENERATION = b"\xff" * 4
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
        """Join. Raises: ChangelogError if the group has members that are none of this application's; ConfigError."""
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
        self._members_group = members = group_of_members(group, fencing=fencing is not None)
        self._members = GroupMembers(cluster, members, mark)
        client_id = str(cluster.settings.value("client.id", ""))
        directory = None if copies is None else copies.directory
        self._keeps_copies = copies is not None
        own: dict[str, Any] = {
            "group.id": members,
            "client.id": "-".join(filter(None, [client_id, directory, mark])) + (f"@{server}" if server else ""),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **_settings_of_protocol(cluster.settings, session_timeout_s, instance_id),
        }
        if instance_id is not None:
            own["group.instance.id"] = instance_id
        self._own = own
        if fencing is not None:
            fencing.fence_by(group, self)
        self._consumer = self._joining()

    def _joining(self) -> confluent_kafka.Consumer:
        """Return a new client, which joins the group."""
        self._name: str | None = None
        self._next_look_s = time.monotonic() + BROKERS_LOOK_S
        self._lost_since_s: float | None = None
        """The time of the first look in a row at which only this client knew no broker; None after another look."""
        consumer = self._cluster.client(confluent_kafka.Consumer, self._own)
        consumer.subscribe(list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        return consumer

    def _look_for_brokers(self) -> None:
        """Join again with another client if this one has lost the brokers for good (``shared_client``)."""
        now = time.monotonic()
        if now < self._next_look_s:
            return
        self._next_look_s = now + BROKERS_LOOK_S
        if self._knows_brokers() or not self._cluster.answers(BROKERS_ANSWER_S):
            self._lost_since_s = None
        elif self._lost_since_s is None:
            self._lost_since_s = now
        elif now - self._lost_since_s >= LOST_S:
            self._join_again()

    def _knows_brokers(self) -> bool:
        """Return True if the client has a connection to a broker. One broker may hang, while others answer the group.

        Without a connection the client reports ``_TRANSPORT``. Source: librdkafka, ``rd_kafka_metadata``.
        """
        try:
            return bool(self._consumer.list_topics(next(iter(self._topics)), timeout=BROKERS_ANSWER_S).brokers)
        except KafkaException as exception:
            return error_of(exception).code() == KafkaError._TIMED_OUT

    def _join_again(self) -> None:
        CLIENT_LOG.warning(
            "the client in the group %r knows no broker any more, and others do: it joins again", self._members_group
        )
        lost = self._consumer
        self._lost(lost, lost.assignment())
        self._consumer = self._joining()
        _close(lost, 0.0)

    def poll(self, wait_s: float) -> None:
        ends = time.monotonic() + wait_s
        while True:
            left_s = max(ends - time.monotonic(), 0)
            self._poll(left_s if self._fencing is None else min(left_s, _LOOK_S))
            self._look()
            if self._fencing is None or time.monotonic() >= ends:
                return

    @property
    def has_joined(self) -> bool:
        return bool(self._name)

    def _poll(self, wait_s: float) -> None:
        self._cluster.check_open()
        self._look_for_brokers()
        try:
            message = self._consumer.poll(wait_s)
        except KafkaException as exception:
            raise self._failure(error_of(exception)) from None
        if self._name or self._has_generation():
            self._name = self._consumer.memberid()
        error = None if message is None else message.error()
        if error is None or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return  # The next polls lose the partitions, and join again.
        if _ends_member(error) or not may_pass(error):
            raise self._failure(error)

    def _has_generation(self) -> bool:
        """Return whether the brokers know the member. With the protocol ``consumer`` it has an ID before (KIP-848)."""
        metadata = self._consumer.consumer_group_metadata()
        return not _generation(metadata, self._members_group).endswith(_NO_GENERATION)

    def metadata(self, partitions: Collection[TopicPartition]) -> Any:
        """Return the group's metadata for offsets of ``partitions`` in a transaction. For any thread.

        Raises: ChangelogTimeoutError if this is no member at the moment, or has not all of the partitions.
        """
        assert self._fencing is not None
        metadata = self._metadata
        # Only now: the client joins again after the lost partitions have left ``_begun``.
        with_tasks = self._begun
        without_tasks = [each for each in partitions if each.topic in self._topics and each not in with_tasks]
        outside = _generation(self._fencing.outside_metadata(self._group), self._group)
        if metadata is None or without_tasks or _generation(metadata, self._group) == outside:
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
        return self._members.peers(self._name) if self._keeps_copies else None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        assignment = self._consumer.assignment()
        if assignment:
            self._release(assignment, self._listener.revoke)
        self._metadata = None
        _close(self._consumer, CLOSE_S)

    def addresses(self) -> Mapping[TopicPartition, str]:
        return self._members.addresses()

    def _look(self) -> None:
        """Look at the metadata. Only the thread that polls can: the client does not answer others meanwhile."""
        if self._fencing is not None:
            self._metadata = self._consumer.consumer_group_metadata()

    def _failure(self, error: KafkaError) -> StoreError:
        told_again = error.code() == KafkaError._FATAL and _INSTANCE_FENCED_TEXT in str(error.str())
        if error.code() == _INSTANCE_FENCED or told_again:
            return ConfigError(
                f"another worker has joined the group {self._group!r} with group.instance.id={self._instance_id}: give "
                "each worker its own. This one ends, and the other one has its tasks"
            )
        if _ends_member(error) and _HEARTBEAT in str(error.str()):
            return ConfigError(
                f"the brokers of {self._cluster.settings.servers} refuse a member of the group {self._group!r} with "
                f"{PROTOCOL}={_CONSUMER} ({error.str()}): it needs Kafka 4.0, and {REMOTE_ASSIGNOR} names an assignor "
                "that they have, if any. Without these settings the members assign the partitions"
            )
        failure = self._cluster.failure(error, f"taking part in the group {self._group!r}")
        return ChangelogError(str(failure)) if _ends_member(error) else failure

    def _has_ended(self, consumer: confluent_kafka.Consumer) -> bool:
        """Return True if the client was replaced, or the member is closed: the listener knows that already.

        Such a client may still call back, in another thread. It then does by itself what a callback has not done.
        """
        return self._closed or consumer is not self._consumer

    def _assigned(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        if self._has_ended(consumer):
            return
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
        if self._has_ended(consumer):
            return
        self._look()
        self._release(partitions, self._listener.revoke)
        self._take_away(partitions)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        if self._has_ended(consumer):
            return
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


def _close(consumer: confluent_kafka.Consumer, timeout_s: float) -> None:
    """Leave the group, if a broker answers in time. Without brokers the client may wait for minutes."""
    with suppress(KafkaException):  # A fatal error is raised again here.
        returns_in_time(consumer.close, timeout_s)


def _settings_of_protocol(
    settings: ClientSettings, session_timeout_s: float, instance_id: str | None
) -> dict[str, Any]:
    """Return the settings of a member about rebalances. Raises: ConfigError.

    With the protocol ``consumer`` the brokers assign the partitions, and have the times (KIP-848). They refuse a member
    whose name a killed one still has: UNRELEASED_INSTANCE_ID.
    """
    protocol = str(settings.value(PROTOCOL, _CLASSIC)).lower()
    assignor = settings.value(REMOTE_ASSIGNOR, None)
    if protocol == _CLASSIC and assignor is not None:
        raise ConfigError(f"{REMOTE_ASSIGNOR}={assignor} needs {PROTOCOL}={_CONSUMER}: set both, or neither of them")
    if protocol == _CONSUMER and instance_id is not None:
        raise ConfigError(
            f"group.instance.id={instance_id} needs {PROTOCOL}={_CLASSIC}: with {_CONSUMER} brokers refuse a worker "
            "that was killed and is started again, until its session is over. Leave one of the two out"
        )
    if protocol == _CONSUMER:
        return {PROTOCOL: protocol, **({} if assignor is None else {REMOTE_ASSIGNOR: assignor})}
    session_ms = round(session_timeout_s * 1000)
    heartbeat_ms = max(1, min(HEARTBEAT_MS, round(session_ms / 3)))
    return {
        PROTOCOL: protocol,
        "partition.assignment.strategy": _ASSIGNOR,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": settings.value("heartbeat.interval.ms", heartbeat_ms),
    }


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
