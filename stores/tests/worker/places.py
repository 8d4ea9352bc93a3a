"""The two changelogs that a worker may use, each with its input, and with its outputs as another process reads them."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from stores.changelog import Changelog, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.committed import committed_records
from stores.interface import TopicPartition
from stores.tests.worker.counting_app import PARTITIONS

DEADLINE_S = 120.0
Counts = list[tuple[str, int]]


class Place(ABC):
    """A changelog, and the settings with which a worker finds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """Return the properties that name the changelog."""

    @abstractmethod
    def open(self) -> Changelog:
        """Open the changelog."""

    @abstractmethod
    def counted(self) -> Counts:
        """Return the committed outputs, as a reader without our code sees them."""

    def await_counted(self, number: int) -> None:
        """Wait until there are at least so many committed outputs."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := len(self.counted())) < number:
            assert time.monotonic() < deadline, f"{found} of {number}"
            time.sleep(0.1)

    def feed(self, words: Iterable[str]) -> None:
        """Append words to the input, each word to its partition; create the topics."""
        with self.open() as log:
            for topic in ("words", "counted"):
                if topic not in log.topics():
                    log.create_topic(topic, PARTITIONS)
            with log.producer() as producer:
                for word in words:
                    producer.send(TopicPartition("words", sum(word.encode()) % PARTITIONS), None, word.encode())
                producer.flush()


class EmbeddedPlace(Place):
    """The embedded changelog."""

    def properties(self) -> dict[str, str]:
        return {"changelog.file": str(self.folder / "log.sqlite")}

    def open(self) -> SqliteChangelog:
        return SqliteChangelog(self.folder / "log.sqlite")

    def counted(self) -> Counts:
        connection = sqlite3.connect(self.folder / "log.sqlite")
        try:
            rows = connection.execute(
                "select key, value from record join topic using (topic_id) where topic = 'counted' "
                "and transaction_id not in (select transaction_id from log_transaction)"
            ).fetchall()
        finally:
            connection.close()
        return [(key.decode(), int(value)) for key, value in rows]


class KafkaPlace(Place):
    """A broker."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._address = address

    def properties(self) -> dict[str, str]:
        # A member learns of a rebalance by its heartbeat.
        return {
            "bootstrap.servers": self._address,
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "300",
        }

    def open(self) -> KafkaChangelog:
        return KafkaChangelog({"bootstrap.servers": self._address})

    def counted(self) -> Counts:
        return [(key.decode(), int(value)) for key, value in committed_records(self._address, "counted", PARTITIONS)]


def expected_counts(words: Iterable[str]) -> Counter[tuple[str, int]]:
    """Return the model's outputs: each word with 1, 2, 3 and so on, once each."""
    return Counter((word, number) for word, total in Counter(words).items() for number in range(1, total + 1))
