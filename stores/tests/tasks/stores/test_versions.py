"""A versioned store in a task: its changelog, what a restore makes of it, and what compaction leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.config import StoreConfig
from stores.errors import ChangelogError
from stores.interface import IsolationLevel, TopicPartition
from stores.records import BYTES, KeyValue, Versioned
from stores.records.versions import HISTORY, INDEX
from stores.registry import open_store
from stores.settings import Upgrade
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext
from stores.tasks.stores import log_follower
from stores.tasks.stores.log_follower import restore
from stores.tasks.stores.log_format import Conversion
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tests.conformance.version_model import VersionModel, differences
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.setup import EXACTLY_ONCE, INDEXED, INPUT, MEMORY, stream_task
from stores.tests.tasks.typed import STORE, changelog_pairs, typed_task

RETENTION = 60
KEYS = [b"a", b"a\0", b"b", b"c"]
KIND = Versioned(BYTES, BYTES, RETENTION)
COUNT = 400


def inputs(seed: int, count: int = COUNT) -> list[tuple[bytes, bytes | None, int]]:
    """Return puts and deletions, some of them late and some too late."""
    random = Random(seed)
    return [
        (
            random.choice(KEYS),
            None if random.random() < 0.2 else b"%d" % number,
            max(0, number + random.randint(-RETENTION - 10, 10)),
        )
        for number in range(count)
    ]


def model_of(puts: list[tuple[bytes, bytes | None, int]]) -> VersionModel:
    model = VersionModel(RETENTION)
    for put in puts:
        model.put(*put)
    return model


def feed(log: Changelog, puts: list[tuple[bytes, bytes | None, int]]) -> None:
    log.create_topic("input")
    with log.producer() as producer:
        for key, value, time_ms in puts:
            producer.send(INPUT, key, value, time_ms)
        producer.flush()


def keep(record: Record, context: TaskContext) -> None:
    context.store("s").put(record.key, record.value, record.timestamp_ms)


def task_of(folder: Path, log: Changelog, backend: str = INDEXED, **given: Any) -> StreamTask:
    """A task that keeps its input as versions. Its store may coalesce the changelog, and a versioned one does not."""
    return stream_task(
        state_dir=folder / "state",
        changelog=log,
        stores={"s": StoreConfig(backend, records=KIND, **given)},
        process=keep,
        inputs=[INPUT],
        guarantee=EXACTLY_ONCE,
        commit_interval_ms=NO_INTERVAL,
        commit_every_records=7,
    )


def opened_log(folder: Path) -> SqliteChangelog:
    """A changelog that is compacted again and again."""
    return SqliteChangelog(folder / "log", compact_from_records=20, dirty_ratio=0.1)


def asked(task: StreamTask, model: VersionModel) -> list[str]:
    return differences(task.store("s", IsolationLevel.READ_COMMITTED), model, KEYS, Random(1))


def test_the_changelog_has_values_at_their_times_and_the_latest_version_last(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Also with changelog coalescing, which would leave the last put alone. Source: KIP-889, "Changelog topic"."""
    puts = [(b"k", b"1", 10), (b"k", b"3", 30), (b"k", b"2", 20), (b"k", None, 40), (b"k", b"0", 5), (b"l", b"x", 200)]
    feed(log, [*puts, (b"k", b"late", 139)])
    with closing(task_of(tmp_path, log, MEMORY)) as task:
        task.open()
        task.run(commit=True)
        assert task.metrics.stores["s"].late_total == 1
    expected = [*puts[:3], puts[1], puts[3], puts[4], puts[3], puts[5]]
    assert changelog_pairs(log) == expected


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_store_restored_from_a_compacted_changelog_has_its_history(tmp_path: Path, backend: str) -> None:
    puts = inputs(1)
    model = model_of(puts)
    with opened_log(tmp_path) as log:
        feed(log, puts)
        with closing(task_of(tmp_path, log, backend)) as task:
            task.open()
            task.run(commit=True)
            assert asked(task, model) == []
        num_records = len(changelog_pairs(log))
        assert 50 < num_records < COUNT - 100
        with closing(task_of(tmp_path / "other", log, backend)) as task:
            [report] = task.open()
            assert report.records == num_records
            assert asked(task, model) == []


@pytest.mark.parametrize("embedded", [True, False])
def test_compaction_without_knowing_of_versions_is_seen_to_lose_them(tmp_path: Path, embedded: bool) -> None:
    """Only the latest version of a key is left, whatever order they came in."""
    puts = inputs(2)
    model = model_of(puts)
    with SqliteChangelog(tmp_path / "log") if embedded else MemoryChangelog() as log:
        feed(log, puts)
        with closing(task_of(tmp_path, log, MEMORY)) as task:
            task.open()
            task.run(commit=True)
            is_needed = KIND.needed_records(task._stores._stores[0].store)
            assert log.compact(STORE, None, is_needed) > 0
            assert log.compact(STORE, None, is_needed) == 0
        with closing(task_of(tmp_path / "other", log, MEMORY)) as task:
            task.open()
            assert asked(task, model) == []
        log.compact(STORE)
        with closing(task_of(tmp_path / "another", log, MEMORY)) as task:
            task.open()
            assert list(task.store("s").all()) == model.latest()
            assert asked(task, model) != []


def test_pieces_of_a_restore_may_end_between_any_two_records(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = inputs(3, 150)
    feed(log, puts)
    with closing(task_of(tmp_path, log, MEMORY)) as task:
        task.open()
        task.run(commit=True)
    for size in (1, 2, 3, 1_000):
        monkeypatch.setattr(log_follower, "PIECE_RECORDS_MAX", size)
        with closing(task_of(tmp_path / str(size), log)) as task:
            task.open()
            assert asked(task, model_of(puts)) == []


def test_a_restore_leaves_out_late_records_that_kafka_streams_has_logged(log: MemoryChangelog) -> None:
    """Source: Kafka, ``ChangeLoggingVersionedKeyValueBytesStore``, and ``RocksDBVersionedStore.restoreBatch``."""
    puts = inputs(4)
    log.create_topic(STORE.topic)
    with log.producer() as producer:
        for key, value, time_ms in puts:
            producer.send(STORE, key, value, time_ms)
        producer.flush()
    with open_store(MEMORY, "unused", name="s") as store:
        KIND.prepare(store)
        restore(store, log, STORE, None, {}, None, ReplayBound(-1), Conversion(store, KIND, None))
        assert differences(KIND.over(store), model_of(puts), KEYS, Random(1)) == []


class LosingDeletions(MemoryChangelog):
    """A changelog that a broker has compacted long ago: it has no deletion any more."""

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        for record in super().read(partition, from_offset):
            if partition != STORE or record.value is not None:
                yield record


def test_history_is_not_longer_after_a_changelog_has_lost_the_record_with_the_highest_time(tmp_path: Path) -> None:
    """That is not known from the records that are left."""
    with LosingDeletions() as log:
        feed(log, [(b"a", b"1", 10), (b"a", b"2", 50), (b"b", None, 200)])
        for folder in (tmp_path, tmp_path / "other"):
            with closing(task_of(folder, log)) as task:
                task.open()
                task.run(commit=True)
                view = task.store("s")
                assert view.get(b"a", 49) is None
                assert view.get(b"a", 50) == (b"2", 50)
        feed(log, [(b"a", b"late", 139), (b"a", b"3", 140)])
        with closing(task_of(tmp_path / "other", log)) as task:
            task.open()
            task.run(commit=True)
            assert task.metrics.stores["s"].late_total == 1


def test_a_restore_removes_what_expires_on_its_way(log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "PIECE_RECORDS_MAX", 100)
    log.create_topic(STORE.topic)
    with log.producer() as producer:
        producer.send_all(STORE, [(b"%d" % (number % 5), b"v", number) for number in range(5_000)])
        producer.flush()
    with open_store(MEMORY, "unused", name="s") as store:
        KIND.prepare(store)
        restore(store, log, STORE, None, {}, None, ReplayBound(-1), Conversion(store, KIND, None))
        with store.range(HISTORY, INDEX) as pairs:
            assert len(list(pairs)) <= RETENTION + 5


def test_a_restore_keeps_the_versions_of_one_piece_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the store for those of an earlier piece."""
    with open_store(MEMORY, "unused", name="s") as store:
        KIND.prepare(store)
        asked: list[bytes] = []
        get = store.get

        def counted(key: bytes) -> bytes | None:
            asked.append(key)
            return get(key)

        monkeypatch.setattr(store, "get", counted)
        converter = KIND.converter(store)
        for time_ms in range(4):
            asked.clear()
            for number in range(2):
                record = Record(0, b"k", b"%d" % number, time_ms)
                store.restore(list(converter.convert(record)), {}, marks=converter.marks())
            assert len(asked) == 1
            converter.written()
        assert len(list(KIND.over(store).get_versions(b"k"))) == 4


@pytest.mark.parametrize("record", [(b"", b"v", 5), (b"k", b"v", -1), (b"k", None, 1 << 62), (b"k" * 600, b"v", 5)])
def test_a_record_that_is_no_version_ends_a_restore_with_its_place(
    tmp_path: Path, log: MemoryChangelog, record: tuple[bytes, bytes | None, int]
) -> None:
    log.create_topic(STORE.topic)
    with log.producer() as producer:
        producer.send(STORE, *record)
        producer.flush()
    with open_store("lmdb", tmp_path / "s", name="s") as store:
        KIND.prepare(store)
        with pytest.raises(ChangelogError, match=f"record 0 of the changelog {STORE.topic}-0"):
            restore(store, log, STORE, None, {}, None, ReplayBound(-1), Conversion(store, KIND, None))


def test_an_upgrade_keeps_all_records_of_the_changelog(tmp_path: Path) -> None:
    """Its records may be of another format, of which nobody knows which version they were."""
    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", record.value)])
    given: dict[str, Any] = {"upgrade": upgrade, "upgrade_mode": "in_place"}
    puts = inputs(5)
    with opened_log(tmp_path) as log:
        feed(log, puts)
        with closing(task_of(tmp_path, log)) as task:
            task.open()
            task.run(100, commit=True)
        with closing(task_of(tmp_path, log, **given)) as task:
            task.open()
            task.run(commit=True)
            assert asked(task, model_of(puts)) == []
        with closing(task_of(tmp_path / "other", log, **given)) as task:
            task.open()
            assert asked(task, model_of(puts)) == []


def test_an_online_upgrade_makes_versions_of_plain_values(tmp_path: Path, log: MemoryChangelog) -> None:
    puts: list[tuple[bytes, bytes | None, int]] = [(b"a", b"%d" % number, number) for number in range(20)]
    feed(log, puts)
    plain = KeyValue(BYTES, BYTES)

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, record.value)

    settings: dict[str, Any] = {"process": put, "store_records": plain}
    with closing(typed_task(tmp_path, log, "key-value", INDEXED, **settings)) as task:
        task.open()
        task.run(10, commit=True)
    upgrade = Upgrade(
        1, lambda record, version: [(record.key or b"", record.value)], online=True, records=KIND, proxy=lambda old: old
    )
    settings = {**settings, "store_upgrade": upgrade, "store_upgrade_mode": "in_place"}
    with closing(typed_task(tmp_path, log, "key-value", INDEXED, **settings)) as task:
        task.open()
        task.run(commit=True)
    settings = {"process": keep, "store_records": KIND, "store_upgrade_mode": "in_place"}
    settings["store_upgrade"] = Upgrade(1, lambda record, version: [(record.key or b"", record.value)])
    with closing(typed_task(tmp_path, log, "key-value", INDEXED, **settings)) as task:
        task.open()
        assert [tuple(record) for record in task.store("s").get_versions(b"a")] == [
            (b"%d" % number, number, None if number == 19 else number + 1) for number in range(20)
        ]


FAILPOINTS = ["task.before_log_commit", "task.after_log_commit", "task.after_store_commit", "task.after_checkpoint"]


KILLED = [
    *((INDEXED, 0), ("lmdb-native", 1), ("sqlite", 2)),
    *(pytest.param(*each, marks=pytest.mark.long) for each in (("rocksdb-sst-ingest", 3), ("rocksdb-dual-store", 4))),
]


@pytest.mark.parametrize(("backend", "seed"), KILLED)
def test_a_task_that_is_killed_again_and_again_has_the_versions_of_a_dict(
    tmp_path: Path, backend: str, seed: int
) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    puts = inputs(seed + 10)
    with opened_log(tmp_path) as log:
        feed(log, puts)
    kills = 0
    while call_until_killed(_work, tmp_path, random.choice(FAILPOINTS), random.randint(1, 9), backend):
        kills += 1
        with opened_log(tmp_path) as log, closing(task_of(tmp_path, log, backend)) as task:
            task.open()
            done = sum(task.input_offsets().values())
            assert asked(task, model_of(puts[:done])) == []
    assert kills > 3
    with opened_log(tmp_path) as log:
        for folder in (tmp_path, tmp_path / "other"):
            with closing(task_of(folder, log, backend)) as task:
                task.open()
                assert asked(task, model_of(puts)) == []


def _work(folder: Path, backend: str) -> None:
    with opened_log(folder) as log, task_of(folder, log, backend) as task:
        task.run(commit=True)
