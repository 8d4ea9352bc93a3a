"""A cluster without brokers, whose clients log losses and raise errors as a test asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from stores.changelog.kafka.client import ClientSettings
from stores.changelog.kafka.cluster import Cluster
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.writer import KafkaWriter
from stores.interface import TopicPartition

OUT, IN = TopicPartition("out", 0), TopicPartition("in", 0)


class Client:
    """A client that answers everything. ``losses`` are facilities that it logs in a call, ``errors`` what that raises.

    ``calls`` has the names of its calls. Like the true one it brings its log, and the pauses of a quota, only when it
    is polled.
    """

    def __init__(self, kind: object, settings: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.losses: dict[str, str] = {}
        self.errors: dict[str, KafkaError] = {}
        self.offsets: list[int] = []
        self.offsets_within_s = 0.0
        self.pauses_s: list[float] = []
        self._throttled: Any = settings.get("throttle_cb")
        self._logger: Any = settings.get("logger")
        self._logged: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.losses:
            self._logged.append(self.losses.pop(name))
        if name in self.errors:
            raise KafkaException(self.errors.pop(name))

    def poll(self, timeout: float) -> None:
        logged, self._logged = self._logged, []
        for facility in logged:
            self._logger.log(logging.INFO, "%s [%s] %s", facility, "producer-1", "text")
        while self.pauses_s:
            self._throttled(SimpleNamespace(throttle_time=self.pauses_s.pop()))

    def flush(self, timeout: float) -> int:
        self._called("flush")
        return 0

    def send_offsets_to_transaction(self, offsets: Any, metadata: object, timeout: float) -> None:
        self.offsets, self.offsets_within_s = [each.offset for each in offsets], timeout
        self._called("send_offsets")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self._called(name)


class FakeCluster(Cluster):
    """A cluster whose clients are kept. It makes one attempt of everything."""

    def __init__(self) -> None:
        self.settings, self.timeout_s = ClientSettings({"bootstrap.servers": "none"}), 1.0
        self._lock, self._refusal, self._closed = threading.Lock(), None, False
        self.made: list[Client] = []
        self.next_errors: dict[str, KafkaError] = {}

    def client(self, kind: Any, own: Any, on_error: Any = None) -> Any:
        self.made.append(Client(kind, own))
        self.made[-1].errors.update(self.next_errors)
        return self.made[-1]

    def asked(self, doing: str, ask: Any, *, producing: bool = False) -> Any:
        try:
            return ask(1.0)
        except KafkaException as exception:
            raise self.failure(exception.args[0], doing) from None

    def check_partition(self, partition: TopicPartition) -> None:
        """It has all."""

    def record_bytes_max(self, topic: str) -> int:
        return 1_000

    def ended(self, *_: object) -> None:
        """Nobody reads."""


def producer_over(cluster: FakeCluster, *, fencing: bool = False) -> KafkaProducer:
    groups: Any = SimpleNamespace(
        is_fenced=lambda group: fencing, metadata=lambda group, partitions: None, ended=lambda offsets: None
    )
    return KafkaProducer(KafkaWriter(cluster, groups, "p"), "p")


def fill(producer: KafkaProducer, offset: int | None = None) -> None:
    """Begin a transaction with a record that the client has, and with an input offset."""
    producer.begin()
    producer.send(OUT, b"k", b"v")
    if offset is not None:
        producer.send_offsets("g", {IN: offset})
    producer._append(ends=False)


def calls(client: Client) -> list[str]:
    """Return the calls that ask the broker something."""
    names = ("begin_transaction", "send_offsets", "commit_transaction", "abort_transaction", "init_transactions")
    return [name for name in client.calls if name in names]
