"""Dead letters of a global store: each is sent once by all processes together, also if some are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Producer, Record
from stores.changelog.partitioners import of_murmur2
from stores.config import StoreConfig
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitFailedError
from stores.interface import KeyValueStore, TopicPartition
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue
from stores.tasks import DeadLetterTopic, GlobalStore, GlobalStores
from stores.tasks.global_dead_letters import ATTEMPTS_MAX
from stores.tests.forked_call import call_until_killed
from stores.tests.kafka.fresh import remove_all
from stores.tests.tasks.global_topic import PARTITIONS, TOPIC, partition
from stores.tests.tasks.setup import header_of, over_each_changelog
from stores.tests.tasks.test_dead_letters import changelog_of

DEAD = TopicPartition("dead", 0)
ONE, TWO = INT64.serialize(1), INT64.serialize(2)
RECORDS = [
    (0, b"a", ONE),
    (0, b"", ONE),
    (1, b"b", b"not eight bytes"),
    (1, None, ONE),
    (0, b"\xff", TWO),
    (2, b"c", TWO),
    (2, b"", None),
]
"""Partition, key and value. One without a key is no letter: it is of no store."""
POISON = [(0, 1), (0, 2), (1, 0), (2, 1)]
"""Partition and offset of the records that become letters."""


def send(log: Changelog, records: list[tuple[int, bytes | None, bytes | None]]) -> None:
    for topic, partitions in ((TOPIC, PARTITIONS), ("dead", 1)):
        log.create_topic(topic, partitions)
    with log.producer() as producer:
        for number, key, value in records:
            producer.send(partition(number), key, value, 5, (("own", b"1"),))
        producer.flush()


def stores_of(log: Changelog, folder: Path, records: Any = None, backend: str = "lmdb-indexed-batch") -> GlobalStores:
    kind = KeyValue(key=STR, value=INT64) if records is None else records
    described = GlobalStore(TOPIC, StoreConfig(backend, records=kind), on_deserialization_error=DeadLetterTopic("dead"))
    return GlobalStores(folder, log, {"prices": described}, application_id="shop")


def letters(log: Changelog) -> list[tuple[int, int]]:
    """The partition and offset of the record of each letter."""
    names = ("__streams.errors.partition", "__streams.errors.offset")
    numbers = [[int(header_of(letter, name)) for name in names] for letter in log.read(DEAD)]
    return [(partition, offset) for partition, offset in numbers]


def values(stores: GlobalStores) -> dict[str, int]:
    with stores.view("prices").all() as pairs:
        return {key: getattr(value, "value", value) for key, value in pairs}


@over_each_changelog
@pytest.mark.parametrize("kind", [KeyValue, TimestampedKeyValue])
@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "rocksdb-dual-store", "sqlite-native", "memory"])
def test_all_processes_of_an_application_together_send_a_record_once(
    tmp_path: Path, log: Changelog, backend: str, kind: Any
) -> None:
    records = kind(key=STR, value=INT64)
    send(log, RECORDS)
    with stores_of(log, tmp_path / "1", records, backend) as first, stores_of(log, tmp_path / "2", records) as second:
        assert values(first) == values(second) == {"a": 1, "c": 2}
        assert sorted(letters(log)) == POISON
        send(log, [(2, b"d", b"")])
        second.follow()
        first.follow()
        assert sorted(letters(log)) == [*POISON, (2, 2)]
        totals = [
            (copy.metrics.skipped_total, copy.metrics.dead_letter_total)
            for stores in (first, second)
            for copy in stores.opened()
        ]
    assert totals == [(5, 4), (5, 1)]
    with stores_of(log, tmp_path / "3", records) as third:
        assert values(third) == {"a": 1, "c": 2}
    assert len(letters(log)) == 5


@over_each_changelog
def test_a_letter_has_the_record_and_the_error_in_headers(tmp_path: Path, log: Changelog) -> None:
    """Source: KIP-1034."""
    send(log, [(1, b"b", b"not eight bytes"), (1, b"", ONE), (1, b"k" * 600, ONE)])
    with stores_of(log, tmp_path):
        unreadable, empty, too_long = log.read(DEAD)
    assert (unreadable.key, unreadable.value, unreadable.timestamp_ms) == (b"b", b"not eight bytes", 5)
    assert (empty.key, empty.value) == (b"", ONE)
    assert (too_long.key, too_long.value) == (b"k" * 600, ONE)
    assert unreadable.headers[0] == ("own", b"1")
    exceptions = [header_of(letter, "__streams.errors.exception").decode() for letter in (unreadable, empty, too_long)]
    assert exceptions == [
        "stores.errors.DeserializationError",
        "stores.errors.ChangelogError",
        "stores.errors.ChangelogError",
    ]
    assert "__streams.errors.stacktrace" in dict(unreadable.headers)
    assert b"prices-1" in header_of(empty, "__streams.errors.message")


@pytest.mark.parametrize("records", [KeyValue(key=BYTES, value=BYTES), None])
def test_a_store_of_bytes_has_letters_for_keys_that_it_cannot_have(
    tmp_path: Path, log: MemoryChangelog, records: Any
) -> None:
    send(log, [(0, b"a", b"1"), (0, b"", b"2"), (0, b"k" * 600, b"3")])
    described = GlobalStore(
        TOPIC, StoreConfig("lmdb", records=records), on_deserialization_error=DeadLetterTopic("dead")
    )
    with GlobalStores(tmp_path, log, {"prices": described}, application_id="shop") as stores:
        assert dict(stores.view("prices").all()) == {b"a": b"1"}
    assert letters(log) == [(0, 1), (0, 2)]


def test_stores_and_applications_have_letters_of_their_own(tmp_path: Path, log: MemoryChangelog) -> None:
    send(log, [(0, b"", ONE)])
    described = GlobalStore(TOPIC, on_deserialization_error=DeadLetterTopic("dead"))
    for application, names in (("shop", "ab"), ("other", "a"), ("shop", "ab")):
        stores = GlobalStores(tmp_path / application, log, dict.fromkeys(names, described), application_id=application)
        with stores:
            assert stores.restored in (0, len(names))
    assert letters(log) == [(0, 0)] * 3


def test_a_letter_is_in_the_partition_of_its_key(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("many", 3)
    send(log, [(0, b"b", b""), (1, b"c", b""), (1, b"", ONE)])
    described = GlobalStore(TOPIC, KeyValue(key=STR, value=INT64), on_deserialization_error=DeadLetterTopic("many"))
    with GlobalStores(tmp_path, log, {"prices": described}, application_id="shop"):
        pass
    for key in (b"b", b"c", b""):
        [record] = log.read(TopicPartition("many", of_murmur2(key, 3)))
        assert record.key == key


def test_a_dead_letter_topic_that_does_not_exist_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic(TOPIC, PARTITIONS)
    stores = stores_of(log, tmp_path)
    with pytest.raises(ChangelogError, match="'dead' of global store 'prices'"):
        stores.open()
    log.create_topic("dead")
    with stores:
        assert values(stores) == {}


def fenced_once(log: Any, monkeypatch: pytest.MonkeyPatch, others: Iterator[GlobalStores]) -> None:
    """Let another process follow the topic when a producer was opened, before it sends anything."""
    make = log.producer

    def producer(transactional_id: str | None = None, timeout_s: float | None = None) -> Producer:
        made: Producer = make(transactional_id, timeout_s)
        for other in others:
            other.follow()
            break
        return made

    monkeypatch.setattr(log, "producer", producer)


@over_each_changelog
def test_a_process_that_another_one_overtakes_sends_nothing_twice(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(log, [])
    with stores_of(log, tmp_path / "1") as first, stores_of(log, tmp_path / "2") as second:
        send(log, [*RECORDS, (2, b"d", b"")])
        assert second.follow(2) == 2
        with monkeypatch.context() as patch:
            fenced_once(log, patch, iter([second]))
            while first.follow():
                pass
        assert values(first) == values(second) == {"a": 1, "c": 2}
    assert sorted(letters(log)) == [*POISON, (2, 2)]


def test_a_dead_letter_topic_that_is_gone_when_it_is_needed_is_named(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(log, [])
    with stores_of(log, tmp_path) as stores:
        send(log, RECORDS)
        with monkeypatch.context() as patch:
            patch.setattr(log, "topics", lambda: {TOPIC: PARTITIONS})
            with pytest.raises(ChangelogError, match="'dead' of 'shop/prices/dead-letters' does not exist"):
                stores.follow()
        assert (values(stores), letters(log)) == ({}, [])
        while stores.follow():
            pass
        assert values(stores) == {"a": 1, "c": 2}
    assert sorted(letters(log)) == POISON


def test_letters_that_others_always_fence_are_tried_again_later(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(log, [])
    make, opened = log.producer, 0

    def producer(transactional_id: str | None = None, timeout_s: float | None = None) -> Producer:
        nonlocal opened
        opened += 1
        made = make(transactional_id, timeout_s)
        make(transactional_id, timeout_s)  # Another process.
        return made

    with stores_of(log, tmp_path) as stores:
        send(log, RECORDS)
        with monkeypatch.context() as patch:
            patch.setattr(log, "producer", producer)
            with pytest.raises(ChangelogTimeoutError):
                stores.follow()
        assert opened == ATTEMPTS_MAX
        assert (values(stores), letters(log)) == ({}, [])
        while stores.follow():
            pass
        assert values(stores) == {"a": 1, "c": 2}
    assert sorted(letters(log)) == POISON


@over_each_changelog
def test_a_failed_commit_of_the_store_repeats_no_letter(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(log, [])
    with stores_of(log, tmp_path) as stores:
        [copy] = stores.opened()
        send(log, RECORDS)

        def failing(offsets: object) -> None:
            raise CommitFailedError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(copy.store, "commit", failing)
            with pytest.raises(CommitFailedError):
                stores.follow()
        assert isinstance(copy.store, KeyValueStore)
        assert sorted(letters(log)) == POISON
        assert stores.follow() == len(RECORDS)
        assert values(stores) == {"a": 1, "c": 2}
    assert sorted(letters(log)) == POISON


def follow_all(folder: Path, backend: str) -> None:
    with changelog_of(folder) as log, stores_of(log, folder / "state", None, backend):
        pass


@pytest.mark.parametrize("over", ["a file", pytest.param("kafka", marks=pytest.mark.kafka)])
@pytest.mark.parametrize("backend", ["rocksdb-indexed-batch", "lmdb-indexed-batch", "sqlite-indexed-batch"])
@pytest.mark.parametrize(
    ("failpoint", "are_sent"),
    [("changelog.before_commit", False), ("changelog.after_commit", True), ("indexed_batch.before_write", True)],
)
def test_a_kill_around_letters_loses_and_repeats_none(
    request: pytest.FixtureRequest, tmp_path: Path, over: str, backend: str, failpoint: str, are_sent: bool
) -> None:
    if over == "kafka":
        broker = request.getfixturevalue("broker")
        remove_all(broker)
        (tmp_path / "address").write_text(broker.address)
    with changelog_of(tmp_path) as log:
        send(log, RECORDS)
    assert call_until_killed(follow_all, tmp_path, failpoint, 1, backend)
    with changelog_of(tmp_path) as log:
        assert sorted(letters(log)) == (POISON if are_sent else [])
        with stores_of(log, tmp_path / "state", None, backend) as stores:
            assert values(stores) == {"a": 1, "c": 2}
        assert sorted(letters(log)) == POISON


def test_the_error_of_a_letter_has_no_value_of_another_record(tmp_path: Path, log: MemoryChangelog) -> None:
    send(log, [(0, b"secret", ONE), (0, b"b", b"bad")])
    with stores_of(log, tmp_path):
        pass
    [letter] = log.read(DEAD)
    assert isinstance(letter, Record)
    assert all(b"secret" not in (text or b"") for _, text in letter.headers)
