"""A store whose log was deleted and made again, or that is too old, is wiped with the reason: KIP-516, KIP-1259."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.changelog.kafka import KafkaChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogLostError, ConfigError
from stores.interface import TopicPartition
from stores.registry import backend_named, backends, open_store
from stores.tasks import GlobalStore, GlobalStores, StreamTask, TaskConfig
from stores.tasks.stores.log_identity import LOG_ID
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    INPUT,
    LEFT,
    RIGHT,
    checkpoint,
    counting_task,
    expected_state,
    feed,
    logged,
    state,
    store_folder,
)

PERSISTENT = [name for name, backend in backends().items() if backend.persistent]
KEYS = [0, 1, 2, 1]
OTHERS = {b"%d" % number: b"other" for number in range(1, 10)}
"""More records than the stores have read: an offset alone does not tell the logs apart. Key 0 is not among them."""
PRICES = TopicPartition("prices", 0)
DAY_S = 86_400.0

Made = Callable[[], Changelog]


@pytest.fixture(params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    """Returns a log, and after that one whose topics, but input and output, are others of the same names."""
    logs: list[Changelog] = []
    if request.param == "kafka":
        logs.append(fresh_changelog(request.getfixturevalue("broker")))

    def made() -> Changelog:
        if request.param != "kafka":
            number = len(logs)
            logs.append(MemoryChangelog() if request.param == "memory" else SqliteChangelog(tmp_path / f"log-{number}"))
        else:
            remove_topics(logs[0], LEFT.topic, RIGHT.topic, PRICES.topic)
        return logs[-1]

    yield made
    for log in logs:
        log.close()


def remove_topics(log: Changelog, *topics: str) -> None:
    assert isinstance(log, KafkaChangelog)
    admin = AdminClient({"bootstrap.servers": log._cluster.settings.servers})
    present = [topic for topic in topics if topic in log.topics()]
    if present:
        for removal in admin.delete_topics(present).values():
            removal.result(60)
    deadline = time.monotonic() + 600
    while set(topics) & set(log.topics()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def write_others(log: Changelog, *partitions: TopicPartition) -> None:
    for partition in partitions:
        log.create_store_topic(partition.topic, 1)
        with log.producer() as producer:
            producer.send_all(partition, [(key, value, 1) for key, value in OTHERS.items()])
            producer.flush()


def counted(folder: Path, log: Changelog, backend: str) -> None:
    feed(log, KEYS)
    with counting_task(folder, log, backend) as task:
        task.run(commit=True)


def committed_input(log: Changelog) -> None:
    """Commit the offset at which the task has ended, as the log of another cluster does not have it."""
    with log.producer("another") as producer:
        producer.begin()
        producer.send_offsets("app", {INPUT: 0})
        producer.commit()


def reopened(folder: Path, log: Changelog, backend: str, **settings: Any) -> tuple[list[str | None], StreamTask]:
    """Open the task; return the reasons of its reports, and the task."""
    task = counting_task(folder, log, backend, **settings)
    return [report.reason for report in task.open()], task


def mark(path: Path, backend: str) -> bytes | None:
    with open_store(backend, path, name="left") as store:
        return store.mark(LOG_ID)


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_of_another_log_with_its_offset_is_wiped_and_restored_from_the_present_one(
    tmp_path: Path, make: Made, backend: str
) -> None:
    first = make()
    counted(tmp_path, first, backend)
    former = [first.topic_id(partition.topic) for partition in (LEFT, RIGHT)]
    second = make()
    feed(second, [])
    write_others(second, LEFT, RIGHT)
    committed_input(second)
    reasons, task = reopened(tmp_path, second, backend)
    present = [second.topic_id(partition.topic) for partition in (LEFT, RIGHT)]
    for reason, before, now in zip(reasons, former, present, strict=True):
        assert before in str(reason)
        assert now in str(reason)
    assert [report.wiped for report in task.restore_reports()] == [True, True]
    assert state(task, "left") == state(task, "right") == OTHERS
    task.close()
    reasons, task = reopened(tmp_path, second, backend)
    assert reasons == [None, None]
    task.close()
    assert mark(store_folder(tmp_path, backend), backend) == second.topic_id(LEFT.topic).encode()


def test_a_store_of_another_log_whose_checkpoint_is_damaged_is_wiped(tmp_path: Path) -> None:
    """It does not keep its offset itself, and at least once does not need it: the store is restored whole anyway."""
    with MemoryChangelog() as first, MemoryChangelog() as second:
        feed(first, KEYS)
        settings: dict[str, Any] = {"guarantee": "at_least_once"}
        with counting_task(tmp_path, first, DIRECT, **settings) as task:
            task.run(commit=True)
        [damaged] = tmp_path.rglob(".checkpoint")
        damaged.write_text("damaged")
        feed(second, [])
        write_others(second, LEFT, RIGHT)
        committed_input(second)
        reasons, task = reopened(tmp_path, second, DIRECT, **settings)
        assert first.topic_id(LEFT.topic) in str(reasons[0])
        assert state(task, "left") == state(task, "right") == OTHERS
        task.close()


@pytest.mark.kafka
def test_only_the_store_whose_topic_was_made_again_is_wiped(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with fresh_changelog(request.getfixturevalue("broker")) as log:
        counted(tmp_path, log, INDEXED)
        remove_topics(log, LEFT.topic)
        write_others(log, LEFT)
        reasons, task = reopened(tmp_path, log, INDEXED)
        assert [reason is not None for reason in reasons] == [True, False]
        assert (state(task, "left"), state(task, "right")) == (OTHERS, expected_state(KEYS))
        task.close()


def test_a_standby_copy_of_another_log_is_wiped(tmp_path: Path, make: Made) -> None:
    counted(tmp_path, make(), INDEXED)
    second = make()
    feed(second, [])
    write_others(second, LEFT, RIGHT)
    committed_input(second)
    copy = counting_task(tmp_path, second, INDEXED).standby()
    copy.open()
    while copy.follow(3):
        pass
    with copy.snapshots()["left"] as snapshot, snapshot.all() as pairs:
        assert dict(pairs) == OTHERS
    copy.close()


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_is_kept_where_its_log_was_made_again_and_is_empty(tmp_path: Path, make: Made, backend: str) -> None:
    """Its data may be all that is left. One that keeps its offset needs no checkpoint for that."""
    counted(tmp_path, make(), backend)
    if backend_named(backend).manages_offsets:
        for kept in tmp_path.rglob(".checkpoint"):
            kept.unlink()
    second = make()
    feed(second, [])
    committed_input(second)
    task = counting_task(tmp_path, second, backend)
    with pytest.raises(ChangelogLostError):
        task.open()
    with open_store(backend, store_folder(tmp_path, backend), name="left") as store, store.all() as pairs:
        assert dict(pairs) == expected_state(KEYS)


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "rocksdb-direct", "lmdb-native", "sqlite-native"])
def test_a_store_of_an_earlier_release_is_kept_and_gets_the_id(tmp_path: Path, make: Made, backend: str) -> None:
    log = make()
    counted(tmp_path, log, backend)
    path = store_folder(tmp_path, backend)
    with open_store(backend, path, name="left") as store:
        store.restore([], {}, marks={LOG_ID: None})
    reasons, task = reopened(tmp_path, log, backend)
    assert reasons == [None, None]
    assert state(task, "left") == expected_state(KEYS)
    task.close()
    assert mark(path, backend) == log.topic_id(LEFT.topic).encode()


def test_a_log_without_ids_wipes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as brokers before Kafka 2.8."""
    with MemoryChangelog() as log:
        counted(tmp_path, log, INDEXED)
        monkeypatch.setattr(log, "topic_id", lambda topic: "")
        reasons, task = reopened(tmp_path, log, INDEXED)
        assert reasons == [None, None]
        task.close()


def test_a_store_without_data_of_the_former_log_follows_the_present_one(tmp_path: Path, make: Made) -> None:
    first = make()
    feed(first, [])
    counting_task(tmp_path, first, INDEXED).__enter__().close()
    second = make()
    counted(tmp_path, second, INDEXED)
    assert logged(second, "left") == expected_state(KEYS)
    reasons, task = reopened(tmp_path, second, INDEXED)
    assert (reasons, state(task, "left")) == ([None, None], expected_state(KEYS))
    task.close()


def price(log: Changelog, values: Mapping[bytes, bytes]) -> None:
    log.create_topic(PRICES.topic)
    with log.producer() as producer:
        producer.send_all(PRICES, [(key, value, 1) for key, value in values.items()])
        producer.flush()


@pytest.mark.parametrize("backend", [name for name in PERSISTENT if backend_named(name).transactional])
def test_a_global_store_of_a_topic_that_was_made_again_is_wiped_and_read_whole(
    tmp_path: Path, make: Made, backend: str
) -> None:
    stores = {"prices": GlobalStore(PRICES.topic, StoreConfig(backend))}
    first = make()
    price(first, {b"0": b"first"})
    with GlobalStores(tmp_path, first, stores):
        former = first.topic_id(PRICES.topic)
    second = make()
    price(second, OTHERS)
    with GlobalStores(tmp_path, second, stores) as opened:
        assert former in opened.wiped()["prices"]
        assert dict(opened.view("prices").all()) == OTHERS
    with GlobalStores(tmp_path, second, stores) as opened:
        assert (opened.wiped(), opened.restored) == ({}, 0)


def age(path: Path, days: float, *, lock: bool = True) -> None:
    """Let the files of a store have been changed so many days ago: without ``lock`` all but its lock file."""
    then_s = time.time() - days * DAY_S
    for entry in path.rglob("*"):
        if lock or entry != path / "lock":
            os.utime(entry, (then_s, then_s))


def aging(folder: Path, log: Changelog, backend: str, max_age_s: float | None) -> list[str | None]:
    """Open the task with that age, close it, and return the reasons of its reports."""
    stores = {name: StoreConfig(backend, changelog_coalescing=False, max_age_s=max_age_s) for name in ("left", "right")}
    with counting_task(folder, log, stores=stores) as task:
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)
        return [report.reason for report in task.restore_reports()]


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_that_was_changed_too_long_ago_is_wiped_and_restored_whole(
    tmp_path: Path, make: Made, backend: str
) -> None:
    log = make()
    counted(tmp_path, log, backend)
    left = store_folder(tmp_path, backend)
    age(left, 3, lock=False)  # Who only looks at a store locks it.
    for max_age_s in (None, 3.5 * DAY_S):
        assert aging(tmp_path, log, backend, max_age_s) == [None, None]
        age(left, 3, lock=False)
    aged, young = aging(tmp_path, log, backend, 2.5 * DAY_S)
    assert "3.00 days" in str(aged)
    assert "216,000,000" in str(aged)
    assert young is None
    assert aging(tmp_path, log, backend, 2.5 * DAY_S) == [None, None]


@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "sqlite-native"])
def test_a_store_from_the_future_is_not_old(tmp_path: Path, backend: str) -> None:
    """As where the system's time was set back."""
    with MemoryChangelog() as log:
        counted(tmp_path, log, backend)
        age(store_folder(tmp_path, backend), -400)
        assert aging(tmp_path, log, backend, 0.0)[0] is None


def test_an_old_store_is_kept_where_its_log_is_empty(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        counted(tmp_path, log, INDEXED)
        age(store_folder(tmp_path, INDEXED), 3)
        checkpoint(tmp_path).path.unlink()
        with MemoryChangelog() as empty:
            empty._id = log._id  # It stands for the same topics.
            feed(empty, [])
            committed_input(empty)
            with pytest.raises(ChangelogLostError):
                aging(tmp_path, empty, INDEXED, DAY_S)
        assert aging(tmp_path, log, INDEXED, None) == [None, None]


def test_a_global_store_that_was_changed_too_long_ago_is_read_whole(tmp_path: Path) -> None:
    """Its topic may have dropped the deletion of a key that it has."""
    with MemoryChangelog() as log:
        price(log, {b"1": b"x", b"2": b"y"})
        for days, restored in ((0, 2), (3, 2), (1, 0)):
            stores = {"prices": GlobalStore(PRICES.topic, StoreConfig("lmdb", max_age_s=2 * DAY_S))}
            with GlobalStores(tmp_path, log, stores) as opened:
                assert ("prices" in opened.wiped(), opened.restored) == (days == 3, restored if days != 1 else 0)
            age(tmp_path / "global" / "lmdb" / "prices", 3 if days == 0 else 1)


@pytest.mark.parametrize(("text", "max_age_s"), [("-1", None), ("0", 0.0), ("1500", 1.5)])
def test_the_age_is_a_property_of_kafka(tmp_path: Path, text: str, max_age_s: float | None) -> None:
    properties = {"application.id": "app", "state.dir": str(tmp_path)}
    config = TaskConfig.from_properties({**properties, "state.cleanup.dir.max.age.ms": text})
    assert config.store.max_age_s == max_age_s
    assert TaskConfig.from_properties(properties).store.max_age_s is None


def test_an_invalid_age_is_refused(tmp_path: Path) -> None:
    properties = {"application.id": "app", "state.dir": str(tmp_path)}
    for text in ("-2", "a day"):
        with pytest.raises(ConfigError):
            TaskConfig.from_properties({**properties, "state.cleanup.dir.max.age.ms": text})
    with pytest.raises(ConfigError):
        StoreConfig(max_age_s=-1.0)
