"""Our tasks continue with the window, session, versioned and global stores of Kafka Streams, which then does so again.

The program is ``Kinds.java``, which Java compiles as it starts it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.interface import Record
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.testing.jars import STREAMS, STREAMS_44
from stores.interface import TopicPartition
from stores.records import STR, Session, TimestampedKeyValue, Versioned, Window
from stores.tasks import GlobalStore, GlobalStores, StoreConfig, StreamTask, TaskContext, TaskId
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.java_programs import failing_streams_program, streams_program
from stores.tests.kafka.test_streams import KafkaLong
from stores.tests.tasks.streams_folder import all_files

pytestmark = pytest.mark.kafka

APPLICATION = "streams-kinds"
"""No other test has an application of this name: workers refuse a group in which Kafka Streams has a member."""
EVENTS, NAMES, PRICES = TopicPartition("events", 0), TopicPartition("names", 0), TopicPartition("prices", 0)
BASE_MS = int(time.time()) // 60 * 60_000 - 3_600_000
"""Brokers compact records of times that are long ago, and with them the history of versions."""
GRACE_MS = 50_000
KINDS: dict[str, Any] = {
    "windows": Window(key=STR, value=KafkaLong(), size_ms=10_000, retention_ms=120_000, timestamped=True),
    "sessions": Session(key=STR, value=KafkaLong(), retention_ms=120_000),
    "versions": Versioned(key=STR, value=STR, history_retention_ms=100_000),
}
GLOBAL = {"prices": GlobalStore("prices", TimestampedKeyValue(key=STR, value=STR))}
Said = list[tuple[str, str | None, int]]
"""Key, value and time after ``BASE_MS``."""
FIRST: dict[TopicPartition, Said] = {
    EVENTS: [
        ("a", "x", 0),
        ("b", "x", 1_000),
        ("a", "x", 12_000),
        ("a", "x", 4_000),
        ("b", "x", 70_000),
        ("b", "x", 72_000),
        ("c", "x", 130_000),
        ("a", "x", 131_000),
        ("a", "x", 128_000),
        ("a", "x", 125_000),
        ("b", "x", 20_000),
    ],
    NAMES: [
        ("a", "v1", 0),
        ("a", "v2", 20_000),
        ("b", "w1", 30_000),
        ("a", None, 40_000),
        ("a", "v3", 60_000),
        ("b", "w2", 25_000),
        ("gone", "g", 61_000),
        ("gone", None, 62_000),
        ("never", None, 63_000),
    ],
    PRICES: [("p", "10", 1), ("q", "20", 2), ("p", "11", 3), ("r", "30", 4), ("r", None, 5)],
}
"""The last event is later than its window and its session allow."""
MORE: dict[TopicPartition, Said] = {
    EVENTS: [("a", "x", 133_000), ("d", "x", 140_000), ("b", "x", 100_000), ("c", "x", 134_000)],
    NAMES: [("b", "w3", 27_000), ("never", "n", 64_000), ("a", "v4", 70_000), ("d", "z", 80_000)],
    PRICES: [("q", "21", 6), ("s", "40", 7)],
}
KEYS_OF_NAMES = "a,b,gone,never,d"


def say(log: KafkaChangelog, said: dict[TopicPartition, Said]) -> None:
    with log.producer() as producer:
        for partition, records in said.items():
            encoded = [
                (key.encode(), None if value is None else value.encode(), BASE_MS + time_ms)
                for key, value, time_ms in records
            ]
            producer.send_all(partition, encoded)
        producer.flush()


def kept_by_streams(broker: Broker, log: KafkaChangelog, state: Path, jars: str) -> list[str]:
    """Let Kafka Streams work until it has committed all input; return what is in its stores, a line each."""
    ends = [str(log.end_offset(partition)) for partition in (EVENTS, NAMES)]
    arguments = (broker.address, APPLICATION, str(state), *ends, KEYS_OF_NAMES)
    return sorted(streams_program("Kinds", *arguments, jars=jars).splitlines())


def count(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    key, time_ms = record.key.decode(), record.timestamp_ms
    context.store("windows").update(key, time_ms, lambda number: (number or 0) + 1, grace_ms=GRACE_MS)
    context.store("sessions").merge(key, time_ms, 5_000, lambda numbers: sum(numbers) + 1, grace_ms=GRACE_MS)


def keep(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    value = None if record.value is None else record.value.decode()
    context.store("versions").put(record.key.decode(), value, record.timestamp_ms)


def tasks(log: KafkaChangelog, state: Path, backend: str) -> list[StreamTask]:
    """Return the tasks of both sub-topologies of the program."""

    def task(number: int, process: Any, source: TopicPartition, *names: str) -> StreamTask:
        stores = {name: StoreConfig(backend, records=KINDS[name]) for name in names}
        return StreamTask(
            APPLICATION,
            TaskId(number, 0),
            state_dir=state,
            changelog=log,
            stores=stores,
            process=process,
            inputs=[source],
        )

    return [task(0, count, EVENTS, "windows", "sessions"), task(1, keep, NAMES, "versions")]


def kept_by_us(counting: StreamTask, keeping: StreamTask, stores: GlobalStores) -> list[str]:
    """Return what is in our stores, in the lines of the program."""
    with counting.store("windows").all() as records:
        lines = [
            f"windows {window.key} {window.start_ms} {number.value} {number.timestamp_ms}" for window, number in records
        ]
    with counting.store("sessions").fetch_range(None, None) as records:
        lines += [f"sessions {window.key} {window.start_ms} {window.end_ms} {number}" for window, number in records]
    for name in KEYS_OF_NAMES.split(","):
        with keeping.store("versions").get_versions(name) as versions:
            for value, time_ms, end_ms in versions:
                lines.append(f"versions {name} {time_ms} {-1 if end_ms is None else end_ms} {value}")
    with stores.view("prices").all() as pairs:
        lines += [f"prices {key} {value} {time_ms}" for key, (value, time_ms) in pairs]
    return sorted(lines)


@pytest.mark.parametrize(
    ("backend", "jars"), [("rocksdb-indexed-batch", STREAMS), ("lmdb-native", STREAMS), ("lmdb-native", STREAMS_44)]
)
def test_tasks_take_over_stores_of_all_kinds_and_kafka_streams_continues_from_their_changelogs(
    tmp_path: Path, broker: Broker, backend: str, jars: str
) -> None:
    """Nothing is restored. In the end Kafka Streams refuses the directory, and changes nothing in it.

    Both restore what both have logged into an empty one.
    """
    with fresh_changelog(broker) as log, ExitStack() as opened:
        for partition in (EVENTS, NAMES, PRICES):
            log.create_topic(partition.topic)
        say(log, FIRST)
        theirs = kept_by_streams(broker, log, tmp_path / "streams", jars)
        assert {line.split()[0] for line in theirs} == {"windows", "sessions", "versions", "prices"}
        state = tmp_path / "streams" / APPLICATION
        assert len(list((state / "0_0" / "windows").glob("windows.*/CURRENT"))) > 1
        assert len(list((state / "0_0" / "sessions").glob("sessions.*/CURRENT"))) > 1
        assert (state / "1_0" / "rocksdb" / "versions" / "CURRENT").exists()
        assert (state / "global" / "rocksdb" / "prices" / "CURRENT").exists()

        stores = opened.enter_context(GlobalStores(state, log, GLOBAL))
        assert (stores.restored, stores.wiped()) == (0, {})
        counting, keeping = (opened.enter_context(task) for task in tasks(log, state, backend))
        for task in (counting, keeping):
            assert [(each.wiped, each.reason, each.records) for each in task.restore_reports()] == [
                (False, None, 0)
            ] * len(task.restore_reports())
        assert kept_by_us(counting, keeping, stores) == theirs
        assert not list(state.rglob("windows.*/CURRENT"))

        say(log, MORE)
        counting.run(commit=True)
        keeping.run(commit=True)
        while stores.lag():
            stores.follow()
        ours = kept_by_us(counting, keeping, stores)
        assert ours != theirs
        opened.close()

        before = all_files(state)
        given = (broker.address, APPLICATION, str(tmp_path / "streams"), "0", "0", "a")
        refusal = failing_streams_program("Kinds", *given, jars=jars)
        assert "Failed to lock the state directory" in refusal
        assert all_files(state) == before

        lost = tmp_path / "lost"
        with GlobalStores(lost, log, GLOBAL) as stores, ExitStack() as restored:
            counting, keeping = (restored.enter_context(task) for task in tasks(log, lost, backend))
            assert kept_by_us(counting, keeping, stores) == ours
        assert kept_by_streams(broker, log, tmp_path / "later", jars) == ours
