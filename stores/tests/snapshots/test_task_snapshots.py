"""A task that has lost its store begins from the files of a snapshot, and replays the tail of its changelog."""

from __future__ import annotations

import logging
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.errors import ConfigError, ProducerFencedError
from stores.files.folder import LocalFolder
from stores.interface import Durability
from stores.snapshots import Snapshots
from stores.snapshots.objects import FILES, INDEX
from stores.tasks import RestoreProgress, StoreConfig
from stores.tests.changelog.records import MANY
from stores.tests.snapshots.snapshotting import (
    CHANGELOG,
    RECORDS,
    SNAPPED,
    WITHIN_S,
    commit,
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
    store_path,
    wait,
)
from stores.tests.tasks.setup import AT_LEAST_ONCE, DIRECT, INDEXED, MEMORY, Crash, logged, state

over_each_backend = pytest.mark.parametrize("backend", SNAPPED)
over_each_engine = pytest.mark.parametrize("backend", [INDEXED, "lmdb-indexed-batch", "sqlite-indexed-batch"])


def begun(folder: Path, log: Changelog, backend: str, snapshots: Snapshots, records: int = RECORDS) -> int:
    """Let a task take a snapshot, and close it; return the snapshot's offset."""
    task = snapping(folder, log, backend, snapshots)
    task.open()
    send(log, pairs_of(range(records)))
    offset = snap(task, log)
    task.close()
    return offset


@over_each_backend
@pytest.mark.parametrize("objects", [False, True], ids=["local folder", "object store"])
def test_a_lost_store_is_restored_by_files_and_the_tail(
    tmp_path: Path,
    log: Changelog,
    backend: str,
    objects: bool,
) -> None:
    snapshots = settings(tmp_path, objects=objects)
    task = snapping(tmp_path, log, backend, snapshots)
    task.open()
    send(log, pairs_of(range(RECORDS)))
    offset = snap(task, log)
    send(log, [*pairs_of(range(10), b"later"), *((key, b"") for key, _ in pairs_of(range(20, 25)))])
    task.run(commit=True)
    expected = state(task, "s")
    task.close()
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert restored == expected == logged(log, "s")
    assert (report.snapshot_offset, report.wiped, report.reason) == (report.from_offset - 1, False, None)
    assert report.snapshot_offset is not None
    assert report.snapshot_offset >= offset
    assert report.records <= 16
    assert report.snapshot_bytes > 0
    assert report.to_offset == log.end_offset(CHANGELOG)
    assert not (store_path(tmp_path, backend) / "data.snapshot").exists()


@pytest.mark.parametrize(
    ("backend", "step", "objects_max", "bytes_max"),
    [
        # Of one percent of the records, which have 47 KB of 5 MB; tables are sent whole, the other files in pieces.
        (INDEXED, 1, 6, 80_000),
        (INDEXED, 100, 6, 80_000),
        *((backend, step, 1, 60_000) for backend in ("lmdb", "sqlite") for step in (1, 100)),
    ],
)
def test_the_next_snapshot_sends_only_what_has_changed(
    tmp_path: Path, log: Changelog, backend: str, step: int, objects_max: int, bytes_max: int
) -> None:
    """One percent of the keys has changed: ``step`` lies between two of them."""
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, backend, snapshots)
    task.open()
    send(log, pairs_of(range(4_000), b"value" * 230))
    first = snap(task, log)
    objects = objects_in(snapshots)
    whole = objects.index(objects.indexes()[0])
    assert whole.num_bytes > 4 << 20
    before = task.metrics.stores["s"]
    send(log, pairs_of(range(0, 40 * step, step), b"other" * 230))
    assert snap(task, log) > first
    sent = task.metrics.stores["s"].since(before)
    assert sent.snapshot_total == 1
    assert 0 < sent.snapshot_sent_objects_total <= objects_max
    assert 0 < sent.snapshot_sent_bytes_total <= bytes_max
    assert len(objects.sizes()) == len({*whole.parts(), *objects.index(objects.indexes()[0]).parts()})
    task.close()
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert restored == logged(log, "s")
    assert report.snapshot_offset is not None


@over_each_engine
@pytest.mark.parametrize("gone", ["", FILES, INDEX])
def test_after_somebody_has_removed_a_folder_the_next_snapshot_sends_everything(
    tmp_path: Path, log: Changelog, backend: str, gone: str
) -> None:
    """Tables of RocksDB stay the same, and the task knows that it has sent them."""
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, backend, snapshots)
    task.open()
    send(log, pairs_of(range(2_000)))
    snap(task, log)
    shutil.rmtree(tmp_path / "snapshots/app-s-changelog-0" / gone)
    offset = snap(task, log)
    task.close()
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert (restored, report.snapshot_offset, report.reason) == (logged(log, "s"), offset, None)


@pytest.mark.parametrize("backend", [INDEXED, "sqlite-indexed-batch"])
def test_a_snapshot_of_an_earlier_changelog_does_not_hide_what_was_sent_since(tmp_path: Path, backend: str) -> None:
    """It keeps its higher offset, so that each opening of the task would send the whole store again."""
    snapshots = settings(tmp_path)
    for records in (5_000, 2_000):
        with MemoryChangelog() as log:
            for topic in ("input", "output"):
                log.create_topic(topic)
            task = snapping(tmp_path, log, backend, snapshots)
            task.open()
            send(log, pairs_of(range(records), random.Random(7).randbytes(1_000)))
            offset = snap(task, log)
            task.close()
            if records == 2_000:
                task = snapping(tmp_path, log, backend, snapshots)
                task.open()
                assert snap(task, log) > offset
                assert 0 < task.metrics.stores["s"].snapshot_sent_bytes_total < 1_500_000
                task.close()
        lose(tmp_path)


def test_a_snapshot_of_an_unchanged_store_is_not_taken_again(tmp_path: Path, log: Changelog) -> None:
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, "lmdb", snapshots)
    task.open()
    send(log, pairs_of(range(10)))
    snap(task, log)
    for _ in range(3):
        send(log, [(b"gone", b"")])  # A delete of a missing key is logged, so the offset moves on.
        commit(task)
    taken = task.metrics.stores["s"].snapshot_total
    assert taken == 4
    for _ in range(3):
        task.commit()
        wait(task)
    assert task.metrics.stores["s"].snapshot_total == taken
    task.close()


@over_each_backend
def test_uncommitted_writes_are_in_no_snapshot(tmp_path: Path, log: Changelog, backend: str) -> None:
    """Not even if the transaction outgrows its memory, and is spilled."""
    snapshots = settings(tmp_path)
    options = {} if backend.endswith("native") else {"staging_buffer_bytes": 2_000, "copy_part_bytes": 1_000}
    stores = {"s": StoreConfig(backend, options=options)}
    task = snapping(tmp_path, log, backend, snapshots, stores=stores)
    task.open()
    send(log, pairs_of(range(RECORDS)))
    snap(task, log)
    expected = logged(log, "s")
    send(log, pairs_of(range(RECORDS, 2 * RECORDS)))
    task.run()
    assert len(state(task, "s")) > len(expected)
    wait(task)
    task.close(clean=False)
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert (restored, report.records) == (expected, 0)


@over_each_engine
def test_newer_local_state_wins(tmp_path: Path, log: Changelog, backend: str) -> None:
    snapshots = settings(tmp_path)
    begun(tmp_path, log, backend, snapshots)
    shutil.rmtree(tmp_path / "snapshots")
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert (report.snapshot_offset, report.records, report.reason) == (None, 0, None)
    assert restored == logged(log, "s")


def test_a_standby_begins_from_a_snapshot(tmp_path: Path, log: Changelog) -> None:
    snapshots = settings(tmp_path)
    begun(tmp_path, log, INDEXED, snapshots)
    copy_folder = tmp_path / "other machine"
    owner = snapping(copy_folder, log, INDEXED, snapshots)
    copy = owner.standby()
    copy.open()
    assert copy.follow(5) == 0
    assert owner.metrics.stores["s"].snapshot_restore_total == 1
    assert owner.metrics.stores["s"].restore_total <= 5
    copy.close()
    [report] = owner.open()
    assert report.records == 0
    assert state(owner, "s") == logged(log, "s")
    owner.close()


def test_a_standby_begins_from_a_snapshot_of_a_commit_that_is_not_visible_yet(tmp_path: Path, log: Changelog) -> None:
    """An open transaction hides what was committed after it. Kafka makes each commit visible a moment later."""
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, INDEXED, snapshots)
    task.open()
    with log.producer("open") as still_open:
        still_open.begin()
        for _ in range(MANY):
            still_open.send(CHANGELOG, b"open", b"")
        send(log, pairs_of(range(RECORDS)))
        offset = snap(task, log)
        task.close()
        assert log.end_offset(CHANGELOG) == 0 < offset
        owner = snapping(tmp_path / "other machine", log, INDEXED, snapshots)
        copy = owner.standby()
        copy.open()
        assert copy.follow(5) == 0
        assert copy.offsets() == {CHANGELOG: offset}
        copy.close()
        still_open.abort()
    [report] = owner.open()
    assert (report.records, report.wiped) == (0, False)
    assert state(owner, "s") == logged(log, "s")
    owner.close()


def test_a_closed_task_leaves_neither_threads_nor_files(tmp_path: Path, log: Changelog) -> None:
    """The first part of the snapshot has the time of ten seconds or more at this rate."""
    snapshots = settings(tmp_path, max_bytes_per_s=100_000)
    threads = set(threading.enumerate())
    for backend in (INDEXED, "lmdb", "sqlite-native"):
        task = snapping(tmp_path / backend, log, backend, snapshots)
        task.open()
        send(log, pairs_of(range(20_000), b"value" * 40))
        for number in range(500):
            send(log, [(b"tick", b"%d" % number)])
            task.run(commit=True)
            if any(thread.name == "snapshot" for thread in threading.enumerate()):
                break
        task.close()
        assert set(threading.enumerate()) <= threads
        assert not (store_path(tmp_path / backend, backend) / "data.snapshot").exists()
        assert objects_in(snapshots).indexes() == []
        log = MemoryChangelog()
        for topic in ("input", "output"):
            log.create_topic(topic)


@pytest.mark.parametrize("backend", [INDEXED, "lmdb", "sqlite-native"])
def test_a_store_that_is_wiped_ends_its_upload(tmp_path: Path, log: Changelog, backend: str) -> None:
    """A copy of a file that is removed, and made again under its name, would be of two stores."""
    threads = set(threading.enumerate())
    task = snapping(tmp_path, log, backend, settings(tmp_path, max_bytes_per_s=100_000))
    task.open()
    send(log, pairs_of(range(20_000), b"value" * 40))
    deadline = time.monotonic() + WITHIN_S
    while not any(thread.name == "snapshot" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "no snapshot was begun in time"
        send(log, [(b"tick", b"")])
        task.run(commit=True)
    [store] = task._stores._stores
    store.wipe("for this test")
    assert set(threading.enumerate()) <= threads
    assert not (store_path(tmp_path, backend) / "data.snapshot").exists()
    task.close()


def test_snapshots_that_fail_are_counted_and_the_task_continues(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = settings(tmp_path)
    (tmp_path / "snapshots").write_text("not a folder")
    task = snapping(tmp_path, log, "lmdb", snapshots)
    task.open()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            send(log, pairs_of([number]))
            commit(task)
    assert (task.metrics.stores["s"].snapshot_total, task.metrics.stores["s"].snapshot_failed_total) == (0, 3)
    assert len(caplog.records) == 3
    (tmp_path / "snapshots").unlink()
    snap(task, log)
    task.close()
    lose(tmp_path)
    assert reopened(tmp_path, log, "lmdb", snapshots)[0] == logged(log, "s")


@pytest.mark.parametrize("backend", [DIRECT])
def test_stores_that_mix_uncommitted_writes_with_committed_ones_are_refused(
    tmp_path: Path, log: Changelog, backend: str
) -> None:
    with pytest.raises(ConfigError):
        snapping(tmp_path, log, backend, settings(tmp_path))


def test_tasks_at_least_once_are_refused(tmp_path: Path, log: Changelog) -> None:
    with pytest.raises(ConfigError):
        snapping(tmp_path, log, INDEXED, settings(tmp_path), guarantee=AT_LEAST_ONCE)


def test_changelogs_that_do_not_tell_their_topics_are_refused(tmp_path: Path) -> None:
    class Nameless(MemoryChangelog):
        topic_id = Changelog.topic_id

    with pytest.raises(ConfigError):
        snapping(tmp_path, Nameless(), INDEXED, settings(tmp_path))


def test_a_store_in_memory_has_no_snapshots(tmp_path: Path, log: Changelog) -> None:
    task = snapping(tmp_path, log, MEMORY, settings(tmp_path))
    task.open()
    send(log, pairs_of(range(3)))
    commit(task)
    task.close()
    assert not (tmp_path / "snapshots").exists()


@pytest.mark.parametrize("level", list(Durability))
def test_snapshots_are_taken_at_each_level_of_durability(tmp_path: Path, log: Changelog, level: Durability) -> None:
    snapshots = settings(tmp_path)
    for backend in (INDEXED, "lmdb", "sqlite"):
        stores = {"s": StoreConfig(backend, level)}
        folder = tmp_path / backend
        task = snapping(folder, log, backend, snapshots, stores=stores)
        task.open()
        send(log, pairs_of(range(RECORDS)))
        snap(task, log)
        task.close()
        lose(folder)
        task = snapping(folder, log, backend, snapshots, stores=stores)
        [report] = task.open()
        assert report.snapshot_offset is not None
        assert state(task, "s") == logged(log, "s")
        task.close()
        shutil.rmtree(tmp_path / "snapshots")


def test_two_owners_that_put_a_snapshot_of_the_same_commit_leave_one_index(tmp_path: Path) -> None:
    """The second one is a zombie, which has the state of the last commit, and is fenced before its next one."""
    snapshots = settings(tmp_path)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        for topic in ("input", "output"):
            log.create_topic(topic)
        zombie = snapping(tmp_path / "zombie", log, "lmdb", None)
        zombie.open()
        send(log, pairs_of(range(RECORDS)))
        zombie.run(commit=True)
        store = zombie._stores._stores[0]
        owner = snapping(tmp_path, log, "lmdb", snapshots)
        owner.open()
        offset = snap(owner, log)
        late = snapping(tmp_path / "late", log, "lmdb", snapshots)._stores._stores[0].snapshots
        late.begin()
        assert store.offset is not None
        late.after_commit(store.store, {CHANGELOG: store.offset})
        assert late.wait(WITHIN_S)
        assert late.figures.total == 1
        assert store.offset is not None
        assert store.offset < offset
        send(log, pairs_of([1], b"lost"))
        with pytest.raises(ProducerFencedError):
            zombie.run(commit=True)
        owner.run(commit=True)
        owner.close()
        lose(tmp_path)
        restored, report = reopened(tmp_path, log, "lmdb", snapshots)
        assert restored == logged(log, "s")
        assert report.snapshot_offset is not None
        assert report.snapshot_offset >= offset
        # A second index of one commit is refused: its name is taken.
        objects = objects_in(snapshots)
        assert not objects.put_index(objects.index(objects.indexes()[0]))


def test_each_partition_has_its_own_snapshots(tmp_path: Path, log: Changelog) -> None:
    snapshots = settings(tmp_path)
    assert LocalFolder(tmp_path / "snapshots").folders() == []
    begun(tmp_path, log, "lmdb", snapshots)
    assert snapshots.folder.folders() == ["app-s-changelog-0"]
    assert snapshots.folder.folders("app-s-changelog-0") == [FILES, INDEX]


def test_a_restore_by_files_tells_its_progress_and_can_be_interrupted(tmp_path: Path, log: Changelog) -> None:
    """A worker whose task is taken away raises from there."""
    snapshots = settings(tmp_path)
    offset = begun(tmp_path, log, INDEXED, snapshots)
    lose(tmp_path)
    told: list[RestoreProgress] = []

    def interrupt(progress: RestoreProgress) -> None:
        told.append(progress)
        if len(told) == 2:
            raise Crash

    task = snapping(tmp_path, log, INDEXED, snapshots, on_restore=interrupt)
    threads = set(threading.enumerate())
    with pytest.raises(Crash):
        task.open()
    assert set(threading.enumerate()) == threads
    assert [progress.records for progress in told] == [0, 0]
    assert 0 < told[0].bytes < told[1].bytes
    assert told[0].offset <= told[1].offset <= offset < told[1].to_offset
    [report] = task.open()
    assert told[-1].bytes == report.snapshot_bytes
    assert (report.snapshot_offset, state(task, "s")) == (offset, logged(log, "s"))
    task.close()


@over_each_engine
def test_a_snapshot_that_must_wait_for_its_turn_begins_after_a_later_commit(
    tmp_path: Path, log: Changelog, backend: str
) -> None:
    """Else the files of stores that wait would grow with each commit."""
    snapshots = settings(tmp_path)
    task = snapping(tmp_path, log, backend, snapshots)
    task.open()
    while snapshots.turns.acquire(blocking=False):
        pass
    for number in range(3):
        send(log, pairs_of([number]))
        commit(task)
        assert not (store_path(tmp_path, backend) / "data.snapshot").exists()
    metrics = task.metrics.stores["s"]
    assert (metrics.snapshot_total, metrics.snapshot_failed_total) == (0, 0)
    snapshots.turns.release()
    for total in (1, 2, 3):
        snap(task, log)
        assert task.metrics.stores["s"].snapshot_total == total
    task.close()


def test_the_interval_lies_between_two_snapshots(tmp_path: Path, log: Changelog) -> None:
    task = snapping(tmp_path, log, "lmdb", settings(tmp_path, interval_ms=3_600_000))
    task.open()
    for number in range(3):
        send(log, pairs_of([number]))
        commit(task)
    assert task.metrics.stores["s"].snapshot_total == 0
    task._stores._stores[0].snapshots._taker._due_s = 0.0  # type: ignore[attr-defined]
    for number in range(3):
        send(log, pairs_of([number], b"other"))
        commit(task)
    assert task.metrics.stores["s"].snapshot_total == 1
    task.close()
