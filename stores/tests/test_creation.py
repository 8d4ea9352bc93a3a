"""A store comes into being whole or not at all, whatever moment a kill comes at."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores import Durability, StoreIncompatibleError, StoreLockedError, StoreUnavailableError, open_store
from stores.directory import CREATE_RENAMED, FAILPOINTS, wipe
from stores.tests.store_process import StoreProcess

BACKENDS = ["rocksdb-dual-store", "lmdb-indexed-batch", "sqlite-indexed-batch"]


@pytest.mark.parametrize("failpoint", FAILPOINTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kill_during_creation_leaves_a_store_or_none(path: Path, backend: str, failpoint: str) -> None:
    with StoreProcess() as process:
        process.call("kill_at", failpoint)
        process.call_until_killed("open", backend, path, Durability.CHANGELOG, {})
    assert path.exists() is (failpoint == CREATE_RENAMED)
    with open_store(backend, path) as store:
        assert list(store.all()) == []
        store.put(b"key", b"value")
        store.commit()
    assert [entry.name for entry in path.parent.iterdir()] == ["store"]


def test_leftovers_of_a_creation_are_removed_by_the_next(path: Path) -> None:
    for leftover in ("store.new", "store.wiped"):
        (path.parent / leftover / "deep").mkdir(parents=True)
        (path.parent / leftover / "deep" / "file").touch()
    open_store("lmdb", path).close()
    assert [entry.name for entry in path.parent.iterdir()] == ["store"]


def test_wiping_removes_a_store_and_its_leftovers_and_nothing_else(path: Path) -> None:
    wipe(path)
    store = open_store("sqlite", path)
    with pytest.raises(StoreLockedError):
        wipe(path)
    store.close()
    (path.parent / "store.new").mkdir()
    wipe(path)
    assert list(path.parent.iterdir()) == []
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        wipe(path)
    assert (path / "letter.txt").read_text() == "dear"


def test_a_store_folder_holds_what_its_module_says(path: Path) -> None:
    with open_store("rocksdb-dual-store", path):
        assert {entry.name for entry in path.iterdir()} == {"store.json", "lock", "open", "data", "data.tmp"}
    assert {entry.name for entry in path.iterdir()} == {"store.json", "lock", "data", "data.tmp"}


def test_a_lock_that_finds_no_room_for_its_name_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, content: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    open_store("sqlite", path).close()
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(StoreUnavailableError):
            open_store("sqlite", path)
    open_store("sqlite", path).close()
