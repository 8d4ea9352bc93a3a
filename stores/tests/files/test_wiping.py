"""Wiping removes a store and nothing else, whatever moment a kill or an error comes at."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stores import (
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
    open_store,
)
from stores.files import creation
from stores.files import store_directory as directory
from stores.files.creation import is_store, wipe
from stores.files.plain_files import remove
from stores.tests.broken_disk import refuse


def test_creating_and_wiping_a_store_leave_files_beside_it_unchanged(path: Path) -> None:
    """Another store, open or not, whatever it is called; files and folders of anybody's."""
    beside = [path.with_name(f"store{end}") for end in (".new", ".wiped", ".tmp")]
    for folder in beside:
        with open_store("sqlite", folder) as store:
            store.put(b"key", folder.name.encode())
            store.commit()
    neighbour = open_store("sqlite", beside[0])
    (path.parent / "letter.txt").write_text("dear")
    for _ in range(2):
        open_store("sqlite", path).close()
        wipe(path)
    assert neighbour.get(b"key") == b"store.new"
    neighbour.close()
    for folder in beside:
        with open_store("sqlite", folder) as store:
            assert store.get(b"key") == folder.name.encode()
    assert (path.parent / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("made", ["data.csv", "open.txt", "notes/letter.txt"])
def test_what_is_foreign_in_a_store_folder_survives_its_wiping_and_a_store_can_be_made_there_again(
    path: Path, made: str
) -> None:
    for number in range(2):
        with open_store("lmdb", path) as store:
            assert store.get(b"key") is None
            store.put(b"key", b"%d" % number)
            store.commit()
        (path / made).parent.mkdir(exist_ok=True)
        (path / made).write_text("dear")
        wipe(path)
        assert (path / made).read_text() == "dear"
        assert not (path / "data").exists()
    wipe(path)
    assert (path / made).read_text() == "dear"


def test_a_wiping_that_is_cut_short_leaves_no_part_of_the_store(path: Path) -> None:
    """Killed anywhere in it, the next opening finds nothing."""
    with open_store("lmdb", path) as store:
        store.put(b"key", b"value")
        store.commit()
    parts: list[Path] = []

    def killed(part: Path) -> None:
        if len(parts) == cut:
            raise KeyboardInterrupt
        parts.append(part)
        remove(part)

    for cut in range(16):
        parts.clear()
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(creation, "remove", killed)
            wipe(path)
        assert not creation.is_complete(path)
        with open_store("lmdb", path) as store:
            assert store.get(b"key") is None
            store.put(b"key", b"value")
            store.commit()
        if len(parts) < cut:
            break
    else:
        raise AssertionError("no wiping came to its end")


def test_wiping_removes_a_store_and_its_leftovers_and_nothing_else(path: Path) -> None:
    wipe(path)
    store = open_store("sqlite", path)
    with pytest.raises(StoreLockedError):
        wipe(path)
    store.close()
    wipe(path)
    assert list(path.parent.iterdir()) == []
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        wipe(path)
    assert (path / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_disk_that_refuses_a_wipe_is_reported_and_the_lock_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    open_store("sqlite", path).close()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailableError):
            wipe(path)
    open_store("sqlite", path).close()
    path.with_name("letter.txt").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        wipe(path.with_name("letter.txt"))


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("work", [open_store, wipe])
@pytest.mark.parametrize("step", ["is_unfinished", "is_unused", "is_store", "foreign_names", "checked_identity"])
def test_who_meets_another_process_at_wiping_and_making_the_store_takes_nothing_for_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, work: Callable[..., object], made_again: bool
) -> None:
    open_store("lmdb-indexed-batch", path).close()
    pending = [True]

    def meeting(look: Callable[..., object], *, before: bool) -> Callable[..., object]:
        def looked(*arguments: object) -> object:
            seen = None if before else look(*arguments)
            if pending:
                pending.clear()
                # Where the lock is held by then, the other one is refused.
                with suppress(StoreLockedError):
                    wipe(path)
                    if made_again:
                        open_store("lmdb-indexed-batch", path).close()
            return look(*arguments) if before else seen

        return looked

    for before in (False, True):
        pending[:] = [True]
        with monkeypatch.context() as patch:
            for module in (creation, directory):
                if hasattr(module, step):
                    patch.setattr(module, step, meeting(getattr(module, step), before=before))
            if work is wipe:
                wipe(path)
                assert not path.exists()
            with open_store("lmdb-indexed-batch", path) as store:
                assert list(store.all()) == []


def test_a_store_on_a_full_disk_can_be_wiped_and_one_half_wiped_there_counts_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for cut_short in (False, True):
        with open_store("lmdb-indexed-batch", path) as store:
            store.put(b"key", b"value")
            store.commit()
        with monkeypatch.context() as patch:
            patch.setattr(creation, "replace_file", full)
            if cut_short:
                patch.setattr(creation, "_clear", refuse)
                with pytest.raises(StoreUnavailableError):
                    wipe(path)
                assert is_store(path)
            else:
                wipe(path)
                assert not path.exists()
        with open_store("lmdb-indexed-batch", path) as store:
            assert list(store.all()) == []
        wipe(path)


@contextmanager
def hiding(monkeypatch: pytest.MonkeyPatch, prefix: str) -> Iterator[None]:
    """Let a removed file that is open here stay in its folder under another name until it is closed, as NFS does."""
    unlink, close = os.unlink, os.close
    hidden: dict[int, str] = {}

    def unlink_or_hide(path: str | os.PathLike[str], **given: Any) -> None:
        found = os.lstat(path) if not given else None
        for descriptor in map(int, os.listdir("/proc/self/fd") if found else []):
            with suppress(OSError):
                if found is not None and os.path.samestat(os.fstat(descriptor), found):
                    hidden[descriptor] = f"{os.path.dirname(path)}/{prefix}{descriptor}"
                    os.rename(path, hidden[descriptor])
                    return
        unlink(path, **given)

    def close_and_remove(descriptor: int) -> None:
        close(descriptor)
        if descriptor in hidden:
            unlink(hidden.pop(descriptor))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_or_hide)
        patch.setattr(os, "close", close_and_remove)
        yield


@pytest.mark.parametrize("prefix", [".nfs", ".fuse_hidden"])
def test_a_wipe_where_removed_files_are_hidden_while_they_are_open_removes_the_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    open_store("lmdb-indexed-batch", path).close()
    with hiding(monkeypatch, prefix):
        wipe(path)
        assert not path.exists()


@pytest.mark.parametrize("prefix", [".nfs", ".fuse_hidden"])
def test_a_creation_that_fails_where_removed_files_are_hidden_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    with hiding(monkeypatch, prefix), monkeypatch.context() as patch, pytest.raises(StoreUnavailableError):
        patch.setattr("stores.files.creation.sync_tree", refused_sync)
        open_store("lmdb-indexed-batch", path)
    assert not path.exists()


def refused_sync(path: Path) -> None:
    raise OSError(28, "No space left on device", str(path))


@pytest.mark.parametrize("prefix", [".nfs", ".fuse_hidden"])
def test_a_file_that_another_process_has_open_while_it_is_removed_is_no_foreign_file(path: Path, prefix: str) -> None:
    """It keeps the folder from being removed, and nothing else."""
    open_store("lmdb-indexed-batch", path).close()
    (path / f"{prefix}0001").touch()
    wipe(path)
    assert [entry.name for entry in path.iterdir()] == [f"{prefix}0001"]
    wipe(path)
    with open_store("lmdb-indexed-batch", path) as store:
        store.verify()
