"""The changelog of windows and sessions does not keep what has expired for good; with a time to live it has the times.

Source: Kafka, ``cleanup.policy=compact,delete`` of the changelogs of window stores.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.interface import TopicPartition
from stores.records import BYTES, INT64, TimestampedKeyValue
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import INDEXED, INPUT, MEMORY
from stores.tests.tasks.typed import KINDS, RETENTION_MS, STORE, changelog_pairs, feed_times, typed_task, values

EXPIRING = [kind for kind in KINDS if "window" in kind or "session" in kind or kind == "duplicates"]
NUMBERS = 400


def numbers_kept(log: Changelog) -> list[int]:
    return [INT64.deserialize(value) for _, value, _ in changelog_pairs(log) if value is not None]


@pytest.mark.parametrize("kind", EXPIRING)
def test_a_task_lets_its_changelog_forget_what_has_expired(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.changelog.sqlite_writer._ROWS", 20)
    with SqliteChangelog(tmp_path / "log", compact_from_records=20, dirty_ratio=0.1) as log:
        feed_times(log, range(NUMBERS))
        with closing(typed_task(tmp_path, log, kind, INDEXED, commit_every_records=10)) as task:
            task.open()
            task.run(commit=True)
            contents = values(task, kind)
        numbers = numbers_kept(log)
        assert len(contents) <= len(numbers) < NUMBERS
        assert set(contents) <= set(numbers)
        with closing(typed_task(tmp_path / "elsewhere", log, kind, MEMORY)) as task:
            task.open()
            assert values(task, kind) == contents


@pytest.mark.parametrize("kind", EXPIRING)
@pytest.mark.parametrize("embedded", [True, False])
def test_compaction_by_hand_keeps_what_lives_and_no_more(tmp_path: Path, kind: str, embedded: bool) -> None:
    with SqliteChangelog(tmp_path / "log") if embedded else MemoryChangelog() as log:
        feed_times(log, range(NUMBERS))
        with closing(typed_task(tmp_path, log, kind, MEMORY)) as task:
            task.open()
            task.run(commit=True)
            contents = values(task, kind)
            is_expired = KINDS[kind].expired_records(task._stores._stores[0].store)
            assert is_expired is not None
            assert log.compact(STORE, is_expired) == NUMBERS - len(contents)
        assert sorted(numbers_kept(log)) == contents
        with closing(typed_task(tmp_path / "elsewhere", log, kind, MEMORY)) as task:
            task.open()
            assert values(task, kind) == contents


def test_a_store_without_retention_lets_nothing_be_forgotten(tmp_path: Path, log: MemoryChangelog) -> None:
    for kind in ("key-value", "timestamped"):
        with closing(typed_task(tmp_path, log, kind, MEMORY)) as task:
            task.open()
            assert KINDS[kind].expired_records(task._stores._stores[0].store) is None


def test_a_key_that_no_store_of_the_kind_logs_is_kept(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(NUMBERS))
    with closing(typed_task(tmp_path, log, "window", MEMORY)) as task:
        task.open()
        task.run(commit=True)
        is_expired = KINDS["window"].expired_records(task._stores._stores[0].store)
        assert is_expired is not None
        assert is_expired(b"k\0" + bytes(8))
        assert not any(map(is_expired, (b"", b"k", bytes(7), b"plain key", b"k\0" + b"\xff" * 8)))
    assert RETENTION_MS < NUMBERS * 7


@pytest.mark.parametrize("coalescing", [True, False])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, "rocksdb-direct", "sqlite-native"])
def test_a_restore_knows_the_highest_time_that_no_record_has_any_more(
    tmp_path: Path, log: MemoryChangelog, backend: str, coalescing: bool
) -> None:
    """The record with it was replaced by an earlier one: in the same commit, or compaction has removed it."""

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, record.offset, record.timestamp_ms)

    def task_in(folder: Path) -> StreamTask:
        kind = TimestampedKeyValue(BYTES, INT64, ttl_ms=100)
        settings = {"store_records": kind, "store_changelog_coalescing": coalescing}
        return typed_task(folder, log, "timestamped", backend, process=put, **settings)

    def shown(task: StreamTask) -> dict[bytes, int]:
        with task.store("s").all() as pairs:
            return {key: found.value for key, found in pairs}

    log.create_topic("input")
    log.create_topic("output")
    with log.producer() as producer:
        for key, time_ms in ((b"a", 40), (b"k", 120), (b"k", 60), (b"b", 20)):
            producer.send(INPUT, key, b"", time_ms)
        producer.flush()
    with closing(task_in(tmp_path)) as task:
        task.open()
        task.run(commit=True)
        assert shown(task) == {b"a": 0, b"k": 2}
    log.compact(STORE)
    assert max(record.timestamp_ms for record in log.read(STORE) if record.value is not None) == 60
    with closing(task_in(tmp_path / "elsewhere")) as task:
        task.open()
        assert shown(task) == {b"a": 0, b"k": 2}
        with log.producer() as producer:
            producer.send(INPUT, b"c", b"", 20)
            producer.flush()
        task.run(commit=True)
        assert shown(task) == {b"a": 0, b"k": 2}
    assert log.committed_offsets(f"{STORE.topic}/store-time") == {TopicPartition(STORE.topic, 0): 120}
