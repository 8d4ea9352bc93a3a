"""A task takes over the stores that Kafka Streams has left, with their offsets, or restores them and says why.

``test_streams`` does it with a state directory of Kafka's own program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record
from stores.errors import ChangelogLostError, StoreLockedError
from stores.interface import IsolationLevel, TopicPartition
from stores.tasks import DirectoryLayout, StreamTask, TaskContext, change_layout
from stores.tasks.directory.replacement import DECIDED
from stores.tasks.directory.store_places import ENDS, beside
from stores.tasks.stores import takeover
from stores.tests.tasks.directory.relocating import failing_at
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    INPUT,
    LEFT,
    MEMORY,
    RIGHT,
    Crash,
    counting_task,
    crashing_at,
    expected_outputs,
    expected_state,
    feed,
    logging_all,
    outputs,
    state,
    store_folder,
)
from stores.tests.tasks.streams_folder import all_files, leave_offsets, leave_store, streams_folder, task_folder

LMDB = "lmdb-indexed-batch"
BACKENDS = [INDEXED, "rocksdb-dual-store", LMDB, "lmdb-native", "sqlite-native"]
KEYS = [1, 2, 1]
ELSEWHERE = TopicPartition("elsewhere", 3)


def left_by_streams(folder: Path, log: Changelog, offset: int | None = 2, end: int = 3) -> None:
    """Leave both stores of the counting task, with the first ``end`` records, as if Kafka Streams had done its work."""
    feed(log, KEYS)
    with closing(counting_task(folder, log, MEMORY)) as task:
        task.open()
        task.run(commit=True)
    for name in ("left", "right"):
        leave_store(streams_folder(folder, name), expected_state(KEYS[:end]))
    file = task_folder(folder) / ".checkpoint"
    file.unlink(missing_ok=True)
    if offset is not None:
        leave_offsets(file, {LEFT: offset, RIGHT: offset})


def opened(task: StreamTask) -> list[tuple[bool, int]]:
    return [(report.wiped, report.records) for report in task.open()]


def check_and_count_on(folder: Path, log: Changelog, backend: str, expected: list[tuple[bool, int]]) -> None:
    """Open the task, compare the reports and the state, count three more, and open it again."""
    before = len(outputs(log))
    with closing(counting_task(folder, log, backend)) as task:
        assert opened(task) == expected
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)
        feed(log, [1, 3, 2])
        task.run(commit=True)
    with closing(counting_task(folder, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == state(task, "right") == expected_state([*KEYS, 1, 3, 2])
    assert before == len(KEYS)
    assert outputs(log) == expected_outputs([*KEYS, 1, 3, 2])
    assert_nothing_is_left(folder, backend)


def assert_nothing_is_left(folder: Path, backend: str) -> None:
    for name in ("left", "right"):
        for path in (streams_folder(folder, name), store_folder(folder, backend, name)):
            assert not (path / "CURRENT").exists()
            assert not any(os.path.lexists(beside(path, end)) for end in ENDS)
        assert streams_folder(folder, name).exists() == (streams_folder(folder, name) == path)
    assert list(task_folder(folder).rglob("*.position")) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_stores_of_kafka_streams_are_taken_over_with_their_offsets_and_positions(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-892, "Upgrading"; KIP-796."""
    left_by_streams(tmp_path, log)
    leave_offsets(task_folder(tmp_path) / "left.position", {INPUT: 2, ELSEWHERE: 5})
    with closing(counting_task(tmp_path, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert task.changelog_offsets() == {LEFT: 2, RIGHT: 2}
        assert task._context.store("left").position(IsolationLevel.READ_COMMITTED) == {INPUT: 2, ELSEWHERE: 5}
    check_and_count_on(tmp_path, log, backend, [(False, 0)] * 2)


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_the_changelog_s_tail_is_restored_after_the_offset_of_the_checkpoint(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    left_by_streams(tmp_path, log, offset=1, end=2)
    check_and_count_on(tmp_path, log, backend, [(False, 1)] * 2)


def test_a_store_larger_than_a_piece_is_copied_whole(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_streams(tmp_path, log)
    monkeypatch.setattr(takeover, "PIECE_BYTES", 1)
    check_and_count_on(tmp_path, log, INDEXED, [(False, 0)] * 2)


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_an_opening_cut_short_at_any_change_of_a_file_keeps_the_records(tmp_path: Path, backend: str) -> None:
    """Also within the removal of Kafka's files. Every third change is tried."""
    number = tried = 0
    while True:
        number += 3
        folder = tmp_path / str(number)
        with MemoryChangelog() as log:
            left_by_streams(folder, log)
            try:
                with failing_at(number, []):
                    counting_task(folder, log, backend).open()
            except Crash:
                tried += 1
            else:
                break
            with closing(counting_task(folder, log, backend)) as task:
                assert opened(task) == [(False, 0)] * 2
                assert state(task, "left") == state(task, "right") == expected_state(KEYS)
            assert_nothing_is_left(folder, backend)
    assert tried > 20


@pytest.mark.parametrize("backend", [INDEXED, LMDB, DIRECT])
def test_without_an_offset_the_store_is_restored_whole_and_the_report_says_why(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    left_by_streams(tmp_path, log, offset=None)
    leave_offsets(task_folder(tmp_path) / "left.position", {INPUT: 2, ELSEWHERE: 5})
    with closing(counting_task(tmp_path, log, backend)) as task:
        reports = task.open()
        assert [(report.wiped, report.records) for report in reports] == [(True, 3)] * 2
        assert all("Kafka Streams" in str(report.reason) for report in reports)
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    assert_nothing_is_left(tmp_path, backend)


def damage_tables(path: Path) -> None:
    for file in path.glob("*.sst"):
        file.write_bytes(bytes(file.stat().st_size))


def damage_manifest(path: Path) -> None:
    [file] = path.glob("MANIFEST-*")
    file.write_bytes(file.read_bytes()[:-3])


def damage_current(path: Path) -> None:
    (path / "CURRENT").write_bytes(b"nothing\n")


def damage_log(path: Path) -> None:
    [file] = path.glob("*.log")
    file.write_bytes((bytes(6) + b"\x09") * 2)


@pytest.mark.parametrize("damage", [damage_tables, damage_manifest, damage_current, damage_log])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_damaged_store_is_restored_whole(tmp_path: Path, log: MemoryChangelog, backend: str, damage: object) -> None:
    left_by_streams(tmp_path, log)
    assert callable(damage)
    damage(streams_folder(tmp_path, "left"))
    check_and_count_on(tmp_path, log, backend, [(True, 3), (False, 0)])


def test_a_store_without_the_changelog_record_of_its_offset_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Of another application, say, or with writes after its last checkpoint."""
    left_by_streams(tmp_path, log, offset=2, end=2)
    check_and_count_on(tmp_path, log, INDEXED, [(True, 3)] * 2)


@pytest.mark.parametrize("remove", [lambda log: log.compact(LEFT), lambda log: log.truncate(LEFT, 1)])
def test_a_store_whose_last_record_the_changelog_has_removed_is_taken_over(
    tmp_path: Path, log: MemoryChangelog, remove: Callable[[MemoryChangelog], int]
) -> None:
    left_by_streams(tmp_path, log, offset=0, end=1)
    assert remove(log) == 1
    check_and_count_on(tmp_path, log, INDEXED, [(False, 2)] * 2)


def test_a_last_record_without_a_key_is_not_missed(tmp_path: Path, log: MemoryChangelog) -> None:
    """No store has such a record."""
    left_by_streams(tmp_path, log)
    with log.producer() as producer:
        producer.send(LEFT, None, b"x")
        producer.flush()
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LEFT: 3, RIGHT: 2})
    check_and_count_on(tmp_path, log, INDEXED, [(False, 0)] * 2)


@contextmanager
def locked_elsewhere(file: Path) -> Iterator[None]:
    """Hold a record lock on ``file`` in another process, as Java's ``FileLock`` and RocksDB do."""
    program = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(); input()"
    command = [sys.executable, "-u", "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        yield
        holder.communicate(b"\n", timeout=600)


@pytest.mark.parametrize("file", ["0_0/rocksdb/left/LOCK", ".lock"])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_store_that_kafka_streams_has_open_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, backend: str, file: str
) -> None:
    left_by_streams(tmp_path, log)
    (tmp_path / "state" / ".lock").touch()
    (task_folder(tmp_path) / ".lock").unlink(missing_ok=True)
    before = all_files(tmp_path / "state")
    with locked_elsewhere(tmp_path / "state" / file), closing(counting_task(tmp_path, log, backend)) as task:
        with pytest.raises(StoreLockedError):
            task.open()
        after = all_files(tmp_path / "state")
        assert {name: after[name] for name in before} == before
        assert {name.split("/")[-1] for name in after.keys() - before.keys()} <= {".lock"}
    check_and_count_on(tmp_path, log, backend, [(False, 0)] * 2)


def test_a_decided_takeover_waits_while_kafka_streams_has_its_folder_open_again(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    left_by_streams(tmp_path, log)
    with crashing_at(DECIDED):
        counting_task(tmp_path, log).open()
    path = streams_folder(tmp_path, "left")
    before = all_files(path)
    with locked_elsewhere(path / "LOCK"), closing(counting_task(tmp_path, log)) as task:
        with pytest.raises(StoreLockedError):
            task.open()
        assert all_files(path) == before
    check_and_count_on(tmp_path, log, INDEXED, [(False, 0)] * 2)


def test_records_of_kafka_streams_outlive_an_empty_changelog(tmp_path: Path, log: MemoryChangelog) -> None:
    """It is that of another cluster, say."""
    leave_store(streams_folder(tmp_path, "left"), {b"1": b"1"})
    before = all_files(tmp_path / "state")
    with closing(counting_task(tmp_path, log)) as task, pytest.raises(ChangelogLostError):
        task.open()
    after = all_files(tmp_path / "state")
    assert {name: after[name] for name in before} == before


def test_a_foreign_file_beside_those_of_rocksdb_stays(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    (streams_folder(tmp_path, "left") / "letter").write_text("dear")
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(False, 0)] * 2
    assert (streams_folder(tmp_path, "left") / "letter").read_text() == "dear"


def test_a_window_store_of_kafka_streams_stays_and_ours_is_restored_from_the_changelog(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    left_by_streams(tmp_path, log)
    segments = task_folder(tmp_path) / "left"
    streams_folder(tmp_path, "left").rename(task_folder(tmp_path) / "left.0")
    segments.mkdir()
    (task_folder(tmp_path) / "left.0").rename(segments / "left.0")
    before = all_files(segments)
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(False, 3), (False, 0)]
        assert state(task, "left") == expected_state(KEYS)
    assert all_files(segments) == before


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_in_the_layout_store_partition_a_store_is_taken_over_in_its_own_folder(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    left_by_streams(tmp_path, log)
    change_layout(tmp_path / "state", DirectoryLayout.STORE_PARTITION)
    for _ in range(2):
        with closing(counting_task(tmp_path, log, backend)) as task:
            assert opened(task) == [(False, 0)] * 2
            assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    folder = tmp_path / "state" / "left" / "0"
    assert not any(os.path.lexists(beside(folder / "rocksdb", end)) for end in ENDS)
    assert not (folder / "rocksdb" / "CURRENT").exists()


def test_in_the_layout_store_partition_a_store_named_data_keeps_its_records(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Its engine's files have the path that a store of Kafka Streams has in the other layout."""

    def keep(record: Record, context: TaskContext) -> None:
        assert record.key is not None
        context.store("data").put(record.key, b"1")

    feed(log, KEYS)
    (tmp_path / "state").mkdir()
    change_layout(tmp_path / "state", DirectoryLayout.STORE_PARTITION)
    for number in range(2):
        with closing(counting_task(tmp_path, log, stores={"data": logging_all(INDEXED)}, process=keep)) as task:
            assert opened(task) == [(False, 0)]
            task.run(commit=True)
            assert len(state(task, "data")) == 2, number
