"""A member of a group whose two tasks share a transaction, in this process: it polls only when a test lets it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tasks import StreamTask
from stores.tests.kafka.broker_cluster import BrokerCluster
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.tasks.sharing import INPUTS, feed_both, sharing_tasks

SESSION_S = 6
SILENT_S = 20
"""The time after which the group removes a zombie. Until then it must have begun its tasks, also on a busy machine."""
_DEADLINE_S = 600.0
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

_READ = """
import json, sys
from confluent_kafka import Consumer, KafkaError, TopicPartition
address, partitions = sys.argv[1], int(sys.argv[2])
reader = Consumer({"bootstrap.servers": address, "group.id": "independent", "isolation.level": "read_committed",
                   "enable.auto.commit": False, "enable.partition.eof": True})
reader.assign([TopicPartition("output", number, 0) for number in range(partitions)])
found, ended = [[] for _ in range(partitions)], set()
while len(ended) < partitions:
    message = reader.poll(600)
    assert message is not None, "no answer"
    if message.error() is None:
        found[message.partition()].append([message.key().decode(), message.value().decode()])
    elif message.error().code() == KafkaError._PARTITION_EOF:
        ended.add(message.partition())
    else:
        raise SystemExit(str(message.error()))
print(json.dumps(found))
"""
"""It shares no code with the library."""


def committed_outputs(address: str, at_least: int) -> list[list[tuple[bytes, bytes]]]:
    """Return the committed outputs of each partition, as another process reads them, once there are so many.

    The brokers show them to others a moment after the commit. Fewer are returned if no more come.
    """
    command = [sys.executable, "-c", _READ, address, str(len(INPUTS))]
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert process.returncode == 0, process.stderr
        outputs = [[(key.encode(), value.encode()) for key, value in pairs] for pairs in json.loads(process.stdout)]
        if sum(map(len, outputs)) >= at_least or time.monotonic() > deadline:
            return outputs
        time.sleep(0.1)


def feed_afresh(broker: Broker | BrokerCluster, make_topics: Callable[[], object] = lambda: None) -> None:
    """Put the input into fresh topics, once the group has nothing of an earlier test: it may still have a member.

    ``make_topics`` makes those topics that are to have settings or places of their own.
    """
    while True:
        with fresh_changelog(broker) as log:
            make_topics()
            feed_both(log)
            if not log.committed_offsets("app"):
                return
        time.sleep(0.5)


class SharingWorker:
    """A member of the group ``app``. A ``with`` block joins and leaves.

    The group removes it if it does not poll for ``polls_within_s``, or is not heard of for ``session_s``, which is not
    longer. ``settings`` are further ones of the client.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        name: str,
        *,
        polls_within_s: int = 300,
        session_s: int = SESSION_S,
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> None:
        self._folder, self._name, self._session_s = folder / name, name, session_s
        own = {"session.timeout.ms": session_s * 1000, "max.poll.interval.ms": polls_within_s * 1000}
        self.log = KafkaChangelog({"bootstrap.servers": address, **own, **settings})
        self._held: set[TopicPartition] = set()
        self.tasks: list[StreamTask] = []

    def __enter__(self) -> Self:
        self.member = self.log.join_group(
            "app", ["input"], self, fingerprint="f", session_timeout_s=self._session_s, fencing=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self.tasks:
            task.close(clean=False)
        self.member.close()
        self.log.close()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._held |= set(partitions)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self._held -= set(partitions)

    def open_all(self, **settings: Any) -> None:
        """Take part in the group until it has given all partitions to this member, and open the tasks."""
        deadline = time.monotonic() + _DEADLINE_S
        while self._held != set(INPUTS):
            assert time.monotonic() < deadline, self._held
            self.member.poll(0.1)
        self.tasks = sharing_tasks(self._folder, self.log, self._name, **settings)
