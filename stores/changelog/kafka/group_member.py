"""A member of a consumer group. It only takes part in the group: tasks read their partitions by themselves.

The members are in a group beside that of the offsets, ``APPLICATION/workers``. Kafka takes offsets outside of
transactions from members alone, if there are any, and the client can't commit while another thread of it polls. The
transactional IDs of tasks fence older instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE, Copies, GroupListener, GroupMember, Peer
from stores.changelog.kafka.client_errors import error_of, is_unanswered
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.group_addresses import GroupAddresses, member_id
from stores.changelog.kafka.group_peers import GroupPeers
from stores.errors import ChangelogError, ChangelogTimeoutError
from stores.failpoints import reach
from stores.interface import TopicPartition

_MEMBERS = "/workers"
"""The end of the name of the group of members. No application can have such a name."""
_ASSIGNOR = "cooperative-sticky"
_Theirs = list[confluent_kafka.TopicPartition]


class KafkaGroupMember(GroupMember):
    """A member of the consumer group ``group``, which shares the partitions of ``topics``. Source: KIP-429."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        listener: GroupListener,
        fingerprint: str,
        session_timeout_s: float,
        server: str = "",
        copies: Copies | None = None,
    ) -> None:
        """Join. Raises: ChangelogError if the group has members that are none of this application's."""
        self._cluster, self._group, self._listener = cluster, group, listener
        self._closed = False
        mark = f"txstores-{group}-{fingerprint}"
        self._check_others(mark)
        self._addresses = GroupAddresses(cluster, group + _MEMBERS, mark)
        given = str(cluster.settings.value("client.id", ""))
        directory = None if copies is None else copies.directory
        self._peers = None if copies is None else GroupPeers(cluster, group + _MEMBERS, mark)
        self._name: str | None = None
        own: dict[str, Any] = {
            "group.id": group + _MEMBERS,
            "client.id": member_id("-".join(filter(None, [given, directory, mark])), server),
            "partition.assignment.strategy": _ASSIGNOR,
            "session.timeout.ms": round(session_timeout_s * 1000),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._consumer = cluster.client(confluent_kafka.Consumer, own)
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, wait_s: float) -> None:
        self._cluster.check_open()
        try:
            message = self._consumer.poll(wait_s)
        except KafkaException as exception:
            raise self._failure(exception) from None
        if self._peers is not None:
            self._name = self._consumer.memberid()
        error = None if message is None else message.error()
        if error is None or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return  # The next polls lose the partitions, and join again.
        if error.fatal() or not is_unanswered(error):
            raise self._failure(KafkaException(error))

    def peers(self) -> list[Peer] | None:
        return None if self._peers is None else self._peers.read(self._name)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        held = self._consumer.assignment()
        if held:
            self._release(held, self._listener.revoke)
        self._consumer.close()

    def addresses(self) -> Mapping[TopicPartition, str]:
        return self._addresses.ask()

    def _check_others(self, mark: str) -> None:
        foreign = self._clients(self._group)
        foreign += [client for client in self._clients(self._group + _MEMBERS) if mark not in client]
        if foreign:
            raise ChangelogError(
                f"the group {self._group!r} is in use by another application, or by this one with other sub-topologies "
                f"(client {foreign[0]!r}): choose another name for the application, or stop the others first"
            )

    def _clients(self, group: str) -> list[str]:
        """Return the client IDs of the group's members; empty if there is no such group, or it can't be seen."""

        admin = self._cluster.client(AdminClient, {})

        def ask(left_s: float) -> list[str]:
            [future] = admin.describe_consumer_groups([group], request_timeout=left_s).values()
            return [member.client_id for member in future.result().members]

        try:
            return self._cluster.asked(f"asking for the members of group {group!r}", ask)
        except ChangelogTimeoutError:
            raise
        except ChangelogError:
            return []

    def _failure(self, exception: KafkaException) -> ChangelogError:
        return self._cluster.failure(error_of(exception), f"taking part in the group {self._group!r}")

    def _assigned(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
            reach(BEFORE_ASSIGN)
            self._listener.assign(_ours(partitions))

    def _revoked(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        if not self._closed:
            self._release(partitions, self._listener.revoke)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: confluent_kafka.Consumer, partitions: _Theirs) -> None:
        self._release(partitions, self._listener.lose)
        consumer.incremental_unassign(partitions)

    def _release(self, partitions: _Theirs, tell: Callable[[list[TopicPartition]], None]) -> None:
        if partitions:
            reach(BEFORE_REVOKE)
            tell(_ours(partitions))
            reach(AFTER_REVOKE)


def _ours(partitions: _Theirs) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]
