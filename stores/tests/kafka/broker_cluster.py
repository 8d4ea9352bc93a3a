"""A cluster of three Kafka brokers on loopback, each of which is a controller as well: one may be killed or paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stores.changelog.kafka.testing.broker import READY_S, Broker, BrokerListener, Quorum, free_ports, new_id
from stores.errors import ChangelogTimeoutError
from stores.interface import TopicPartition

NODES = (1, 2, 3)
COORDINATORS = TopicPartition("__transaction_state", 0)
"""The partition whose leader is the coordinator of all transactions."""
_SETTINGS = """\
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
auto.leader.rebalance.enable=false
broker.session.timeout.ms=6000
"""
"""A record is acknowledged by two of three. The brokers that are left have the partitions of a dead one after 6 s."""
_ASK_S = 5.0
_PAUSE_S = 0.1


class BrokerCluster:
    """Brokers by their ``nodes``, with their data below the folder ``data``. A ``with`` block starts and kills them.

    ``folder`` is that of Kafka's jars. ``settings`` and ``listeners`` are those of each broker. For one thread at a
    time.
    """

    def __init__(
        self,
        data: Path,
        folder: Path,
        *,
        settings: str = "",
        listeners: Mapping[int, Sequence[BrokerListener]] | None = None,
    ) -> None:
        quorum = Quorum(new_id(), dict(zip(NODES, free_ports(len(NODES)), strict=True)))
        self.nodes = {
            node: Broker(
                data / str(node),
                folder,
                settings=_SETTINGS + settings,
                listeners=(listeners or {}).get(node, ()),
                node=node,
                quorum=quorum,
            )
            for node in NODES
        }

    @property
    def address(self) -> str:
        """The addresses of all brokers, as clients take them in ``bootstrap.servers``."""
        return ",".join(broker.address for broker in self.nodes.values())

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody needs its data: a clean end would take seconds.
        self.kill()

    def start(self) -> None:
        """Start the brokers that do not run, together: a controller alone has no majority. Raises: as ``Broker.start``.

        Return when each partition has all of its replicas in sync.
        """
        absent = [broker for broker in self.nodes.values() if broker.pid is None]
        with ThreadPoolExecutor(len(NODES)) as starting:
            list(starting.map(Broker.start, absent))
        self.await_metadata(lambda topics: all(map(_is_in_sync, _partitions_of(topics))))

    def kill(self) -> None:
        """Kill all brokers at once."""
        for broker in self.nodes.values():
            broker.kill()

    def leader(self, partition: TopicPartition) -> int:
        """Return the node that leads a partition, once one does."""
        return int(self.await_partition(partition, lambda found: found.leader in self._running()).leader)

    def await_partition(self, partition: TopicPartition, agreed: Callable[[Any], bool]) -> Any:
        """Return the client's description of a partition, as ``await_metadata``."""
        topic, number = partition

        def has(topics: Mapping[str, Any]) -> bool:
            return topic in topics and number in topics[topic].partitions and agreed(topics[topic].partitions[number])

        return self.await_metadata(has)[topic].partitions[number]

    def await_metadata(self, agreed: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Return the client's descriptions of the topics, by their names, once those of each running broker agree.

        Raises: ChangelogTimeoutError if they do not in time.
        """
        deadline = time.monotonic() + READY_S
        while True:
            answers = [self._topics(node) for node in self._running()]
            if answers and all(topics is not None and agreed(topics) for topics in answers):
                return answers[0] or {}
            if time.monotonic() > deadline:
                raise ChangelogTimeoutError(f"the brokers at {self.address} do not agree in time: {answers}")
            time.sleep(_PAUSE_S)

    def _running(self) -> list[int]:
        return [node for node, broker in self.nodes.items() if broker.pid is not None]

    def _topics(self, node: int) -> Mapping[str, Any] | None:
        """Return the topics as one broker describes them: a new client knows no other one. None without an answer."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with suppress(KafkaException):
            client = AdminClient({"bootstrap.servers": self.nodes[node].address, "log_level": 0})
            topics: Mapping[str, Any] = client.list_topics(timeout=_ASK_S).topics
            return topics
        return None


def _partitions_of(topics: Mapping[str, Any]) -> Iterator[Any]:
    for topic in topics.values():
        yield from topic.partitions.values()


def _is_in_sync(partition: Any) -> bool:
    return len(partition.isrs) == len(partition.replicas)
