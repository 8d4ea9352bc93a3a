"""A store comes into being whole or not at all, whatever moment a kill comes at."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from stores import (
    Durability,
    RecoveryOutcome,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
    directory,
    open_store,
)
from stores.changelog import SqliteChangelog, log_file
from stores.directory import CREATE_RENAMED, FAILPOINTS, wipe
from stores.failpoints import arm, disarm
from stores.strategies import opening
from stores.tests.store_process import StoreProcess

BACKENDS = ["rocksdb-dual-store", "lmdb-indexed-batch", "sqlite-indexed-batch"]


def refuse(*_: object) -> None:
    """What a broken disk answers."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


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
    open_store("sqlite", path).close()
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(StoreUnavailableError):
            open_store("sqlite", path)
    open_store("sqlite", path).close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("room_bytes", [0, 60, 1_000, 5_000, 10_000])
def test_a_creation_that_finds_no_room_leaves_nothing_behind(path: Path, backend: str, room_bytes: int) -> None:
    """Wherever it fails: in our own files, in the engine's first ones, or in its first commit."""
    with StoreProcess() as process:
        process.call("load_backend", backend)
        process.call("limit", "RLIMIT_FSIZE", room_bytes)
        for _ in range(2):
            try:
                process.call("open", backend, path, Durability.CHANGELOG, {})
            except StoreUnavailableError:
                assert list(path.parent.iterdir()) == []
            else:
                assert room_bytes == 10_000
                break
        process.call("limit", "RLIMIT_FSIZE", 1 << 40)
    with open_store(backend, path) as store:
        assert list(store.all()) == []


def test_a_creation_that_ends_in_an_error_leaves_nothing_behind(path: Path) -> None:
    def fail() -> None:
        raise LookupError

    for failpoint in FAILPOINTS:
        if failpoint != CREATE_RENAMED:
            arm(failpoint, fail)
            with pytest.raises(LookupError):
                open_store("sqlite", path)
            disarm()
            assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "unlink"])
def test_a_disk_that_refuses_when_a_store_is_closed_is_told_and_the_store_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What it was then opened with is found to be unclean, and harmless."""

    store = open_store("sqlite", path)
    store.put(b"key", b"value")
    store.commit()
    with monkeypatch.context() as broken:
        broken.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailableError):
            store.close()
    assert not store.is_open
    with open_store("sqlite", path) as store:
        assert store.recover().outcome is RecoveryOutcome.ROLLED_BACK
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_disk_that_refuses_a_wipe_is_told_and_the_lock_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    open_store("sqlite", path).close()
    with monkeypatch.context() as broken:
        broken.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailableError):
            wipe(path)
    open_store("sqlite", path).close()
    path.with_name("letter.txt").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        wipe(path.with_name("letter.txt"))


def test_the_names_of_the_folders_above_a_store_survive_power_loss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is synced in the folder above it: of the new ones, and of the one that was there."""
    synced: list[Path] = []
    original = directory.sync_folder

    def sync(folder: Path) -> None:
        synced.append(folder)
        original(folder)

    monkeypatch.setattr(directory, "sync_folder", sync)
    store = path / "state" / "0_0" / "store"
    open_store("sqlite", store).close()
    assert {path.parent, path, path / "state"} <= set(synced)
    synced.clear()
    open_store("sqlite", store, durability=Durability.DISK).close()
    assert store.parent in synced


def test_a_store_that_could_not_be_synced_once_is_not_trusted_after_power_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it was opened and closed since: a second sync seems to succeed. In this boot nothing is lost."""
    store = open_store("lmdb", path, durability=Durability.PROCESS)
    store.put(b"key", b"value")
    store.commit()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailableError):
            store.close()
    for _ in range(2):
        with open_store("lmdb", path, durability=Durability.PROCESS) as store:
            assert store.get(b"key") == b"value"
    with pytest.raises(StoreCorruptedError):
        open_store("lmdb", path, durability=Durability.DISK)
    with monkeypatch.context() as another:
        another.setattr(directory, "boot_id", lambda: "the next boot")
        with pytest.raises(StoreCorruptedError):
            open_store("lmdb", path, durability=Durability.PROCESS)


def test_a_store_that_was_killed_and_could_not_be_synced_by_the_next_is_not_trusted_after_power_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreProcess() as process:
        process.call("open", "lmdb-indexed-batch", path, Durability.PROCESS, {})
        process.call("put", b"key", b"value")
        process.call("commit")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailableError):
            open_store("lmdb", path, durability=Durability.PROCESS)
    with open_store("lmdb", path, durability=Durability.PROCESS) as store:
        assert store.get(b"key") == b"value"
    with pytest.raises(StoreCorruptedError):
        open_store("lmdb", path, durability=Durability.DISK)


def test_a_store_that_has_lost_its_identity_is_damaged_and_can_be_wiped(path: Path) -> None:
    with open_store("rocksdb-dual-store", path) as store:
        store.put(b"key", b"value")
        store.commit()
    (path / "store.json").unlink()
    (path / "letter.txt").write_text("dear")
    for refused in (lambda: open_store("rocksdb-dual-store", path), lambda: wipe(path)):
        with pytest.raises(StoreIncompatibleError):
            refused()
    (path / "letter.txt").unlink()
    with pytest.raises(StoreCorruptedError):
        open_store("rocksdb-dual-store", path)
    wipe(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_names_of_the_files_that_opening_makes_survive_power_loss_at_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Contents that are synced are worth nothing without them."""
    synced: list[Path] = []
    for module in (opening, log_file):
        monkeypatch.setattr(module, "sync_folder", synced.append)
    for durability in Durability:
        open_store(backend, path, durability=durability).close()
        folders = [path / "data", *([path / "data.tmp"] if backend == "rocksdb-dual-store" else [])]
        assert synced == (folders if durability is Durability.DISK else [])
        synced.clear()
        SqliteChangelog(path.with_name(f"log of {durability}"), durability).close()
        assert synced == ([path.parent] if durability is Durability.DISK else [])
        synced.clear()


def test_a_flipped_bit_in_what_a_store_says_it_is_never_makes_it_another_one(path: Path) -> None:
    """Who is told "another backend" must leave the store alone; who is told "corrupted" restores it."""
    open_store("lmdb", path).close()
    identity = path / "store.json"
    whole = identity.read_bytes()
    outcomes = set()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        identity.write_bytes(flipped)
        try:
            open_store("lmdb", path).close()
        except StoreCorruptedError:
            outcomes.add("corrupted")
        else:
            # White space, at most: what it says is the same.
            assert json.loads(flipped) == json.loads(whole)
            outcomes.add("harmless")
    assert "corrupted" in outcomes
    identity.write_bytes(whole)
    with pytest.raises(StoreIncompatibleError):
        open_store("sqlite", path)
