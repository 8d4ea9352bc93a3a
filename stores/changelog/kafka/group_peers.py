"""The members of a consumer group and their partitions, as the group's coordinator describes them.

A member's client ID has the ID of its state directory in it, as that of Kafka Streams has the process ID.
"""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from stores.changelog.group import Peer
from stores.changelog.kafka.cluster import Cluster
from stores.interface import TopicPartition


class GroupPeers:
    """The members of ``group``, whose client IDs have the ID of the directory before ``mark``. For one thread."""

    def __init__(self, cluster: Cluster, group: str, mark: str) -> None:
        self._cluster, self._group = cluster, group
        self._directory = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-" + re.escape(mark))
        self._admin: Any = None

    def read(self, own: str | None) -> list[Peer] | None:
        """Return the members, of which ``own`` is this one; None while the group is rebalancing.

        Raises: ChangelogTimeoutError; ChangelogError if the client may not describe the group.
        """
        if self._admin is None:
            self._admin = self._cluster.client(AdminClient, {})

        def ask(left_s: float) -> Any:
            [future] = self._admin.describe_consumer_groups([self._group], request_timeout=left_s).values()
            return future.result()

        description = self._cluster.asked(f"asking for the members of group {self._group!r}", ask)
        if description.state is not ConsumerGroupState.STABLE:
            return None
        return [self._peer(member, own) for member in description.members]

    def _peer(self, member: Any, own: str | None) -> Peer:
        found = self._directory.search(member.client_id)
        return Peer(
            member.member_id,
            None if found is None else found[1],
            frozenset(TopicPartition(each.topic, each.partition) for each in member.assignment.topic_partitions),
            member.member_id == own,
        )
