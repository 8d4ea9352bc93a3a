"""A changelog in the shared broker without anything of earlier tests."""

from __future__ import annotations

import time
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.broker_cluster import BrokerCluster

DEADLINE_S = 600.0


def fresh_changelog(broker: Broker | BrokerCluster) -> KafkaChangelog:
    """Remove all topics and groups, and return a changelog."""
    remove_all(broker)
    return KafkaChangelog({"bootstrap.servers": broker.address}, timeout_s=DEADLINE_S)


def remove_all(broker: Broker | BrokerCluster) -> None:
    """Remove all topics but Kafka's own, and all groups."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    deadline = time.monotonic() + DEADLINE_S
    while topics := [name for name in admin.list_topics(timeout=DEADLINE_S).topics if not name.startswith("__")]:
        assert time.monotonic() < deadline
        for removal in admin.delete_topics(topics).values():
            _settle(removal)
    groups = [group.group_id for group in admin.list_consumer_groups().result(DEADLINE_S).valid]
    if groups:
        for removal in admin.delete_consumer_groups(groups).values():
            _settle(removal)


def _settle(removal: object) -> None:
    with suppress(KafkaException):  # It is gone already, or is tried again.
        removal.result(DEADLINE_S)  # type: ignore[attr-defined]
