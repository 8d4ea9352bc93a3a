"""The state directory: a folder per task, which one owner has, for its user alone, and which is not kept for ever."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from threading import Barrier
from uuid import UUID

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreLockedError, StoreUnavailableError
from stores.files import locks
from stores.files.locks import take
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import StateDirectory, TaskId, most_caught_up_first, offset_sum
from stores.tasks.directory import state_directory
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.state_directory import OFFSET_SUM_MAX, PROCESS_FILE
from stores.tests.tasks.setup import (
    INDEXED,
    LEFT,
    RIGHT,
    counting_task,
    feed,
)

TASK, OTHER = TaskId(0, 3), TaskId(1, 0)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LONG_AGO = 1_000_000_000.0
WEEK_S = 7 * 24 * 3600.0
HOLD = """
import sys
from pathlib import Path
from stores.tasks import StateDirectory, TaskId
lock = StateDirectory(Path(sys.argv[1])).lock(TaskId(0, 3), "theirs")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "state")


@pytest.fixture
def holder(state: StateDirectory) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which has ``TASK``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLD, str(state.path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def used(state: StateDirectory, task_id: TaskId = TASK, *, long_ago: bool = True) -> Path:
    """A task's folder with a store and a checkpoint."""
    lock = state.lock(task_id, "setup")
    folder = state.folder(task_id)
    open_store("lmdb", folder / "lmdb" / "counts").close()
    CheckpointFile(folder / ".checkpoint").write({A: 7})
    lock.release()
    if long_ago:
        age(folder)
    return folder


def age(folder: Path) -> None:
    for entry in (folder, *folder.rglob("*")):
        os.utime(entry, (LONG_AGO, LONG_AGO))


def test_folders_are_made_for_their_user_alone(state: StateDirectory) -> None:
    """Source: Kafka Streams, ``StateDirectory.configurePermissions``."""
    state.lock(TASK, "owner").release()
    for folder in (state.path, state.folder(TASK)):
        assert S_IMODE(folder.stat().st_mode) == 0o700
    state.path.chmod(0o755)
    state.folder(TASK).chmod(0o755)
    state.lock(TASK, "owner").release()
    # The directory may be anybody's, what is in the task's folder is not.
    assert S_IMODE(state.path.stat().st_mode) == 0o755
    assert S_IMODE(state.folder(TASK).stat().st_mode) == 0o700


def test_the_lock_of_a_task_can_be_taken_again_by_its_owner_alone(state: StateDirectory) -> None:
    first = state.lock(TASK, "owner")
    again = StateDirectory(state.path).lock(TASK, "owner")
    for _ in range(2):
        with pytest.raises(StoreLockedError):
            state.lock(TASK, "another")
        state.lock(OTHER, "another").release()
        again.release()
        again = first
    state.lock(TASK, "another").release()


def test_a_released_lock_is_free_and_can_be_released_again(state: StateDirectory) -> None:
    lock = state.lock(TASK, "owner")
    lock.release()
    theirs = state.lock(TASK, "another")
    lock.release()
    with pytest.raises(StoreLockedError):
        state.lock(TASK, "owner")
    theirs.release()


def test_a_task_of_another_process_is_refused_until_that_dies(
    state: StateDirectory, holder: subprocess.Popen[bytes]
) -> None:
    """A lock file that a dead process has left behind holds nobody up."""
    with pytest.raises(StoreLockedError) as error:
        state.lock(TASK, "ours")
    assert str(holder.pid) in str(error.value)
    age(state.folder(TASK))
    assert state.clean(WEEK_S) == []
    holder.kill()
    holder.wait()
    assert (state.folder(TASK) / ".lock").read_text() == f"{holder.pid}\n"
    state.lock(TASK, "ours").release()


def test_a_forked_process_does_not_hold_what_its_parent_holds(state: StateDirectory) -> None:
    lock = state.lock(TASK, "owner")
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        os.write(done, b"x")
        time.sleep(30)
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        with pytest.raises(StoreLockedError):
            state.lock(TASK, "another")
        lock.release()
        state.lock(TASK, "another").release()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(done)


def test_what_is_in_the_way_is_reported(state: StateDirectory, tmp_path: Path) -> None:
    state.path.mkdir()
    state.folder(TASK).touch()
    with pytest.raises(StoreUnavailableError):
        state.lock(TASK, "owner")
    with pytest.raises(StoreUnavailableError):
        StateDirectory(state.folder(TASK)).lock(OTHER, "owner")


def test_only_old_task_folders_without_an_owner_are_removed(state: StateDirectory) -> None:
    """Source: Kafka Streams, ``state.cleanup.delay.ms``; KIP-1259."""
    assert state.clean(0.0) == []
    old, young = used(state), used(state, OTHER, long_ago=False)
    foreign = state.path / "notes"
    foreign.mkdir()
    age(foreign)
    assert state.tasks() == [TASK, OTHER]
    assert state.clean(WEEK_S) == [TASK]
    assert state.clean(WEEK_S) == []
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()
    assert state.tasks() == [OTHER]


def test_what_is_young_is_not_even_locked(state: StateDirectory) -> None:
    """Else its owner might be refused for that moment."""
    folder = used(state, long_ago=False)
    (folder / ".lock").unlink()
    assert state.clean(WEEK_S) == []
    assert not (folder / ".lock").exists()


def test_what_was_used_until_it_could_be_locked_stays(state: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = used(state)

    def late(file: Path, *, note: bool = True) -> int:
        if file == folder / ".lock":
            (folder / ".checkpoint").touch()
        return take(file, note=note)

    monkeypatch.setattr(state_directory, "take", late)
    assert state.clean(WEEK_S) == []
    assert state.offsets(TASK) == {A: 7}


def test_a_store_in_use_makes_its_task_young(state: StateDirectory) -> None:
    folder = used(state)
    with open_store("lmdb", folder / "lmdb" / "counts") as store:
        store.put(b"key", b"value")
        store.commit()
    assert state.clean(WEEK_S) == []


def test_locked_folders_stay_for_any_combination_of_locks(state: StateDirectory) -> None:
    folder = used(state)
    lock = state.lock(TASK, "owner")
    age(folder)
    assert state.clean(WEEK_S) == []
    lock.release()
    with open_store("lmdb", folder / "lmdb" / "counts") as store:
        age(folder)
        assert state.clean(WEEK_S) == []
        assert list(store.all()) == []
    age(folder)
    assert state.clean(WEEK_S) == [TASK]


@pytest.mark.parametrize(
    "name", ["notes.txt", "folder/file", "lmdb/counts.old/lock", "lmdb/counts.new/mine", "lmdb/counts/mine"]
)
def test_a_folder_with_anything_foreign_in_it_stays_as_it_is(state: StateDirectory, name: str) -> None:
    folder = used(state)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    age(folder)
    before = sorted(folder.rglob("*"))
    assert state.clean(WEEK_S) == []
    assert sorted(folder.rglob("*")) == before


def test_a_foreign_folder_with_the_name_of_a_removed_one_keeps_both_folders(
    state: StateDirectory,
) -> None:
    folder = used(state)
    other = folder.with_name(f"{folder.name}.removed")
    other.mkdir()
    (other / "letter").write_text("dear")
    age(folder)
    assert state.clean(WEEK_S) == []
    assert (other / "letter").read_text() == "dear"
    assert folder.is_dir()


@pytest.mark.parametrize("name", [".lock", ".checkpoint.new", "kafka-streams-process-metadata.new", ".process"])
def test_a_link_in_the_place_of_a_file_is_never_written_through(
    state: StateDirectory, tmp_path: Path, name: str
) -> None:
    used(state)
    target = tmp_path / "target"
    target.write_text("dear")
    link = (state.folder(TASK) if name in (".lock", ".checkpoint.new") else state.path) / name
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with suppress(StoreUnavailableError):
        lock = state.lock(TASK, "me")
        CheckpointFile(state.folder(TASK) / ".checkpoint").write({TopicPartition("topic", 0): 1})
        lock.release()
    with suppress(StoreUnavailableError):
        state.process_id()
    assert target.read_text() == "dear"


def test_a_process_id_that_is_being_made_is_waited_for_by_a_deadline(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(state)
    monkeypatch.setattr(locks.take_in_time, "__defaults__", (0.02,))
    lock = locks.take(state.path / ".process")
    with pytest.raises(StoreLockedError):
        state.process_id()
    os.close(lock)
    state.process_id()


def test_links_are_foreign(state: StateDirectory, tmp_path: Path) -> None:
    folder = used(state)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert state.tasks() == []
    assert state.clean(WEEK_S) == []
    assert (tmp_path / "elsewhere" / ".checkpoint").exists()


def test_a_task_has_its_folder_from_opening_to_closing(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1])
    state = StateDirectory(tmp_path / "state")
    task = counting_task(tmp_path, log, INDEXED)
    for clean in (True, False):
        task.open()
        with pytest.raises(StoreLockedError):
            state.lock(task.task_id, "another")
        age(state.folder(task.task_id))
        assert state.clean(WEEK_S) == []
        task.run()
        task.close(clean)
        state.lock(task.task_id, "another").release()
    lock = state.lock(task.task_id, "another")
    with pytest.raises(StoreLockedError):
        task.open()
    lock.release()
    task.open()
    task.close()


def test_offsets_of_closed_stores_are_read_and_those_of_open_ones_known(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances"."""
    feed(log, [1, 2])
    state = StateDirectory(tmp_path / "state")
    task = counting_task(tmp_path, log, INDEXED)
    assert state.offset_sums() == {}
    task.open()
    assert task.changelog_offsets() == {LEFT: None, RIGHT: None}
    assert state.offsets(task.task_id) == {}
    task.run()
    task.commit()
    assert task.changelog_offsets() == {LEFT: 1, RIGHT: 1}
    running = {task.task_id: task.changelog_offsets()}
    # Of a task that is open the file is not even looked at.
    (state.folder(task.task_id) / ".checkpoint").write_text("garbage")
    assert state.offset_sums() == {task.task_id: 0}
    assert state.offset_sums(running) == {task.task_id: 2}
    task.close()
    before = sorted((entry, entry.stat().st_mtime_ns) for entry in state.path.rglob("*"))
    assert state.offsets(task.task_id) == {LEFT: 1, RIGHT: 1}
    assert state.offset_sums() == {task.task_id: 2}
    assert sorted((entry, entry.stat().st_mtime_ns) for entry in state.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("offsets", "total"),
    [
        ({}, 0),
        ({A: 3, B: 4}, 7),
        ({A: 3, B: None}, 3),
        ({A: 3, B: -4}, 3),
        ({A: OFFSET_SUM_MAX, B: 1}, OFFSET_SUM_MAX),
    ],
)
def test_an_offset_sum_leaves_out_what_is_unknown_and_never_overflows(
    offsets: dict[TopicPartition, int | None], total: int
) -> None:
    assert offset_sum(offsets) == total


def test_the_most_caught_up_copy_comes_first() -> None:
    assert most_caught_up_first({"b": 7, "a": 7, "c": 9, "d": 0}) == ["c", "a", "b", "d"]


def test_a_directory_has_one_id_for_every_process_now_and_later(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: Kafka Streams, ``StateDirectory.initializeProcessId``."""
    process = state.process_id()
    assert isinstance(process, UUID)
    assert S_IMODE(state.path.stat().st_mode) == 0o700
    assert json.loads((state.path / PROCESS_FILE).read_text()) == {"processId": str(process)}
    monkeypatch.setattr(state_directory, "uuid4", lambda: UUID(int=1))
    assert StateDirectory(state.path).process_id() == process
    assert StateDirectory(state.path.with_name("another")).process_id() == UUID(int=1)
    used(state)
    assert state.clean(WEEK_S) == [TASK]
    assert state.process_id() == process


def test_the_id_of_a_directory_of_kafka_s_is_kept_with_all_that_is_said_beside_it(state: StateDirectory) -> None:
    state.path.mkdir()
    text = '{"processId": "0f0e0d0c-0b0a-0908-0706-050403020100", "since": "4.4"}'
    (state.path / PROCESS_FILE).write_text(text)
    assert state.process_id() == UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
    assert (state.path / PROCESS_FILE).read_text() == text


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", "7", '{"processId": "me"}', '{"processId": 7}', "{}", "null", "[" * 100_000]
)
def test_an_id_that_can_t_be_read_is_replaced_and_reported(
    state: StateDirectory, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    state.path.mkdir()
    (state.path / PROCESS_FILE).write_text(garbage)
    with caplog.at_level(logging.WARNING, "stores.tasks"):
        process = state.process_id()
    assert len(caplog.records) == 1
    assert state.process_id() == process
    assert len(caplog.records) == 1


def test_all_that_ask_get_the_same_id(state: StateDirectory) -> None:
    state.path.mkdir()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            barrier = Barrier(8)

            def ask(barrier: Barrier = barrier) -> UUID:
                barrier.wait()
                return StateDirectory(state.path).process_id()

            assert len({future.result() for future in [pool.submit(ask) for _ in range(8)]}) == 1
            (state.path / PROCESS_FILE).unlink()


def test_an_id_that_another_caller_drew_before_the_lock_is_kept(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []

    def late(file: Path, *, note: bool = True) -> int:
        monkeypatch.undo()
        ids.append(state.process_id())
        return take(file, note=note)

    monkeypatch.setattr(locks, "take", late)
    assert [state.process_id()] == ids
