"""Relocations beside open tasks and other processes: they wait, refuse, or complete what was interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import (
    StoreLockedError,
    StoreMisplacedError,
)
from stores.files import locks
from stores.interface import TopicPartition
from stores.tasks import (
    StateDirectory,
    Subtopology,
    TaskId,
    Topology,
    relocate,
)
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.relocation import TOPOLOGY_FILE
from stores.tasks.directory.replacement import DECIDED, RENAMED
from stores.tasks.directory.store_places import JOURNAL_FILE, RELOCATING_FILE
from stores.tasks.directory.task_lock import TaskLock
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    check_laid_out,
    content,
    folder_of,
    lay_out,
    log_topic,
    run_all,
    task_id,
    task_of,
    to_own,
    to_present,
    to_tasks,
)
from stores.tests.tasks.setup import crashing_at


def test_a_relocation_waits_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inodes = lay_out(tmp_path)
    lock = locks.take(tmp_path / RELOCATING_FILE)
    waited: list[float] = []

    def end(seconds: float) -> None:
        waited.append(seconds)
        os.close(lock)

    monkeypatch.setattr(time, "sleep", end)
    relocate(tmp_path, PRESENT)
    assert len(waited) == 1
    check_laid_out(tmp_path, inodes)


def test_a_relocation_that_was_cut_short_is_not_completed_over_an_open_task(tmp_path: Path) -> None:
    inodes = lay_out(tmp_path)
    with crashing_at(RENAMED):
        relocate(tmp_path, PRESENT)
    lock = StateDirectory(tmp_path).lock(task_id(5), "somebody")
    before = content(tmp_path)
    with pytest.raises(StoreLockedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before
    assert (tmp_path / JOURNAL_FILE).exists()
    lock.release()
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


def test_a_task_that_holds_the_topology_lock_completes_an_interrupted_change(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    topology = Topology({3: Subtopology(("names",)), 5: Subtopology(), 6: Subtopology(("rates",))})
    for number in (3, 5):
        log.create_topic(f"input-{number}", PARTITION + 1)
    first, second = (task_of(topology, number, tmp_path, {"log": log}) for number in (3, 5))
    first.open()
    lay_out(tmp_path, Topology({7: Subtopology(("rates",))}))
    with crashing_at(DECIDED):
        relocate(tmp_path, topology)
    second.open()
    assert not (tmp_path / JOURNAL_FILE).exists()
    assert (folder_of(tmp_path, 6) / "rates" / "store.json").exists()
    second.close()
    first.close()


def test_a_task_that_is_about_to_open_as_others_begin_to_relocate_completes_that_first(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would restore a store that is on its way, beside entries that are written later."""
    inodes = lay_out(tmp_path, Topology({7: Subtopology(("rates",))}))
    log.create_topic("input-3", PARTITION + 1)
    task = task_of(PRESENT, 3, tmp_path, {"log": log, "stores": {}, "topology": None})
    lock = StateDirectory.lock

    def late(state: StateDirectory, of: TaskId, owner: object) -> TaskLock:
        monkeypatch.undo()
        with crashing_at(RENAMED):
            relocate(tmp_path, PRESENT)
        return lock(state, of, owner)

    monkeypatch.setattr(StateDirectory, "lock", late)
    task.open()
    assert not (tmp_path / JOURNAL_FILE).exists()
    assert (folder_of(tmp_path, 5) / "rates").stat().st_ino == inodes["rates 14"]
    rates = TopicPartition(log_topic("rates"), PARTITION)
    assert CheckpointFile(tmp_path / str(task_id(5)) / ".checkpoint").read() == {rates: len("rates")}
    task.close()


def test_after_a_refusal_the_directory_is_free_for_another_topology(tmp_path: Path, log: MemoryChangelog) -> None:
    inodes = lay_out(tmp_path)
    task = task_of(PRESENT, 5, tmp_path, {"log": log, "automatic_state_relocation": False})
    with pytest.raises(StoreMisplacedError):
        task.open()
    relocate(tmp_path, FORMER)
    check_laid_out(tmp_path, inodes, FORMER)


def test_a_topology_is_held_until_the_last_of_its_tasks_is_closed(tmp_path: Path, log: MemoryChangelog) -> None:
    (tmp_path / TOPOLOGY_FILE).write_text("garbage, longer than a fingerprint is: " + 100 * "x")
    for number in (3, 5):
        log.create_topic(f"input-{number}", PARTITION + 1)
    first, second = (task_of(PRESENT, number, tmp_path, {"log": log}) for number in (3, 5))
    first.open()
    second.open()
    assert (tmp_path / TOPOLOGY_FILE).read_text() == PRESENT.fingerprint
    other = Topology({9: Subtopology(("other",))})
    for task in (second, first):
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, other)
        task.close()
    relocate(tmp_path, other)


@pytest.mark.parametrize("move", [to_present, to_own, to_tasks])
@pytest.mark.parametrize("backend", ["rocksdb-direct", "lmdb-native", "sqlite-indexed-batch"])
def test_tasks_complete_what_was_killed_and_replay_nothing(
    tmp_path: Path, log: MemoryChangelog, backend: str, move: Callable[[Path], object]
) -> None:
    if move is to_tasks:
        to_own(tmp_path)
    run_all(FORMER, tmp_path, log, backend, 3)
    assert call_until_killed(move, tmp_path, RENAMED, 2)
    assert run_all(FORMER if move is to_tasks else PRESENT, tmp_path, log, backend, 4) == [0] * len(STORES)
    assert not (tmp_path / JOURNAL_FILE).exists()
