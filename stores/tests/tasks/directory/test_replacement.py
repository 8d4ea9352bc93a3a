"""The replacement of a store: the old one or the new one counts, whole, wherever it was cut short."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from stores.errors import StoreIncompatibleError, StoreUnavailableError
from stores.files.creation import create
from stores.files.locks import take
from stores.files.plain_files import sync_folder
from stores.tasks.directory import replacement
from stores.tasks.directory.replacement import complete, remove_unfinished, replace_store
from stores.tasks.directory.store_places import ENDS, FORMER_END, PREPARE_END, SWAP_END, beside
from stores.tests.tasks.directory.relocating import failing_at
from stores.tests.tasks.setup import Crash


def make(path: Path, text: str) -> None:
    """Create a folder that looks like a closed store and contains ``text``."""

    def build(folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / "text").write_text(text)

    path.mkdir(parents=True)
    lock = take(path / "lock")
    create(path, "made up", build)
    os.close(lock)


def pair(folder: Path) -> Path:
    """An old store with somebody's letter in its folder, and a new one beside it."""
    path = folder / "lmdb" / "s"
    make(path, "old")
    make(beside(path, PREPARE_END), "new")
    (path / "letter").write_text("dear")
    return path


def text(path: Path) -> str:
    return (path / "data" / "text").read_text()


def left(path: Path) -> list[str]:
    return [end for end in ENDS if os.path.lexists(beside(path, end))]


def test_the_new_store_takes_the_old_one_s_place_and_foreign_files_stay(tmp_path: Path) -> None:
    path = pair(tmp_path)
    assert complete(path) is False
    assert text(path) == "old"
    replace_store(path)
    assert (text(path), (path / "letter").read_text(), left(path)) == ("new", "dear", [])
    assert complete(path) is False


def test_a_swap_cut_short_at_any_call_leaves_one_whole_store_and_the_next_opening_completes_it(
    tmp_path: Path,
) -> None:
    """Cut short in the completion, too."""
    number = counted = 0
    while True:
        number += 1
        path = pair(tmp_path / str(number))
        try:
            with failing_at(number, []):
                replace_store(path)
        except Crash:
            decided = beside(path, SWAP_END).exists()
            try:
                with failing_at(number % 5 + 1, []):
                    complete(path)
            except Crash:
                pass
            complete(path)
            assert text(path) == ("new" if decided or not beside(path, PREPARE_END).exists() else "old")
            assert (path / "letter").read_text() == "dear"
            if text(path) == "new":
                assert left(path) == []
                counted += 1
            continue
        assert number > 20
        assert 5 < counted < number
        return


def test_an_old_store_left_by_an_earlier_swap_does_not_block_the_next(tmp_path: Path) -> None:
    path = pair(tmp_path)
    make(beside(path, FORMER_END), "older")
    replace_store(path)
    assert (text(path), left(path)) == ("new", [])


def test_a_foreign_file_in_the_way_is_reported_before_anything_changes(tmp_path: Path) -> None:
    path = pair(tmp_path)
    former = beside(path, FORMER_END)
    make(former, "older")
    (former / "letter").write_text("theirs")
    with pytest.raises(StoreUnavailableError):
        replace_store(path)
    assert complete(path) is False
    assert (text(path), text(beside(path, PREPARE_END))) == ("old", "new")
    assert (former / "letter").read_text() == "theirs"


def test_a_foreign_file_never_replaces_another_of_its_name(tmp_path: Path) -> None:
    path = pair(tmp_path)
    (beside(path, PREPARE_END) / "letter").write_text("newer")
    replace_store(path)
    assert (text(path), (path / "letter").read_text()) == ("new", "newer")
    assert (beside(path, FORMER_END) / "letter").read_text() == "dear"


def test_what_is_no_store_s_folder_is_not_taken_for_the_old_store(tmp_path: Path) -> None:
    """A swap that was cut short has left its note; meanwhile somebody has put a folder of that name there."""
    path = pair(tmp_path)
    beside(path, SWAP_END).write_text("note")
    former = beside(path, FORMER_END)
    path.rename(path.with_name("elsewhere"))
    beside(path, PREPARE_END).rename(path)
    former.mkdir()
    (former / "letter").write_text("theirs")
    (former / "more").write_text("theirs")
    with pytest.raises(StoreIncompatibleError):
        complete(path)
    assert text(path) == "new"
    assert sorted(entry.name for entry in former.iterdir()) == ["letter", "more"]
    assert not (path / "letter").exists()


def test_everything_is_durable_before_the_next_step_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else power loss may leave the note beside half of the new store, or neither store with a name."""
    path = pair(tmp_path)
    prepare = beside(path, PREPARE_END)
    done: list[tuple[str, Path]] = []
    sync, rename, replace, unlink = os.fsync, os.rename, os.replace, os.unlink

    def synced(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append(("rename", Path(target)))
        rename(source, target)

    def replaced(source: Path, target: Path) -> None:
        done.append(("rename", Path(target)))
        replace(source, target)

    def unlinked(file: Path, **named: int) -> None:
        done.append(("unlink", Path(file)))
        unlink(file, **named)

    for name, call in (("fsync", synced), ("rename", renamed), ("replace", replaced), ("unlink", unlinked)):
        monkeypatch.setattr(os, name, call)
    files = {prepare, *prepare.rglob("*")}
    replace_store(path)
    mark_step = done.index(("rename", beside(path, SWAP_END)))
    assert files <= {file for call, file in done[:mark_step] if call == "sync"}
    assert ("sync", beside(path, SWAP_END + ".new")) in done[:mark_step]
    steps = [("rename", beside(path, SWAP_END)), ("rename", beside(path, FORMER_END)), ("rename", path)]
    ends = [*map(done.index, steps), done.index(("unlink", beside(path, SWAP_END))), len(done)]
    assert ends == sorted(ends)
    for start, end in pairwise(ends):
        assert ("sync", path.parent) in done[start:end]
    letter = done[done.index(("rename", path / "letter")) : ends[-2]]
    assert {("sync", path), ("sync", beside(path, FORMER_END))} <= set(letter)


def test_after_power_loss_the_journal_of_a_swap_is_missing_only_if_the_new_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's names survive power loss once it is synced. The note completes a swap whose names are lost."""
    path = pair(tmp_path)
    events: list[str] = []
    rename, unlink = Path.rename, Path.unlink

    def renamed(self: Path, target: Path) -> Path:
        events.append(f"{self.name} -> {Path(target).name}")
        return rename(self, target)

    def unlinked(self: Path, missing_ok: bool = False) -> None:
        events.append(f"no {self.name}")
        unlink(self, missing_ok)

    def synced(folder: Path) -> None:
        if folder == path.parent:
            events.append("synced")
        sync_folder(folder)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "unlink", unlinked)
    monkeypatch.setattr(replacement, "sync_folder", synced)
    replace_store(path)
    names = [event for event in events if event == "synced" or event.split()[-1] in ("s", "s.former", "s.swap")]
    placed, removed = names.index("s.prepare -> s"), names.index("no s.swap")
    assert "synced" in names[names.index("s -> s.former") : placed]
    assert "synced" in names[placed:removed]
    assert names[-1] == "synced"


def test_of_what_is_unfinished_a_foreign_folder_stays(tmp_path: Path) -> None:
    path = pair(tmp_path)
    former = beside(path, FORMER_END)
    former.mkdir()
    (former / "letter").write_text("dear")
    remove_unfinished(path)
    assert (left(path), (former / "letter").read_text(), text(path)) == ([FORMER_END], "dear", "old")
