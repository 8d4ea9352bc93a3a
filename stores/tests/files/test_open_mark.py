"""The mark that a store is open: what power loss may have torn is found out, whatever level it is opened at next."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files import identity, plain_files
from stores.files import store_directory as directory
from stores.files.plain_files import sync_folder, sync_tree
from stores.interface import Durability, KeyValueStore
from stores.registry import backend_named, open_store
from stores.tests.store_process import StoreProcess

LMDB, ROCKSDB = "lmdb-indexed-batch", "rocksdb-indexed-batch"
TORN = [
    (name, level)
    for name in (LMDB, ROCKSDB)
    for level in sorted(backend_named(name).durabilities)
    if backend_named(name).load_engine().torn_by_power_loss(level)
]


def killed(path: Path, backend: str, level: Durability) -> None:
    """A store of one commit, whose process is killed while it is open."""
    with StoreProcess() as process:
        process.call("open", backend, path, level, {})
        process.call("put", b"key", b"value")
        process.call("commit")


def reopened(path: Path, backend: str, level: Durability) -> KeyValueStore:
    return open_store(backend, path, durability=level)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@contextmanager
def next_boot() -> Iterator[None]:
    """Let the machine have another boot ID in the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "boot_id", lambda: "the next boot")
        yield


def test_there_are_levels_that_power_loss_tears_and_others() -> None:
    assert {backend for backend, _ in TORN} == {LMDB, ROCKSDB}
    assert Durability.DISK not in {level for _, level in TORN}


@pytest.mark.parametrize(("backend", "level"), TORN)
def test_a_store_that_was_open_at_a_level_that_power_loss_tears_is_corrupt_at_every_level_in_the_next_boot(
    path: Path, backend: str, level: Durability
) -> None:
    """To ask for a better level changes nothing of what the disk has."""
    killed(path, backend, level)
    with next_boot():
        for asked in sorted(backend_named(backend).durabilities):
            with pytest.raises(StoreCorruptedError):
                reopened(path, backend, asked)
    with reopened(path, backend, level) as store:
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize("backend", [LMDB, ROCKSDB])
def test_opening_at_a_stronger_level_syncs_what_the_last_process_left_unsynced(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """And is then trusted in the next boot, however that one ended."""
    killed(path, backend, Durability.PROCESS)
    folders: list[Path] = []

    def watched(folder: Path) -> None:
        folders.append(folder)
        sync_tree(folder)

    monkeypatch.setattr(directory, "sync_tree", watched)
    store = reopened(path, backend, Durability.DISK)
    assert folders == [path]
    mark = (path / "open").read_bytes()
    store.close()
    (path / "open").write_bytes(mark)  # As if it had been killed.
    with next_boot(), reopened(path, backend, Durability.DISK) as store:
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize(("backend", "level"), TORN)
def test_a_store_that_is_killed_twice_at_such_a_level_is_corrupt_in_the_next_boot_though_nothing_was_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, level: Durability
) -> None:
    """Its mark says so all the time, so opening need not wait for the disk."""
    killed(path, backend, level)
    with monkeypatch.context() as patch:
        patch.setattr(directory, "sync_tree", lambda folder: pytest.fail(f"{folder} was synced"))
        store = reopened(path, backend, level)
    mark = (path / "open").read_bytes()
    store.close()
    (path / "open").write_bytes(mark)  # As if it had been killed.
    with next_boot():
        for asked in sorted(backend_named(backend).durabilities):
            with pytest.raises(StoreCorruptedError):
                reopened(path, backend, asked)


@contextmanager
def syncs() -> Iterator[list[str]]:
    """The names of the files and folders that are synced in the block."""
    seen: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", watched)
        yield seen


@pytest.mark.parametrize(("backend", "level"), TORN)
def test_a_mark_that_survives_power_loss_is_kept_by_the_next_process_of_this_boot(
    path: Path, backend: str, level: Durability
) -> None:
    killed(path, backend, level)
    mark = (path / "open").read_bytes()
    with syncs() as folders:
        store = reopened(path, backend, level)
    try:
        assert not {"open.new", path.name} & set(folders)
        assert (path / "open").read_bytes() == mark
    finally:
        store.close()
    assert not (path / "open").exists()


@pytest.mark.parametrize("asked", [Durability.PROCESS, Durability.DISK])
def test_a_mark_of_another_level_is_replaced(path: Path, asked: Durability) -> None:
    killed(path, LMDB, Durability.CHANGELOG)
    with syncs() as folders, reopened(path, LMDB, asked):
        assert {"open.new", path.name} <= set(folders)


def test_the_mark_of_a_copied_store_is_written_again(path: Path, tmp_path: Path) -> None:
    """Nothing says that the copy survives power loss."""
    killed(path, LMDB, Durability.CHANGELOG)
    shutil.copytree(path, tmp_path / "copy")
    with syncs() as folders, reopened(tmp_path / "copy", LMDB, Durability.CHANGELOG):
        assert {"open.new", "copy"} <= set(folders)


def test_a_mark_that_was_put_back_later_is_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the files of a backup get the numbers of those that were removed."""
    killed(path, LMDB, Durability.CHANGELOG)
    place = identity._place
    monkeypatch.setattr(identity, "_place", lambda folder: (*place(folder)[:3], place(folder)[3] + 2_000_000_000))
    with syncs() as folders, reopened(path, LMDB, Durability.CHANGELOG):
        assert {"open.new", path.name} <= set(folders)


def test_a_mark_whose_syncs_were_not_ended_is_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that replaced it was killed, or refused, before its folder was synced."""
    reopened(path, LMDB, Durability.CHANGELOG).close()

    def failing(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(plain_files, "sync_folder", failing)
        with pytest.raises(StoreUnavailableError):
            reopened(path, LMDB, Durability.CHANGELOG)
    assert (path / "open").exists()
    with syncs() as folders, reopened(path, LMDB, Durability.CHANGELOG):
        assert {"open.new", path.name} <= set(folders)


@pytest.mark.parametrize("note", [b"", b"1 2 three 4", b"1", b"\0" * 8])
def test_a_mark_with_another_note_is_written_again(path: Path, note: bytes) -> None:
    killed(path, LMDB, Durability.CHANGELOG)
    mark = (path / "open").read_bytes()
    value = json.loads(mark)["synced"].encode()
    (path / "open").write_bytes(mark.replace(value, json.dumps(note.decode().ljust(len(value))).encode()[1:-1]))
    with syncs() as folders, reopened(path, LMDB, Durability.CHANGELOG):
        assert {"open.new", path.name} <= set(folders)


def test_a_mark_of_a_level_that_survives_power_loss_is_written_by_each_process(path: Path) -> None:
    """Its folder is synced with it: files that were created or replaced there need that at this level."""
    killed(path, LMDB, Durability.DISK)
    assert "synced" not in json.loads((path / "open").read_bytes())
    with syncs() as folders, reopened(path, LMDB, Durability.DISK):
        assert {"open.new", path.name} <= set(folders)


def test_a_store_that_was_open_at_a_level_that_survives_power_loss_is_trusted_at_every_level_in_the_next_boot(
    path: Path,
) -> None:
    killed(path, LMDB, Durability.DISK)
    with next_boot():
        for level in sorted(Durability):
            with reopened(path, LMDB, level) as store:
                assert store.get(b"key") == b"value"


@pytest.mark.parametrize("level", sorted(Durability))
def test_the_removal_of_the_mark_survives_power_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch, level: Durability
) -> None:
    """Else a store that was closed would be restored for nothing."""
    store = reopened(path, LMDB, level)
    marked: list[bool] = []

    def watched(folder: Path) -> None:
        if folder == path:
            marked.append((path / "open").exists())
        sync_folder(folder)

    monkeypatch.setattr(directory, "sync_folder", watched)
    store.close()
    assert marked == [False]


@pytest.mark.parametrize(("backend", "level"), TORN)
def test_a_store_that_was_closed_is_trusted_in_the_next_boot(path: Path, backend: str, level: Durability) -> None:
    with reopened(path, backend, level) as store:
        store.put(b"key", b"value")
        store.commit()
    with next_boot(), reopened(path, backend, level) as store:
        assert store.get(b"key") == b"value"
