"""The restore from changelogs when a task is opened: the tail, or everything if store and changelog do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from stores import open_store
from stores.changelog import Changelog, MemoryChangelog, Record
from stores.config import StoreConfig
from stores.interface import TopicPartition
from stores.memory_limit import LEAST_BYTES, parts_of
from stores.tasks import RestoreProgress, TaskContext
from stores.tasks.stores.log_follower import restore
from stores.tasks.stores.log_format import Conversion
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    LEFT,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    over_each_changelog,
    single,
    state,
)


@pytest.mark.parametrize("left", [INDEXED, DIRECT])
def test_a_store_that_is_ahead_of_its_changelog_is_wiped_and_restored(
    tmp_path: Path, log: MemoryChangelog, left: str
) -> None:
    """Source: KIP-892, offset out of range."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, left)
    task.open()
    task.run()
    task.close()
    with MemoryChangelog() as other:
        feed(other, [1, 1])
        task = counting_task(tmp_path / "elsewhere", other, left)
        task.open()
        task.run(1)
        task.close()
        task = counting_task(tmp_path, other, left)
        reports = task.open()
        assert [(report.wiped, report.records) for report in reports] == [(True, 1)] * 2
        assert all(report.reason for report in reports)
        assert state(task, "left") == expected_state([1])
        task.run()
        task.close()
        assert outputs(other) == expected_outputs([1, 1])


@pytest.mark.parametrize("left", [INDEXED, DIRECT])
def test_a_store_that_its_truncated_changelog_no_longer_reaches_is_wiped_and_restored(
    tmp_path: Path, log: MemoryChangelog, left: str
) -> None:
    """Source: KIP-892, offset out of range."""
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, left, INDEXED)
    task.open()
    task.run(1)
    task.close()
    with log.producer() as producer:
        for number in range(5):
            producer.send(LEFT, b"%d" % number, b"9")
        producer.flush()
    log.truncate(LEFT, 3)
    reported, other = task.open()
    assert (reported.wiped, reported.from_offset, reported.records, other.wiped) == (True, 3, 3, False)
    assert state(task, "left") == {b"2": b"9", b"3": b"9", b"4": b"9"}
    task.close()


def test_a_corrupted_store_is_wiped_and_restored_with_the_reason_reported(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log, "sqlite-indexed-batch")
    task.open()
    task.run()
    task.close()
    for file in (tmp_path / "state" / "0_0" / "sqlite" / "left" / "data").iterdir():
        file.write_bytes(b"garbage " * 2_000)
    left, right = task.open()
    assert (left.wiped, left.records, right.wiped) == (True, 2, False)
    assert isinstance(left.reason, str)
    assert state(task, "left") == state(task, "right") == expected_state([1, 2])
    task.close()


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_a_lost_store_is_restored_from_the_start_in_bounded_pieces_that_tell_how_far_they_are(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 10)
    reports: list[RestoreProgress] = []
    task = single(tmp_path, log, lambda record, context: None, INDEXED, on_restore=reports.append)
    partition = TopicPartition("app-s-changelog", 0)
    log.create_topic("app-s-changelog")
    with log.producer() as producer:
        for number in range(25):
            producer.send(partition, b"%02d" % number, b"abc")
        producer.flush()
    [report] = task.open()
    assert [(progress.offset, progress.to_offset, progress.records, progress.bytes) for progress in reports] == [
        (9, 25, 10, 50),
        (19, 25, 20, 100),
        (24, 25, 25, 125),
    ]
    assert (report.store, report.from_offset, report.to_offset, report.records, report.bytes) == ("s", 0, 25, 25, 125)
    assert report.seconds > 0
    assert not report.wiped
    task.close()


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
def test_a_restore_keeps_its_pieces_below_a_number_of_bytes(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_BYTES_MAX", 1_000)
    reports: list[RestoreProgress] = []
    task = single(tmp_path, log, lambda record, context: None, INDEXED, on_restore=reports.append)
    log.create_topic("app-s-changelog")
    with log.producer() as producer:
        for number in range(6):
            producer.send(TopicPartition("app-s-changelog", 0), b"%d" % number, bytes(499))
        producer.flush()
    task.open()
    assert [(progress.records, progress.bytes) for progress in reports] == [(2, 1_000), (4, 2_000), (6, 3_000)]
    task.close()


def limited_restores(folder: Path, sizes: list[int], on_piece: Callable[[], None] = lambda: None) -> list[int]:
    """Restore records with values of these sizes with the least limit on memory; return the records of each piece."""
    log, pieces = MemoryChangelog(), [0]
    log.create_topic("app-s-changelog")
    with log.producer() as producer:
        for number, size in enumerate(sizes):
            producer.send(TopicPartition("app-s-changelog", 0), b"%06d" % number, bytes(size - 6))
        producer.flush()

    def restored(progress: RestoreProgress) -> None:
        pieces.append(progress.records)
        on_piece()

    stores = {"s": StoreConfig(INDEXED, memory_max_bytes=LEAST_BYTES)}
    with closing(single(folder, log, lambda record, context: None, stores=stores, on_restore=restored)) as task:
        task.open()
    return [after - before for before, after in pairwise(pieces)]


def test_the_pieces_of_all_restores_at_a_time_keep_to_their_part_of_the_limit_on_memory(tmp_path: Path) -> None:
    """Each piece is counted three times, and a record as 400 bytes of objects."""
    restore_bytes = parts_of(LEAST_BYTES).restore_bytes
    large, small = [restore_bytes // 12 + 1] * 8, [10] * (restore_bytes // 400 + 100)
    assert limited_restores(tmp_path / "alone", large) == [4, 4]
    assert limited_restores(tmp_path / "records", small) == [restore_bytes // 400, 100]
    beside: list[list[int]] = []

    def open_another() -> None:
        beside.append(limited_restores(tmp_path / f"beside {len(beside)}", large))

    assert limited_restores(tmp_path / "first", large, open_another) == [4, 4]
    assert beside == [[2] * 4] * 2


def test_a_restore_that_fails_leaves_its_part_of_memory_to_others(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyError

    large = [parts_of(LEAST_BYTES).restore_bytes // 12 + 1] * 8
    with pytest.raises(KeyError):
        limited_restores(tmp_path / "failing", large, fail)
    assert limited_restores(tmp_path / "other", large) == [4, 4]


@over_each_changelog
@pytest.mark.parametrize("at_once", [1, 4, 25])
def test_a_restore_of_so_many_records_goes_on_behind_them(tmp_path: Path, log: Changelog, at_once: int) -> None:
    partition = TopicPartition("input", 0)
    with log.producer() as producer:
        for number in range(25):
            producer.send(partition, b"%d" % (number % 9) if number % 8 else None, b"%d" % number)
        producer.flush()
    with open_store(INDEXED, tmp_path / "store") as store:
        bound, offset, pieces = ReplayBound(-1), None, list[int | None]()
        bound.follow(store.persistence)
        while offset != 24:
            conversion = Conversion(store, None, None)
            done = restore(store, log, partition, offset, {}, None, bound, conversion, max_records=at_once)
            assert done.cut == (done.last_offset == done.from_offset + at_once - 1)
            offset = done.last_offset
            pieces.append(offset)
        assert pieces == [min(number + at_once, 25) - 1 for number in range(0, 25, at_once)]
        with store.all() as pairs:
            last = {b"%d" % (number % 9): b"%d" % number for number in range(25) if number % 8}
            assert dict(pairs) == last


def test_a_range_delete_of_many_keys_is_restored_whole(tmp_path: Path, log: MemoryChangelog) -> None:
    """Each key that it removes is a tombstone of its own in the changelog, however many there are."""

    def process(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        if record.offset == 0:
            store.put_all([(b"%04d" % number, b"v") for number in range(2_500)])
        else:
            store.delete_range(b"0010", b"2489")

    feed(log, [0, 1])
    task = single(tmp_path, log, process, INDEXED)
    task.open()
    task.run(1)
    task.commit()
    task.run(1)
    content = state(task, "s")
    assert len(content) == 20
    task.close()
    shutil.rmtree(tmp_path / "state")
    task.open()
    assert state(task, "s") == content
    task.close()


def test_restoring_ends_where_aborted_records_and_gaps_are_all_that_is_left(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-98, control records and aborted records leave gaps."""
    partition = TopicPartition("app-s-changelog", 0)
    log.create_topic("app-s-changelog")
    with log.producer("other") as producer:
        for key in (b"a", b"a", b"b"):
            producer.begin()
            producer.send(partition, key, b"committed")
            producer.commit()
        producer.begin()
        for _ in range(10_001):
            producer.send(partition, b"a", b"aborted")
        producer.abort()
    log.compact(partition)
    task = single(tmp_path, log, lambda record, context: None, INDEXED)
    for records in (2, 0):
        [report] = task.open()
        assert (report.records, report.wiped) == (records, False)
        assert report.to_offset == log.end_offset(partition) > 3
        assert dict(task.store("s").all()) == {b"a": b"committed", b"b": b"committed"}
        task.close()


def test_a_restore_counts_records_with_a_key_only_and_moves_past_the_others(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    task = counting_task(tmp_path, log, INDEXED)
    task.open()
    task.close()
    with log.producer() as producer:
        for key in (None, b"1", None, b"2", None):
            producer.send(LEFT, key, b"9")
        producer.flush()
    left, _ = task.open()
    assert (left.records, left.bytes, left.to_offset) == (2, 4, 5)
    assert state(task, "left") == {b"1": b"9", b"2": b"9"}
    task.close()
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    task.close()
