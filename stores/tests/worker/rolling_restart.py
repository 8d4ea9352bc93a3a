"""Three workers are restarted one after the other under load: how long does a record wait for its output?

    .venv/bin/python -m stores.tests.worker.rolling_restart --seconds 3 --seed 1

Each word is its time of sending, in one of the partitions. One line for each restart: the
seconds from SIGTERM to the end of the process, and the longest wait of a record that was sent meanwhile or until the
next restart.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import confluent_kafka

from stores.changelog.kafka.testing.broker import Broker
from stores.interface import TopicPartition
from stores.tests.kafka.shared_broker import FOLDER
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import KafkaPlace
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

EACH_S = 0.02


def send(place: KafkaPlace, ended: threading.Event, seed: int) -> None:
    """Send words until ``ended``, each with its time."""
    chance = random.Random(seed)
    with place.open() as log, log.producer() as producer:
        while not ended.wait(EACH_S):
            word = f"{time.time_ns() // 1_000_000}-{chance.random()}"
            producer.send(TopicPartition("words", chance.randrange(PARTITIONS)), None, word.encode())
            producer.flush()


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


def restart_all(place: KafkaPlace, address: str, seconds: float, seed: int, more: dict[str, str]) -> None:
    """Start three workers, restart each under load, and print what that took."""
    place.feed([])
    ended, read_all = threading.Event(), threading.Event()
    found: list[tuple[int, int]] = []
    reader = threading.Thread(target=read, args=(address, read_all, found))
    load = threading.Thread(target=send, args=(place, ended, seed))
    settings = {**place.properties(), "status.interval.ms": "200", **more}
    if "heartbeat.interval.ms" not in more:
        settings.pop("heartbeat.interval.ms", None)
    started = 0

    def start(name: str) -> WorkerProcess:
        nonlocal started
        started += 1
        own = {"state.dir": str(place.folder / f"state-{name}")}
        return WorkerProcess(place.folder, f"{name}-{started}", {**settings, **own})

    workers = {name: start(name) for name in ("a", "b", "c")}
    try:
        for worker in workers.values():
            worker.await_line(r"[12] tasks, .*lag \d+$")
        reader.start()
        load.start()
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
        ended.set()
        load.join()
        time.sleep(2)
        read_all.set()
        reader.join()
        starts = [began_ms for *_, began_ms in restarts]
        usual = sorted(wait for sent, wait in found if sent < starts[0])
        print(f"{len(found)} outputs; before the restarts half wait up to {usual[len(usual) // 2]} ms", flush=True)
        for (name, status, took_s, began_ms), end_ms in zip(restarts, [*starts[1:], sys.maxsize], strict=True):
            waits = [wait for sent, wait in found if began_ms - 2000 <= sent < end_ms]
            print(
                f"{name}: status {status} after {took_s:.2f} s; the longest wait {max(waits) / 1000:.2f} s", flush=True
            )
    finally:
        ended.set()
        for worker in workers.values():
            if worker.runs:
                worker.send(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_S
        while any(worker.runs for worker in workers.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for worker in workers.values():
            worker.kill()


def main() -> int:
    """Restart the workers over a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="the time between two restarts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    more = dict(each.split("=", 1) for each in given.property)
    with (
        TemporaryDirectory(prefix="rolling-") as folder,
        Broker(Path(folder, "broker"), FOLDER, settings="broker.session.timeout.ms=60000\n") as broker,
    ):
        os.environ["APPLICATION_NAME"] = "rolling"
        own = Path(folder, "place")
        own.mkdir()
        restart_all(KafkaPlace(own, broker.address), broker.address, given.seconds, given.seed, more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
