"""The library's own files: nothing else in their place is read, followed or waited for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from stores.files.plain_files import StrangeFileError, atomic_write, open_plain, read_file, sync_tree


def test_a_pipe_in_place_of_a_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    """Opened without waiting it reads like an empty file."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StrangeFileError):
        read_file(tmp_path / "pipe")
    with pytest.raises(StrangeFileError):
        open_plain(tmp_path / "pipe", os.O_RDWR)


def test_a_file_longer_than_any_that_the_library_writes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 11)
    assert read_file(tmp_path / "file", 11) == b"x" * 11
    with pytest.raises(StrangeFileError):
        read_file(tmp_path / "file", 10)


def test_a_tree_is_synced_without_its_links(tmp_path: Path) -> None:
    """Not even one that leads nowhere keeps the rest from being synced."""
    (tmp_path / "tree" / "folder").mkdir(parents=True)
    (tmp_path / "tree" / "folder" / "file").write_bytes(b"1")
    (tmp_path / "tree" / "nowhere").symlink_to(tmp_path / "absent")
    (tmp_path / "tree" / "folder" / "link").symlink_to(tmp_path / "tree" / "folder" / "file")
    os.mkfifo(tmp_path / "tree" / "pipe")
    sync_tree(tmp_path / "tree")


@pytest.mark.parametrize("durable", [True, False])
def test_an_atomic_write_cut_short_leaves_the_old_file_and_can_be_repeated(tmp_path: Path, durable: bool) -> None:
    file = tmp_path / "file"
    atomic_write(file, b"old")

    def interrupt() -> NoReturn:
        assert file.read_bytes() == b"old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(file, b"new", durable=durable, before_sync=interrupt)
    assert file.read_bytes() == b"old"
    atomic_write(file, b"new", durable=durable)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"new")]


def test_an_atomic_write_syncs_the_file_before_it_is_renamed_and_the_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    syncs: list[bool] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        syncs.append(file.exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    atomic_write(file, b"content")
    assert syncs == [False, True]
    atomic_write(file, b"content", durable=False)
    assert syncs == [False, True]
