"""Locks of a relocation: open tasks and stores stay where they are, and another topology has to wait."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreLockedError
from stores.registry import open_store
from stores.tasks import DirectoryLayout, StateDirectory, Subtopology, Topology, change_layout, relocate
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    PRESENT,
    check_laid_out,
    content,
    holder,
    lay_out,
    task_id,
    task_of,
)
from stores.tests.tasks.stores.test_takeover import locked_elsewhere
from stores.tests.tasks.streams_folder import all_files, leave_store


def test_two_processes_with_different_topologies_exclude_each_other(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-816, "Non-goals"."""
    task = task_of(Topology({0: Subtopology(("other",))}), 0, tmp_path, {"log": log})
    same = task_of(FORMER, 3, tmp_path, {"log": log})
    with holder(tmp_path, 2) as process:
        for refuse in (task.open, lambda: relocate(tmp_path, PRESENT)):
            with pytest.raises(StoreLockedError) as error:
                refuse()
            assert str(process.pid) in str(error.value)
        # One with the same topology may come in.
        same.open()
        same.close()
        process.kill()
        process.wait()
        task.open()
    with pytest.raises(StoreLockedError):
        same.open()
    task.close()
    same.open()
    same.close()


@pytest.mark.parametrize("number", [2, 5])
def test_a_store_of_an_open_task_and_one_that_is_open_itself_stay_and_so_do_all_others(
    tmp_path: Path, number: int
) -> None:
    """Return True if it would give or get a store, also if its owner has another topology or none."""
    inodes = lay_out(tmp_path)
    (tmp_path / str(task_id(5))).mkdir()
    before = content(tmp_path)
    lock = StateDirectory(tmp_path).lock(task_id(number), "somebody")
    with pytest.raises(StoreLockedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before
    lock.release()
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


def test_a_store_that_is_open_by_itself_stays_and_so_do_all_others(tmp_path: Path) -> None:
    lay_out(tmp_path, Topology({3: Subtopology(("totals",))}))
    with open_store("sqlite", tmp_path / str(task_id(4)) / "sqlite" / "rates"):
        before = set(tmp_path.rglob("data"))
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, PRESENT)
        assert set(tmp_path.rglob("data")) == before
    assert len(relocate(tmp_path, PRESENT).moved) == 2


def test_a_forked_process_does_not_hold_the_topology_of_its_parent(tmp_path: Path, log: MemoryChangelog) -> None:
    lay_out(tmp_path)
    log.create_topic("input-2", PARTITION + 1)
    task = task_of(FORMER, 2, tmp_path, {"log": log, "stores": {}})
    task.open()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"!")
        signal.pause()
        os._exit(0)
    try:
        # By then the child has given up what it has of its parent's.
        assert os.read(reading, 1) == b"!"
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, PRESENT)
        task.close()
        relocate(tmp_path, PRESENT)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("file", ["2_14/rocksdb/counts/LOCK", ".lock"])
def test_a_store_that_kafka_streams_has_open_stays(tmp_path: Path, file: str) -> None:
    """It would go on in a folder that has another name."""
    former = tmp_path / "2_14" / "rocksdb" / "counts"
    leave_store(former, {b"1": b"1"})
    (tmp_path / ".lock").touch()
    before = all_files(former)
    with locked_elsewhere(tmp_path / file):
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, PRESENT)
        with pytest.raises(StoreLockedError):
            change_layout(tmp_path, DirectoryLayout.STORE_PARTITION)
        assert all_files(former) == before
    relocate(tmp_path, PRESENT)
    assert all_files(tmp_path / "5_14" / "rocksdb" / "counts") == before
