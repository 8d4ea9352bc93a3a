"""A relocation that is cut short, at any call: the next one completes it, and no entry is without its store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog
from stores.errors import (
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.tasks import (
    Subtopology,
    Topology,
    relocate,
)
from stores.tasks.directory import replacement
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import JOURNAL_FILE
from stores.tasks.directory.relocation_journal import ENTRIES_TAKEN, ENTRIES_WRITTEN, Journal
from stores.tasks.directory.replacement import FAILPOINTS, PLACED, RENAMED
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    check_entries_are_beside_their_stores,
    check_laid_out,
    cut_short_everywhere,
    lay_out,
    log_topic,
    relocate_to_present,
    task_id,
    task_of,
)
from stores.tests.tasks.setup import crashing_at


@pytest.mark.parametrize(
    ("failpoint", "hit"),
    [
        *((failpoint, 1) for failpoint in (*FAILPOINTS, ENTRIES_TAKEN, ENTRIES_WRITTEN)),
        (RENAMED, 2),
        (RENAMED, len(STORES)),
    ],
)
def test_a_relocation_that_is_killed_anywhere_is_completed_by_the_next(
    tmp_path: Path, failpoint: str, hit: int
) -> None:
    inodes = lay_out(tmp_path)
    assert call_until_killed(relocate_to_present, tmp_path, failpoint, hit)
    check_entries_are_beside_their_stores(tmp_path)
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


@pytest.mark.parametrize("topology", [None, FORMER])
def test_a_task_that_knows_nothing_of_it_completes_a_relocation_first(
    tmp_path: Path, topology: Topology | None
) -> None:
    """Else it would restore what is on its way, and have its entries overwritten later."""
    inodes = lay_out(tmp_path)
    with crashing_at(RENAMED):
        relocate(tmp_path, PRESENT)
    if topology is None:
        with MemoryChangelog() as log:
            log.create_topic("input-9", PARTITION + 1)
            task = task_of(Topology({9: Subtopology()}), 9, tmp_path, {"log": log, "topology": None})
            task.open()
            task.close()
        (tmp_path / str(task_id(9)) / ".lock").unlink()
        (tmp_path / str(task_id(9))).rmdir()
        check_laid_out(tmp_path, inodes)
    else:
        done = relocate(tmp_path, topology)
        assert len(done.completed) == len(done.moved) == len(STORES)
        check_laid_out(tmp_path, inodes, FORMER)


def test_a_relocation_cut_short_at_any_call_leaves_no_entry_without_its_store_and_the_next_start_completes_it(
    tmp_path: Path,
) -> None:
    for folder, inodes in cut_short_everywhere(tmp_path):
        check_entries_are_beside_their_stores(folder)
        relocate(folder, PRESENT)
        check_laid_out(folder, inodes)


def test_a_relocation_that_copies_the_checkpoint_before_the_folder_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Journal, state: Path) -> None:
        for move in self.moves:
            source, target = (state / str(task) for task in (move.source, move.target))
            target.mkdir(exist_ok=True)
            file = CheckpointFile(target / ".checkpoint")
            file.write({**file.read(), **CheckpointFile(source / ".checkpoint").read()})
        for source, target in self._renames(state):
            source.rename(target)
        for task in self.homes:
            self._take_entries(state, task, self.moves)
            self._write_entries(state, task, self.moves)
        (state / JOURNAL_FILE).unlink()

    monkeypatch.setattr(Journal, "carry_out", broken)
    with pytest.raises(AssertionError):
        for folder, _ in cut_short_everywhere(tmp_path):
            check_entries_are_beside_their_stores(folder)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("place", ["journal", "rename", "checkpoint"])
def test_a_disk_that_refuses_in_the_middle_is_reported_and_the_next_start_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, place: str
) -> None:
    inodes = lay_out(tmp_path)

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        if place == "journal":
            broken.setattr(replacement, "replace_file", refuse)
        elif place == "rename":
            broken.setattr(os, "rename", refuse)
        else:
            failpoints.arm(PLACED, lambda: broken.setattr(CheckpointFile, "write", refuse))
        with pytest.raises(StoreUnavailableError):
            relocate(tmp_path, PRESENT)
        failpoints.disarm()
    check_entries_are_beside_their_stores(tmp_path)
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


@pytest.mark.parametrize("decided", [False, True])
def test_what_an_upgrade_keeps_beside_a_store_follows_it_also_while_the_two_are_swapped(
    tmp_path: Path, decided: bool
) -> None:
    """Left behind, the note of a swap would have the older of the two stores count."""
    lay_out(tmp_path)
    folder, target = (tmp_path / str(task_id(number)) / "lmdb" for number in (2, 3))
    if decided:
        (folder / "names").rename(folder / "names.former")
    (folder / "names.prepare").mkdir()
    (folder / "names.swap").write_text("note")
    names = {entry.name for entry in folder.iterdir()} - {"counts"}
    with crashing_at(RENAMED):
        relocate(tmp_path, PRESENT)
    done = relocate(tmp_path, PRESENT)
    assert len(done.completed) == len(STORES)
    assert {entry.name for entry in target.iterdir()} == names
    assert {entry.name for entry in folder.iterdir()} == {"totals"}
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {
        TopicPartition(log_topic("names"), PARTITION): len("names")
    }
