"""The cost of a new producer epoch for each transaction, and of reading the client's log, beside a plain transaction.

    .venv/bin/python -m stores.tests.kafka.epoch_costs --transactions 100

Three producers over one broker on loopback take turns. One has no debug context, and so no log to read. One reads the
log, as each producer of the library does. One also takes a new epoch after each transaction.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from stores.changelog.kafka import writer
from stores.changelog.kafka.changelog import KafkaChangelog
from stores.changelog.kafka.client import ClientSettings, LostRequests
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.shared_broker import FOLDER

RECORDS = 200
WARM_UP = 5
OUTPUT, INPUT = TopicPartition("epoch-costs", 0), TopicPartition("epoch-costs-input", 0)


class WithoutLog(LostRequests):
    """A client's logger that asks the client for no lines."""

    def __init__(self, settings: ClientSettings, log: logging.Logger) -> None:
        super().__init__(settings, log)
        self.settings = {}


def transaction(producer: KafkaProducer, number: int, *, new_epoch: bool) -> tuple[float, float]:
    """Commit a transaction; return the seconds that passed, and the CPU time of this process in seconds."""
    began, began_cpu = time.perf_counter(), time.process_time()
    producer.begin()
    for record in range(RECORDS):
        producer.send(OUTPUT, b"%d" % record, b"x" * 100)
    producer.send_offsets("epoch-costs", {INPUT: number})
    producer.commit()
    if new_epoch:
        producer._writer._late = True
        producer.abort()
    return time.perf_counter() - began, time.process_time() - began_cpu


def made(log: KafkaChangelog, name: str, logger: type[LostRequests]) -> KafkaProducer:
    """Return a transactional producer whose client has ``logger``."""
    with mock.patch.object(writer, "LostRequests", logger):
        return log.producer(f"epoch-costs-{name}")


def measured(address: str, transactions: int) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each transaction of the three producers, after five that warm up."""
    with KafkaChangelog({"bootstrap.servers": address}) as log:
        for partition in (OUTPUT, INPUT):
            log.create_topic(partition.topic, 1)
        subjects = {
            "no log": (made(log, "plain", WithoutLog), False),
            "the log is read": (made(log, "log", LostRequests), False),
            "a new epoch each": (made(log, "epoch", LostRequests), True),
        }
        durations: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
        for number in range(transactions + WARM_UP):
            for name, (producer, new_epoch) in subjects.items():
                durations[name].append(transaction(producer, number, new_epoch=new_epoch))
        for producer, _ in subjects.values():
            producer.close()
    return {name: times[WARM_UP:] for name, times in durations.items()}


def main() -> int:
    """Print the medians of each producer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=100)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="epoch-costs-") as folder, Broker(Path(folder), FOLDER) as broker:
        for name, times in measured(broker.address, options.transactions).items():
            wall, cpu = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
            print(f"{name:18} {wall:6.1f} ms, {cpu:5.2f} ms of CPU for a transaction of {RECORDS} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
