"""The addresses at which the members of a consumer group answer queries, by the partitions that they have.

The client gives no data of its own to the group. But brokers tell the client ID of each member with its partitions, and
the client ID of a member is one setting: so it ends with the address. Source: KIP-222, ``describeConsumerGroups``.
"""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stores.changelog.kafka.client_errors import error_of
from stores.changelog.kafka.cluster import Cluster
from stores.interface import TopicPartition

ASK_S = 2.0
"""The time in which the brokers have to answer. A query waits for it."""


def member_id(mark: str, server: str) -> str:
    """Return the client ID of a member with the ``mark`` of its group, which answers queries at ``server`` if given."""
    return f"{mark}@{server}" if server else mark


class GroupAddresses:
    """Asks the brokers for the members of ``group``, whose client IDs have ``mark``. For any thread."""

    def __init__(self, cluster: Cluster, group: str, mark: str) -> None:
        self._cluster, self._group, self._mark = cluster, group, mark
        self._lock = threading.Lock()
        self._admin: Any = None

    def ask(self) -> dict[TopicPartition, str]:
        """Return the addresses, as the brokers have them now.

        Partitions that move have no member for a moment. Raises: ChangelogTimeoutError after ``ASK_S``; ChangelogError,
        also if the group can't be seen; StoreClosedError.
        """
        self._cluster.check_open()
        with self._lock:
            if self._admin is None:
                self._admin = self._cluster.client(AdminClient, {})
        try:
            [future] = self._admin.describe_consumer_groups([self._group], request_timeout=ASK_S).values()
            members = future.result().members
        except KafkaException as exception:
            doing = f"asking for the members of group {self._group!r}"
            raise self._cluster.failure(error_of(exception), doing) from None
        found: dict[TopicPartition, str] = {}
        for member in members:
            _, marked, server = member.client_id.rpartition(f"{self._mark}@")
            if marked:
                held = member.assignment.topic_partitions
                found.update({TopicPartition(each.topic, each.partition): server for each in held})
        return found
