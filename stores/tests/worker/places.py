"""The two changelogs that a worker may use, each with its input, and with its outputs as another process reads them."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import AdminClient, OffsetSpec

from stores.changelog import Changelog, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.committed import committed_records
from stores.interface import TopicPartition
from stores.tests.changelog.plain_batches import plain_records
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

LAST_S = 120.0
"""The time in which the last commits of workers that have ended become visible."""
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

    def progress(self) -> Callable[[], object]:
        """Return a function whose result is another one when there are more committed outputs. It takes less time."""
        return object

    def await_counted(self, number: int) -> None:
        """Wait until there are at least so many committed outputs, as long as a worker runs that may make them."""
        deadline = time.monotonic() + DEADLINE_S
        progress, last_progress, looks = self.progress(), None, 0
        while True:
            now = progress()
            if now != last_progress:
                looks, last_progress = len(self.counted()), now
                if looks >= number:
                    return
            workers = WorkerProcess.in_folder(self.folder)
            if not any(each.runs for each in workers):
                deadline = min(deadline, time.monotonic() + LAST_S)
            assert time.monotonic() < deadline, "\n".join([f"{looks} of {number}", *(each.report for each in workers)])
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
        with closing(sqlite3.connect(self.folder / "log.sqlite")) as connection:
            return [
                (str(record.key, "utf-8"), int(record.value))
                for record in plain_records(connection, "counted")
                if record.state == "COMMITTED" and record.key is not None and record.value is not None
            ]


class KafkaPlace(Place):
    """A broker. With ``brokers_assign`` the members of the group have the protocol ``consumer`` (KIP-848)."""

    def __init__(self, folder: Path, address: str, *, brokers_assign: bool = False) -> None:
        super().__init__(folder)
        self._address = address
        # A member learns of a rebalance by its heartbeat. The test broker has the same times for the other protocol.
        self._protocol = {"group.protocol": "consumer"} if brokers_assign else {"heartbeat.interval.ms": "300"}

    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self._address, "session.timeout.ms": "10000", **self._protocol}

    def open(self) -> KafkaChangelog:
        return KafkaChangelog({"bootstrap.servers": self._address}, timeout_s=DEADLINE_S)

    def counted(self) -> Counts:
        return [(key.decode(), int(value)) for key, value in committed_records(self._address, "counted", PARTITIONS)]

    def progress(self) -> Callable[[], object]:
        """Return a function that asks for the last stable offsets."""
        admin = AdminClient({"bootstrap.servers": self._address})
        partitions = [confluent_kafka.TopicPartition("counted", number) for number in range(PARTITIONS)]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]

        def ask() -> object:
            answers = admin.list_offsets(
                dict.fromkeys(partitions, latest), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10
            )
            try:
                return [future.result(DEADLINE_S).offset for future in answers.values()]
            except KafkaException:
                return object()

        return ask


def expected_counts(words: Iterable[str]) -> Counter[tuple[str, int]]:
    """Return the model's outputs: each word with 1, 2, 3 and so on, once each."""
    return Counter((word, number) for word, total in Counter(words).items() for number in range(1, total + 1))
