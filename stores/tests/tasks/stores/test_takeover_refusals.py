"""A takeover that can't be done leaves the folder of Kafka Streams as it is, and the next opening succeeds."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import (
    ChangelogLostError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.tasks.directory.store_places import FORMER_END, beside, kept_from_streams, shut_out_streams
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    INDEXED,
    LEFT,
    MEMORY,
    RIGHT,
    counting_task,
    expected_state,
    feed,
    state,
)
from stores.tests.tasks.stores.test_takeover import (
    KEYS,
    LMDB,
    damage_current,
    damage_tables,
    left_by_streams,
    locked_elsewhere,
    opened,
)
from stores.tests.tasks.streams_folder import all_files, leave_offsets, leave_store, streams_folder, task_folder


def check_refused(
    folder: Path, log: MemoryChangelog, backend: str, error: type[StoreError], match: str | None = None
) -> None:
    """Check that the opening raises ``error``, and that the store ``left`` and the checkpoint file are unchanged."""
    source, offsets = streams_folder(folder, "left"), task_folder(folder) / ".checkpoint"
    before, before_offsets = all_files(source), offsets.read_bytes() if offsets.exists() else None
    with closing(counting_task(folder, log, backend)) as task, pytest.raises(error, match=match):
        task.open()
    assert all_files(source) == before
    assert (offsets.read_bytes() if offsets.exists() else None) == before_offsets


def check_taken_over(folder: Path, log: MemoryChangelog, backend: str = INDEXED) -> None:
    with closing(counting_task(folder, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


def of_another_application(folder: Path) -> Callable[[], None]:
    file = task_folder(folder) / ".checkpoint"
    leave_offsets(file, {TopicPartition("other-left-changelog", 0): 2, RIGHT: 2})
    return lambda: leave_offsets(file, {LEFT: 2, RIGHT: 2})


def with_a_foreign_family(folder: Path) -> Callable[[], None]:
    path = streams_folder(folder, "left")
    backup = path.rename(folder / "kept")
    leave_store(path, {}, None, "mine")

    def correct() -> None:
        path.rename(folder / "mine")
        backup.rename(path)

    return correct


@pytest.mark.parametrize("cause", [of_another_application, with_a_foreign_family])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_store_of_another_application_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, backend: str, cause: Callable[[Path], Callable[[], None]]
) -> None:
    left_by_streams(tmp_path, log)
    correct = cause(tmp_path)
    check_refused(tmp_path, log, backend, StoreIncompatibleError, "Nothing of it was changed")
    correct()
    check_taken_over(tmp_path, log, backend)


@pytest.mark.parametrize(
    "topic", ["app-more-left-changelog", "other-right-changelog", "left-changelog", "other-left-changelog"]
)
def test_offsets_of_other_stores_and_partitions_are_no_other_application_s(
    tmp_path: Path, log: MemoryChangelog, topic: str
) -> None:
    left_by_streams(tmp_path, log)
    number = 1 if topic == "other-left-changelog" else 0
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {TopicPartition(topic, number): 2, RIGHT: 2})
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(True, 3), (False, 0)]


def test_a_backend_that_keeps_no_offsets_refuses_the_store_unchanged(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    check_refused(tmp_path, log, DIRECT, StoreIncompatibleError, DIRECT)
    check_taken_over(tmp_path, log)


@pytest.mark.parametrize(("backend", "key"), [(LMDB, b"k" * 3000), ("lmdb-native", b"k" * 512), (INDEXED, b"")])
def test_a_key_that_the_backend_does_not_take_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, backend: str, key: bytes
) -> None:
    """The same key may be in the changelog, so a restore would not help."""
    left_by_streams(tmp_path, log)
    source = streams_folder(tmp_path, "left")
    source.rename(tmp_path / "kept")
    leave_store(source, {**expected_state(KEYS), key: b"1"})
    check_refused(tmp_path, log, backend, StoreIncompatibleError, "key")
    assert not os.path.lexists(beside(source, ".prepare"))
    if key:
        with closing(counting_task(tmp_path, log)) as task:
            assert opened(task) == [(False, 0)] * 2
            assert state(task, "left") == {**expected_state(KEYS), key: b"1"}


def test_a_second_store_that_is_refused_does_not_undo_the_first_takeover(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    with closing(counting_task(tmp_path, log, INDEXED, DIRECT)) as task, pytest.raises(StoreIncompatibleError):
        task.open()
    check_taken_over(tmp_path, log)


@pytest.mark.parametrize("name", ["CURRENT", "LOG.old.1", "000999.log", "000999.sst"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_something_else_than_a_file_is_refused_unchanged(
    tmp_path: Path, log: MemoryChangelog, name: str, make: Callable[[Path], None]
) -> None:
    """RocksDB would wait for a pipe, and the removal of a folder would take foreign files with it."""
    left_by_streams(tmp_path, log)
    path = streams_folder(tmp_path, "left") / name
    if path.exists():
        path.rename(tmp_path / "kept")
        path.symlink_to(tmp_path / "kept")
    else:
        make(path)
    check_refused(tmp_path, log, INDEXED, StoreUnavailableError, name)
    if (tmp_path / "kept").exists():
        (tmp_path / "kept").replace(path)
    elif path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    check_taken_over(tmp_path, log)


def test_a_pipe_in_the_place_of_the_lock_of_kafka_streams_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    os.mkfifo(tmp_path / "state" / ".lock")
    check_refused(tmp_path, log, INDEXED, StoreUnavailableError, r"\.lock")
    (tmp_path / "state" / ".lock").unlink()
    check_taken_over(tmp_path, log)


@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_a_full_disk_leaves_the_store_of_kafka_streams(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    """As a full disk, which the system and not the library finds: here a limit on the size of files."""
    left_by_streams(tmp_path, log)
    source = streams_folder(tmp_path, "left")
    source.rename(tmp_path / "kept")
    large = {b"large%d" % number: random.Random(number).randbytes(1 << 20) for number in range(4)}
    leave_store(source, {**expected_state(KEYS), **large})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        check_refused(tmp_path, log, backend, StoreUnavailableError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(os.path.lexists(path) for path in task_folder(tmp_path).rglob("*.prepare"))
    with closing(counting_task(tmp_path, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert state(task, "left") == {**expected_state(KEYS), **large}


@pytest.mark.parametrize("damage", [damage_current, damage_tables])
def test_without_a_changelog_a_damaged_store_stays(
    tmp_path: Path, log: MemoryChangelog, damage: Callable[[Path], None]
) -> None:
    leave_store(streams_folder(tmp_path, "left"), {b"1": b"1"})
    damage(streams_folder(tmp_path, "left"))
    check_refused(tmp_path, log, INDEXED, ChangelogLostError, "left")


def test_without_a_changelog_a_store_that_was_replaced_stays(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    check_taken_over(tmp_path, log, LMDB)
    leave_store(streams_folder(tmp_path, "left"), {b"1": b"1"})
    with MemoryChangelog() as empty:
        feed(empty, [])
        check_refused(tmp_path, empty, LMDB, ChangelogLostError)
    check_taken_over(tmp_path, log, LMDB)
    assert not streams_folder(tmp_path, "left").exists()


def test_a_second_folder_of_kafka_streams_beside_the_first_stays(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    second = beside(streams_folder(tmp_path, "left"), FORMER_END)
    leave_store(second, {b"other": b"1"})
    before = all_files(second)
    check_refused(tmp_path, log, INDEXED, StoreIncompatibleError)
    assert all_files(second) == before
    second.rename(tmp_path / "second")
    check_taken_over(tmp_path, log)


@pytest.mark.parametrize(
    "text",
    [
        b"0\n2\napp-left-changelog 0 -4\napp-right-changelog 0 -4\n",
        b"0\n2\napp-left-changelog 0 1000\napp-right-changelog 0 1000\n",
        b"0\n1\napp-left-changelog 0 " + b"9" * 5000 + b"\n",
        b"0\n2\napp-left-changelog 0 2\n",
        b"\xff\x00" * 5000,
    ],
)
def test_an_offset_that_can_t_be_is_no_offset(tmp_path: Path, log: MemoryChangelog, text: bytes) -> None:
    left_by_streams(tmp_path, log)
    (task_folder(tmp_path) / ".checkpoint").write_bytes(text)
    with closing(counting_task(tmp_path, log)) as task:
        assert opened(task) == [(True, 3)] * 2
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


def test_a_damaged_position_file_does_not_stop_a_takeover(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    (task_folder(tmp_path) / "left.position").write_bytes(b"\xff\x00")
    check_taken_over(tmp_path, log)


def test_at_least_once_takes_the_same_stores_over(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    with closing(counting_task(tmp_path, log, guarantee=AT_LEAST_ONCE)) as task:
        assert opened(task) == [(False, 0)] * 2
    check_taken_over(tmp_path, log)


def test_a_store_in_memory_leaves_the_folder_of_kafka_streams(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams(tmp_path, log)
    before = all_files(streams_folder(tmp_path, "left"))
    with closing(counting_task(tmp_path, log, MEMORY)) as task:
        assert opened(task) == [(False, 3)] * 2
    assert all_files(streams_folder(tmp_path, "left")) == before


def test_kafka_streams_that_came_after_the_takeover_of_another_store_is_not_shut_out(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Two threads of a process have one lock on the directory, and the end of the first takeover releases it."""
    left_by_streams(tmp_path, log)
    lock = tmp_path / "state" / ".lock"
    lock.touch()
    left, right = (streams_folder(tmp_path, name) for name in ("left", "right"))
    with kept_from_streams(left):
        with kept_from_streams(right):
            pass
        with locked_elsewhere(lock), pytest.raises(StoreLockedError):
            shut_out_streams(left)
        assert lock.is_file()
        shut_out_streams(left)
    assert lock.is_dir()
