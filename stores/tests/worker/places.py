"""The two changelogs that a worker may use, each with its input, and with its outputs as another process reads them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from stores.changelog import Changelog, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.interface import TopicPartition
from stores.tests.worker.counting_app import PARTITIONS

DEADLINE_S = 120.0
Counts = list[tuple[str, int]]

_READ = """
import json, sys
from confluent_kafka import Consumer, KafkaError, TopicPartition
address, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
reader = Consumer({"bootstrap.servers": address, "group.id": "independent", "isolation.level": "read_committed",
                   "enable.auto.commit": False, "enable.partition.eof": True})
reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
found, ended = [], set()
while len(ended) < partitions:
    message = reader.poll(30)
    assert message is not None, "no answer"
    if message.error() is None:
        found.append([message.key().decode(), int(message.value())])
    elif message.error().code() == KafkaError._PARTITION_EOF:
        ended.add(message.partition())
    else:
        raise SystemExit(str(message.error()))
print(json.dumps(found))
"""
"""It shares no code with the library."""


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
        return {"bootstrap.servers": self._address, "session.timeout.ms": "6000"}

    def open(self) -> KafkaChangelog:
        return KafkaChangelog({"bootstrap.servers": self._address})

    def counted(self) -> Counts:
        command = [sys.executable, "-c", _READ, self._address, "counted", str(PARTITIONS)]
        read = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert read.returncode == 0, read.stderr
        return [(word, number) for word, number in json.loads(read.stdout)]


def expected_counts(words: Iterable[str]) -> Counter[tuple[str, int]]:
    """Return the model's outputs: each word with 1, 2, 3 and so on, once each."""
    return Counter((word, number) for word, total in Counter(words).items() for number in range(1, total + 1))
