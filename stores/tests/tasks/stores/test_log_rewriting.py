"""A changelog whose records are all logged again in the present format, so that none is of an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.changelog.producer import AFTER_COMMIT, BufferedProducer
from stores.engines.rocksdb.flushes import Flushes
from stores.errors import ChangelogError, ProducerFencedError
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.settings import Upgrade
from stores.tasks import StreamTask, ThreadTransaction
from stores.tasks.stores import log_format, log_start
from stores.tasks.stores.log_format import VERSION_HEADER
from stores.tasks.stores.store_group import AFTER_STORE_COMMIT
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.setup import DIRECT, INDEXED, MEMORY, TASK, Crash, checkpoint, crashing_at
from stores.tests.tasks.typed import STORE, feed_times
from stores.tests.tasks.upgrading import (
    BACKENDS,
    expected,
    new_task,
    old_task,
    rewriting_task,
    shown,
    to_new,
    upgrade,
    work,
)

OWN = f"app-{TASK}"
"""The transactional ID of the task, and of its rewriting."""
NEW_HEADERS = ((VERSION_HEADER, b"1"),)


def never(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    """Shows that there is nothing left to convert."""
    raise AssertionError(f"record {record.offset} has format {version}")


def restored(folder: Path, log: Any, backend: str = INDEXED) -> StreamTask:
    """A task whose new store is restored from a changelog that has the present format alone."""
    return new_task(folder, log, backend, store_upgrade=Upgrade(1, never))


@pytest.mark.parametrize("guarantee", ProcessingGuarantee)
@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT, MEMORY])
def test_after_the_upgrade_the_changelog_has_the_present_format_alone_and_restores(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: ProcessingGuarantee
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend, guarantee=guarantee), 8)
    work(new_task(tmp_path, log, backend, guarantee=guarantee), 4)
    with closing(rewriting_task(tmp_path, log, backend, guarantee=guarantee)) as task:
        task.open()
        assert {record.headers for record in log.read(STORE, log.start_offset(STORE))} == {NEW_HEADERS}
        assert shown(task) == expected(12)
        task.run(4, commit=True)
    with closing(rewriting_task(tmp_path, log, backend, guarantee=guarantee)) as task:
        start = log.start_offset(STORE)
        [report] = task.open()
        assert log.start_offset(STORE) == start
        if backend != MEMORY:
            assert (report.wiped, report.records) == (False, 0)
        assert shown(task) == expected(16)
    with closing(restored(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(16)


@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT])
def test_a_store_whose_changelog_was_rewritten_is_at_its_end(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    settings: dict[str, Any] = {"guarantee": ProcessingGuarantee.AT_LEAST_ONCE}
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend, **settings), 8)
    with closing(rewriting_task(tmp_path, log, backend, **settings)) as task:
        task.open()
        last = log.end_offset(STORE) - 1
        assert task.changelog_offsets() == {STORE: last}
        if backend == DIRECT:
            assert checkpoint(tmp_path).read() == {STORE: last}
    with closing(rewriting_task(tmp_path, log, backend, **settings)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)


def test_times_and_the_order_of_records_stay(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path, log), 10)
    before = [(pair[0], pair[1], record.timestamp_ms) for record in log.read(STORE) for pair in to_new(record, 0)]
    work(rewriting_task(tmp_path, log), 0)
    after = [(record.key, record.value, record.timestamp_ms) for record in log.read(STORE, log.start_offset(STORE))]
    assert after == before


def test_a_compacted_changelog_of_several_formats_restores_and_can_be_rewritten(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 9)
    work(new_task(tmp_path, log), 6)
    assert log.compact(STORE)
    with closing(new_task(tmp_path / "mixed", log)) as task:
        task.open()
        assert shown(task) == expected(15)
    work(rewriting_task(tmp_path, log), 0)
    log.compact(STORE)
    with closing(restored(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(15)


def test_an_error_of_the_converter_leaves_the_changelog_as_it_was(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path, log), 4)
    work(new_task(tmp_path, log), 2)
    before = list(log.read(STORE))

    def broken(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        raise Crash

    with pytest.raises(Crash):
        new_task(tmp_path, log, store_upgrade=Upgrade(1, broken, rewrite_changelog=True)).open()
    assert list(log.read(STORE)) == before
    work(new_task(tmp_path, log))


def test_a_new_instance_that_rebuilds_leaves_the_changelog_to_the_one_that_works(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(10))
    work(old_task(tmp_path / "old", log), 4)
    before = list(log.read(STORE))
    task = rewriting_task(tmp_path / "new", log, mode="roll_over")
    task.rebuild()
    assert list(log.read(STORE)) == before


def test_a_kill_after_a_changelog_is_rewritten_takes_no_store_back_to_an_offset_that_is_gone(tmp_path: Path) -> None:
    """Without a WAL, what the first kill left to be restored is nowhere but in the changelog."""
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed_times(log, range(20))
        work(old_task(tmp_path, log), 4)
        work(new_task(tmp_path, log), 2)
    assert call_until_killed(partial(upgrade, way="offline"), tmp_path, AFTER_STORE_COMMIT, 2)
    assert call_until_killed(partial(upgrade, way="rewriting"), tmp_path, BEFORE_LOG_COMMIT)
    with SqliteChangelog(tmp_path / "log.sqlite") as log, closing(rewriting_task(tmp_path, log)) as task:
        [report] = task.open()
        assert not report.wiped
        assert shown(task) == expected(10)


def test_nothing_is_removed_from_the_changelog_while_a_kill_loses_the_store_s_last_commit(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 8)
    start = log.start_offset(STORE)
    with monkeypatch.context() as patch, closing(rewriting_task(tmp_path, log)) as task:
        patch.setattr(Flushes, "_flush", lambda flushes: None)
        task.open()
        assert log.start_offset(STORE) == start
        assert shown(task) == expected(8)
    with closing(rewriting_task(tmp_path, log)) as task:
        task.open()
        assert log.start_offset(STORE) > start
        assert {record.headers for record in log.read(STORE, log.start_offset(STORE))} == {NEW_HEADERS}
        assert shown(task) == expected(8)


def test_a_flush_that_began_before_the_last_commit_is_not_enough(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 8)
    move_to, truncate = TaskStore._move_to, log.truncate
    moved: list[TaskStore] = []
    persisted: list[bool] = []

    def moved_during_a_flush(store: TaskStore, offset: int) -> None:
        flushes = store.store.persistence
        assert isinstance(flushes, Flushes)
        with monkeypatch.context() as patch:
            patch.setattr(Flushes, "_flush", lambda flushes: sleep(0.2))
            assert flushes.begin()
        move_to(store, offset)
        moved.append(store)

    def noted(partition: TopicPartition, before_offset: int) -> int:
        persistence = moved[-1].store.persistence
        persisted.append(persistence.persisted() == persistence.mark() > 0)
        return truncate(partition, before_offset)

    monkeypatch.setattr(TaskStore, "_move_to", moved_during_a_flush)
    monkeypatch.setattr(log, "truncate", noted)
    with closing(rewriting_task(tmp_path, log)) as task:
        task.open()
    assert persisted == [True]


# A changelog that only compaction removes records of


class CompactOnly(MemoryChangelog):
    """A changelog as a topic of Kafka with the policy ``compact`` alone."""

    def can_truncate(self, topic: str) -> bool:
        return False

    def truncate(self, partition: TopicPartition, before_offset: int) -> int:
        raise ChangelogError("the policy has no delete")


@pytest.fixture
def compact_only() -> Iterator[CompactOnly]:
    with CompactOnly() as changelog:
        yield changelog


def own_or_none(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
    """Keep the keys of even numbers, under the same key in even-numbered fours, and drop the others."""
    assert record.key is not None
    number = int(record.key[1:])
    return [] if number % 2 else [(record.key if number % 4 else b"x-%d" % number, record.value)]


def test_in_a_compacted_changelog_the_new_records_replace_the_old_ones(
    tmp_path: Path, compact_only: CompactOnly
) -> None:
    log = compact_only
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    old_keys = {record.key for record in log.read(STORE)}
    work(rewriting_task(tmp_path, log), 3)
    with closing(restored(tmp_path / "other", log)) as task:
        [report] = task.open()
        assert shown(task) == expected(15)
        assert report.reason is None
    log.compact(STORE)
    records = {record.key: record for record in log.read(STORE)}
    assert {key for key, record in records.items() if record.value is not None}.isdisjoint(old_keys)
    assert all(records[key].value is None for key in old_keys)
    with closing(restored(tmp_path / "third", log)) as task:
        task.open()
        assert shown(task) == expected(15)


def test_a_key_that_both_formats_have_gets_no_tombstone_behind_its_record(
    tmp_path: Path, compact_only: CompactOnly
) -> None:
    log = compact_only
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    upgrade = Upgrade(1, own_or_none, rewrite_changelog=True)
    settings: dict[str, Any] = {"store_upgrade": upgrade, "store_records": None}
    with closing(new_task(tmp_path, log, **settings)) as task:
        task.open()
        before = shown(task)
        assert set(before) == {b"x-0", b"k2", b"x-4", b"k6", b"k10"}
    log.compact(STORE)
    with closing(new_task(tmp_path / "other", log, **settings)) as task:
        task.open()
        assert shown(task) == before
    assert {record.key for record in log.read(STORE) if record.value is not None} == set(before)


def test_openings_after_the_first_log_nothing_again(tmp_path: Path, compact_only: CompactOnly) -> None:
    log = compact_only
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    work(rewriting_task(tmp_path, log), 0)
    end = log.end_offset(STORE)
    for folder in (tmp_path, tmp_path / "other", tmp_path):
        work(rewriting_task(folder, log), 0)
        assert log.end_offset(STORE) == end


def test_a_second_rewriting_to_a_later_format_replaces_the_first(tmp_path: Path, compact_only: CompactOnly) -> None:
    log = compact_only
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    work(rewriting_task(tmp_path, log), 0)

    def second(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        assert (version, (record.key or b"")[:4]) == (1, b"key-")
        return [(b"2-" + (record.key or b""), record.value)]

    def shown_as_second(task: StreamTask) -> dict[Any, Any]:
        task.open()
        return {key.removeprefix("2-"): value for key, value in shown(task).items()}

    later = Upgrade(2, second, rewrite_changelog=True)
    with closing(new_task(tmp_path, log, store_upgrade=later)) as task:
        assert shown_as_second(task) == expected(12)
    log.compact(STORE)
    with closing(new_task(tmp_path / "other", log, store_upgrade=Upgrade(2, never))) as task:
        assert shown_as_second(task) == expected(12)


@pytest.mark.parametrize("failpoint", [AFTER_COMMIT, *log_format.FAILPOINTS])
def test_an_opening_after_an_interrupted_one_does_the_rest_and_logs_nothing_again(
    tmp_path: Path, log: MemoryChangelog, failpoint: str
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    with crashing_at(failpoint):
        work(rewriting_task(tmp_path, log), 0)
    end = log.end_offset(STORE)
    with closing(rewriting_task(tmp_path, log)) as task:
        [report] = task.open()
        assert not report.wiped
        assert log.end_offset(STORE) == end
        assert log.start_offset(STORE) == log_start.needed_from(log, STORE)
        assert shown(task) == expected(12)
    with closing(rewriting_task(tmp_path, log)) as task:
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)


def test_nothing_is_written_if_the_log_does_not_answer_how_it_drops_records(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    before = list(log.read(STORE))

    def refuse(self: MemoryChangelog, topic: str) -> bool:
        raise ChangelogError("no permission to describe")

    with monkeypatch.context() as patch, pytest.raises(ChangelogError):
        patch.setattr(MemoryChangelog, "can_truncate", refuse)
        work(rewriting_task(tmp_path, log), 0)
    assert list(log.read(STORE)) == before


def test_a_rewriting_that_a_dead_process_has_just_completed_is_not_repeated(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is decided when the next producer of its ID is opened."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    with log.producer("aborted") as producer:
        producer.begin()
        producer.send(STORE, b"k", b"v")
        producer.send(STORE, b"k", b"v" * (5 << 20))
        producer.abort()
    before = log.end_offset(STORE)
    open_producer = MemoryChangelog.producer
    decided: list[str] = []

    def deciding(self: MemoryChangelog, transactional_id: str | None = None, timeout_s: float | None = None) -> Any:
        if transactional_id == OWN and not decided:
            decided.append(transactional_id)
            upgrade = Upgrade(1, to_new, rewrite_changelog=True)
            log_format.rewrite(log, STORE, upgrade, "dead", log.end_offset(STORE))
        return open_producer(self, transactional_id, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryChangelog, "producer", deciding)
        work(rewriting_task(tmp_path, log), 0)
    assert decided
    assert log.end_offset(STORE) == before + 14
    assert sum(record.headers == NEW_HEADERS for record in log.read(STORE, log.start_offset(STORE))) == 14
    with closing(rewriting_task(tmp_path, log)) as task:
        [report] = task.open()
        assert not report.wiped
        assert shown(task) == expected(12)


@pytest.mark.parametrize("guarantee", ProcessingGuarantee)
def test_a_rewriting_that_was_stopped_is_fenced_by_the_next_instance(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, guarantee: ProcessingGuarantee
) -> None:
    """It has sent nothing yet, so the changelog does not show it. Its old records would come after new ones."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log, guarantee=guarantee), 8)
    commit = BufferedProducer.commit

    def stopped(producer: BufferedProducer) -> Any:
        if producer._identity is not None and producer._identity.transactional_id == OWN:
            monkeypatch.undo()
            work(new_task(tmp_path / "next", log), 8)
        return commit(producer)

    monkeypatch.setattr(BufferedProducer, "commit", stopped)
    with pytest.raises(ProducerFencedError):
        rewriting_task(tmp_path, log, guarantee=guarantee).open()
    with closing(new_task(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(16)


def test_a_changelog_to_which_another_instance_writes_is_not_rewritten(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has been restored before that: it would be moved behind records that it lacks."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 8)
    open_producer, opened = MemoryChangelog.producer, []

    def later(self: MemoryChangelog, transactional_id: str | None = None, timeout_s: float | None = None) -> Any:
        opened.append((transactional_id, timeout_s))
        # The second one is that of the rewriting, which may take longer than a commit.
        if opened == [(OWN, None), (OWN, log_format.TRANSACTION_S)]:
            work(new_task(tmp_path / "next", log), 8)
        return open_producer(self, transactional_id, timeout_s)

    monkeypatch.setattr(MemoryChangelog, "producer", later)
    with pytest.raises(ProducerFencedError, match="another instance of the task has written to it"):
        rewriting_task(tmp_path, log).open()
    monkeypatch.undo()
    with closing(rewriting_task(tmp_path, log)) as task:
        task.open()
        assert shown(task) == expected(16)


def test_a_task_in_the_transaction_of_its_thread_goes_on_after_it(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 8)
    with closing(rewriting_task(tmp_path, log, transaction=ThreadTransaction(log, "thread"))) as task:
        task.open()
        task.run(4, commit=True)
    with closing(restored(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(12)
