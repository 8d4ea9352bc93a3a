"""Three workers are restarted one after the other under load: how long does a record wait for its output?

    .venv/bin/python -m stores.tests.worker.rolling_restart --seconds 3 --seed 1

Each word is its time of sending, in one of the partitions. One line for each restart: the
seconds from SIGTERM to the end of the process, and the longest wait of a record that was sent meanwhile or until the
next restart. That is the longest time in which no worker processed a partition. The exit status is 1 if it was longer
than a restart needs, or if a worker ended with another status than 0.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import NamedTuple

import confluent_kafka

from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.shared_broker import FOLDER
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.idle_endings import ENDED_S_MAX
from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

EACH_S = 0.02
HEARTBEAT_S = 0.5
"""The time after which a member learns of a rebalance, as docs/worker.md has it."""
WAIT_S_MAX = ENDED_S_MAX + 2 * HEARTBEAT_S
"""The longest wait that a restart needs: its worker closes the tasks and leaves, and the others learn of a rebalance by
a heartbeat. Tasks that a new worker gets cost two rebalances (KIP-429). It is half of the session timeout of the
workers, after which Kafka gives away the tasks of a worker that has not left.
"""


class Restart(NamedTuple):
    """The restart of one worker under load."""

    name: str
    status: int
    took_s: float
    wait_s: float

    @property
    def in_order(self) -> bool:
        """True if the worker ended with status 0, and no record waited for longer than it must."""
        return self.status == 0 and self.wait_s <= WAIT_S_MAX

    def __str__(self) -> str:
        return f"{self.name}: status {self.status} after {self.took_s:.2f} s; the longest wait {self.wait_s:.2f} s"


class Restarts(NamedTuple):
    """The restarts of all workers."""

    sent: int
    usual_ms: int
    """Half of the records before the restarts wait up to this."""
    each: list[Restart]


def send(place: KafkaPlace, ended: threading.Event, seed: int, sent: list[str]) -> None:
    """Send words until ``ended``, each with its time, and note them."""
    chance = random.Random(seed)
    with place.open() as log, log.producer() as producer:
        while not ended.wait(EACH_S):
            word = f"{time.time_ns() // 1_000_000}-{chance.random()}"
            producer.send(TopicPartition("words", chance.randrange(PARTITIONS)), None, word.encode())
            producer.flush()
            sent.append(word)


def read(address: str, ended: threading.Event, waits_ms: list[tuple[int, int]]) -> None:
    """Note the time of sending of each word and the wait for its output, as they come."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("counted", number, 0) for number in range(PARTITIONS)])
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            key = message.key()
            assert key is not None
            sent_ms = int(key.partition(b"-")[0])
            waits_ms.append((sent_ms, time.time_ns() // 1_000_000 - sent_ms))
    consumer.close()


def restart_all(place: KafkaPlace, address: str, seconds: float, seed: int, more: Mapping[str, str]) -> Restarts:
    """Start three workers, restart each under load, and return what that took, when each record has its output.

    The interval of heartbeats is the worker's own, unless ``more`` has another one.
    """
    place.feed([])
    end, read_all = threading.Event(), threading.Event()
    sent_words: list[str] = []
    lags: list[tuple[int, int]] = []
    reader = threading.Thread(target=read, args=(address, read_all, lags))
    load = threading.Thread(target=send, args=(place, end, seed, sent_words))
    settings = {**place.properties(), "status.interval.ms": "200", **more}
    if "heartbeat.interval.ms" not in more:
        settings.pop("heartbeat.interval.ms", None)
    started = 0

    def start(name: str) -> WorkerProcess:
        nonlocal started
        started += 1
        own = {"state.dir": str(place.folder / f"state-{name}")}
        return WorkerProcess(place.folder, f"{name}-{started}", {**settings, **own}, verbose=True)

    workers = {name: start(name) for name in ("a", "b", "c")}
    try:
        for worker in workers.values():
            worker.await_line(r"[12] tasks, .*lag \d+$")
        reader.start()
        load.start()
        deadline = time.monotonic() + DEADLINE_S
        while not lags:
            assert time.monotonic() < deadline, "no output came before the restarts"
            time.sleep(0.02)
        time.sleep(seconds)
        restarts = []
        for name in list(workers):
            began, began_ms = time.monotonic(), time.time_ns() // 1_000_000
            workers[name].send(signal.SIGTERM)
            status = workers[name].ended()
            took_s = time.monotonic() - began
            workers[name] = start(name)
            workers[name].await_line(r"[12] tasks, .*lag \d+$")
            time.sleep(seconds)
            restarts.append((name, status, took_s, began_ms))
        end.set()
        load.join()
        deadline = time.monotonic() + DEADLINE_S
        while len(lags) < len(sent_words) and time.monotonic() < deadline:
            time.sleep(0.05)
        read_all.set()
        reader.join()
        reports = "\n".join(worker.report for worker in workers.values())
        assert Counter(place.counted()) == expected_counts(sent_words), reports
        starts = [began_ms for *_, began_ms in restarts]
        usual_ms = median_low(wait_ms for sent_ms, wait_ms in lags if sent_ms < starts[0])
        each = []
        for (name, status, took_s, began_ms), end_ms in zip(restarts, [*starts[1:], sys.maxsize], strict=True):
            wait_ms = max(wait_ms for sent_ms, wait_ms in lags if began_ms - 2000 <= sent_ms < end_ms)
            each.append(Restart(name, status, took_s, wait_ms / 1000))
        return Restarts(len(sent_words), usual_ms, each)
    finally:
        end.set()
        read_all.set()
        for worker in workers.values():
            if worker.runs:
                worker.send(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_S
        while any(worker.runs for worker in workers.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for worker in workers.values():
            worker.kill()


def main() -> int:
    """Restart the workers over a broker of its own; return 1 if a restart was not in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="the time between two restarts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of the workers")
    parser.add_argument("--broker", action="append", default=[], metavar="NAME=VALUE", help="a property of the broker")
    options = parser.parse_args()
    more = dict(each.split("=", 1) for each in options.property)
    with (
        TemporaryDirectory(prefix="rolling-") as folder,
        Broker(Path(folder, "broker"), FOLDER, settings="".join(f"{each}\n" for each in options.broker)) as broker,
    ):
        os.environ["APPLICATION_NAME"] = "rolling"
        own = Path(folder, "place")
        own.mkdir()
        one = restart_all(KafkaPlace(own, broker.address), broker.address, options.seconds, options.seed, more)
    print(f"seed {options.seed}: {one.sent} records; before the restarts half of them wait up to {one.usual_ms} ms")
    for each in one.each:
        print(each)
    return int(not all(each.in_order for each in one.each))


if __name__ == "__main__":
    sys.exit(main())
