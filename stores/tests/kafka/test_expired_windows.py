"""Brokers delete no window that lives by stream time, however old its event times are; what has expired is deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogError
from stores.interface import TopicPartition
from stores.tasks.stores import log_start
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.tasks.setup import INDEXED, INPUT, MEMORY
from stores.tests.tasks.typed import RETENTION_MS, STORE, typed_task, values

pytestmark = pytest.mark.kafka

EAGER = "log.retention.check.interval.ms=100\nlog.initial.task.delay.ms=100\nlog.cleaner.backoff.ms=200\n"
"""Settings of a broker that deletes quickly."""
SMALL = {"segment.ms": "1", "file.delete.delay.ms": "1"}
"""Settings of topics of which a broker may delete soon."""
IN_2019_MS = 1_546_300_800_000
KINDS = ["window", "session"]
WITNESS = TopicPartition("witness", 0)


@pytest.fixture(scope="module")
def eager() -> Iterator[Broker]:
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, Broker(Path(data), FOLDER, settings=EAGER) as broker:
        yield broker


@pytest.fixture
def log(eager: Broker) -> Iterator[KafkaChangelog]:
    remove_all(eager)
    with KafkaChangelog({"bootstrap.servers": eager.address}, topic_settings=SMALL) as changelog:
        for topic in ("input", "output"):
            changelog._create(topic, 1, {"retention.ms": "-1"})
        changelog._create(WITNESS.topic, 1, {**SMALL, "cleanup.policy": "compact,delete", "retention.ms": "86400000"})
        yield changelog


def feed(log: KafkaChangelog, count: int, step_ms: int = 10, first: int = 0) -> None:
    with log.producer() as producer:
        numbers = range(first, first + count)
        producer.send_all(INPUT, [(b"%d" % (each % 4), b"x", IN_2019_MS + each * step_ms) for each in numbers])
        producer.flush()


def await_start(log: KafkaChangelog, partition: TopicPartition, offset: int) -> None:
    deadline = time.monotonic() + 600
    while log.start_offset(partition) < offset:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def let_the_broker_delete(log: KafkaChangelog) -> None:
    """Wait until the broker has deleted what its settings let it: a record of the same age, written last, is gone."""
    with log.producer() as producer:
        producer.send(WITNESS, b"k", b"v", IN_2019_MS)
        producer.flush()
    await_start(log, WITNESS, log.end_offset(WITNESS))


def settings_of(broker: Broker, topic: str) -> dict[str, str]:
    with KafkaChangelog({"bootstrap.servers": broker.address}) as log:
        return log._cluster.topic_settings(topic)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_old_event_times_stay_as_long_as_they_live(
    tmp_path: Path, log: KafkaChangelog, eager: Broker, kind: str
) -> None:
    feed(log, 250)
    with closing(typed_task(tmp_path, log, kind, INDEXED)) as task:
        task.open()
        task.run(commit=True)
        contents = values(task, kind)
    assert len(contents) == 100
    let_the_broker_delete(log)
    with closing(typed_task(tmp_path / "elsewhere", log, kind, INDEXED)) as task:
        [report] = task.open()
        assert (report.wiped, report.reason) == (False, None)
        assert values(task, kind) == contents
    settings = settings_of(eager, STORE.topic)
    assert [settings[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")] == [
        "compact,delete",
        "-1",
        "-1",
    ]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_brokers_delete_expired_records_and_a_restore_expects_none_of_them(
    tmp_path: Path, log: KafkaChangelog, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_start, "INTERVAL_S", 0.0)
    feed(log, 500)
    with closing(typed_task(tmp_path, log, "window", "lmdb", guarantee=guarantee)) as task:
        task.open()
        while task.run(50, commit=True):
            pass
        needed = log_start.needed_from(log, STORE)
        assert needed > 300
        await_start(log, STORE, needed)
        contents = values(task, "window")
    assert len(contents) == 100
    with closing(typed_task(tmp_path / "elsewhere", log, "window", MEMORY)) as task:
        [report] = task.open()
        assert (report.wiped, report.reason) == (False, None)
        assert report.records < 170
        assert values(task, "window") == contents


def old_topic(broker: Broker, settings: dict[str, str]) -> None:
    """Create the store's topic as earlier versions and Kafka Streams do."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    [created] = admin.create_topics([NewTopic(STORE.topic, 1, 1, config={**SMALL, **settings})]).values()
    created.result(600)


OLD = {"cleanup.policy": "compact,delete", "retention.ms": str(RETENTION_MS + 86_400_000)}


@pytest.mark.parametrize("settings", [OLD, {**OLD, "retention.bytes": "1000"}, {"cleanup.policy": "compact"}])
def test_an_existing_topic_gets_the_settings_that_its_store_needs(
    tmp_path: Path, log: KafkaChangelog, eager: Broker, settings: dict[str, str]
) -> None:
    old_topic(eager, settings)
    feed(log, 250)
    with closing(typed_task(tmp_path, log, "window", INDEXED)) as task:
        task.open()
        task.run(commit=True)
        contents = values(task, "window")
    let_the_broker_delete(log)
    with closing(typed_task(tmp_path / "elsewhere", log, "window", MEMORY)) as task:
        [report] = task.open()
        assert report.reason is None
        assert values(task, "window") == contents
    topic_settings = settings_of(eager, STORE.topic)
    assert (topic_settings["cleanup.policy"], topic_settings["retention.ms"]) == ("compact,delete", "-1")
    assert topic_settings["segment.ms"] == SMALL["segment.ms"]


def test_a_restore_names_the_records_that_an_old_topic_of_windows_has_lost(
    tmp_path: Path, log: KafkaChangelog, eager: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    old_topic(eager, OLD)
    with log.producer() as producer:
        producer.send(STORE, b"k\0" + IN_2019_MS.to_bytes(8), bytes(8), IN_2019_MS)
        producer.flush()
        await_start(log, STORE, 1)
        producer.send(STORE, b"k\0" + (IN_2019_MS + 1).to_bytes(8), bytes(8), time.time_ns() // 1_000_000)
        producer.flush()
    with (
        caplog.at_level(logging.WARNING, "stores.tasks"),
        closing(typed_task(tmp_path, log, "window", INDEXED)) as task,
    ):
        [report] = task.open()
    assert report.reason is not None
    assert f"from offset 0 to before 1 of {STORE.topic}-0" in report.reason
    assert not report.wiped
    assert any(report.reason in record.getMessage() for record in caplog.records)


def test_a_topic_that_loses_windows_and_may_not_be_changed_is_refused_with_the_command(
    log: KafkaChangelog, eager: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(topic: str, changes: object) -> None:
        raise ChangelogError("not permitted")

    monkeypatch.setattr(log._cluster, "alter_topic", refuse)
    old_topic(eager, OLD)
    command = f"--entity-name {STORE.topic} --add-config retention.ms=-1"
    with pytest.raises(ChangelogError, match=command):
        log.create_store_topic(STORE.topic, 1, expires=True)
    remove_all(eager)
    old_topic(eager, {"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING):
        log.create_store_topic(STORE.topic, 1, expires=True)
    assert f"--entity-name {STORE.topic} --add-config cleanup.policy=[compact,delete]" in caplog.text


def test_brokers_that_do_not_delete_on_request_are_named_once_and_the_task_continues(
    tmp_path: Path, log: KafkaChangelog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_start, "INTERVAL_S", 0.0)
    monkeypatch.setattr(log, "_mend", lambda topic, changes: None)
    log._create(STORE.topic, 1, {"cleanup.policy": "compact"})
    feed(log, 500)
    with caplog.at_level(logging.WARNING), closing(typed_task(tmp_path, log, "window", "lmdb")) as task:
        task.open()
        while task.run(50, commit=True):
            pass
        deadline = time.monotonic() + 600
        while "do not delete" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(values(task, "window")) == 100
    assert caplog.text.count("do not delete") == 1
