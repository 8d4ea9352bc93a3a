"""A relocation that is cut short, at any call: the next one completes it, and no entry is without its store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores import failpoints
from stores.errors import (
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.tasks import (
    relocate,
)
from stores.tasks.directory import replacement
from stores.tasks.directory.entry_files import CheckpointFile
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.replacement import PLACED, RENAMED
from stores.tasks.directory.store_places import JOURNAL_FILE
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
    task_id,
)
from stores.tests.tasks.setup import crashing_at


def test_a_relocation_back_completes_the_one_that_was_cut_short_first(tmp_path: Path) -> None:
    """Else it would leave what is on its way, and have its entries overwritten later."""
    inodes = lay_out(tmp_path)
    with crashing_at(RENAMED):
        relocate(tmp_path, PRESENT)
    relocation = relocate(tmp_path, FORMER)
    assert len(relocation.completed) == len(relocation.moved) == len(STORES)
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

    with monkeypatch.context() as patch:
        if place == "journal":
            patch.setattr(replacement, "replace_file", refuse)
        elif place == "rename":
            patch.setattr(os, "rename", refuse)
        else:
            failpoints.arm(PLACED, lambda: patch.setattr(CheckpointFile, "write", refuse))
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
    relocation = relocate(tmp_path, PRESENT)
    assert len(relocation.completed) == len(STORES)
    assert {entry.name for entry in target.iterdir()} == names
    assert {entry.name for entry in folder.iterdir()} == {"totals"}
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {
        TopicPartition(log_topic("names"), PARTITION): len("names")
    }
