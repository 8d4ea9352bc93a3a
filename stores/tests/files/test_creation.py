"""A store comes into being whole or not at all, whatever moment a kill comes at."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stores import (
    Durability,
    RecoveryOutcome,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
    open_store,
)
from stores.changelog import SqliteChangelog, log_file
from stores.failpoints import arm, disarm
from stores.files import creation
from stores.files import plain_files as files
from stores.files import store_directory as directory
from stores.files.creation import CREATE_BUILT, CREATE_FINISHED, FAILPOINTS, wipe
from stores.files.plain_files import sync_folder
from stores.strategies import staging
from stores.tests.broken_disk import refuse
from stores.tests.store_process import StoreProcess

BACKENDS = ["rocksdb-dual-store", "lmdb-indexed-batch", "sqlite-indexed-batch"]


@pytest.mark.parametrize("failpoint", FAILPOINTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kill_during_creation_leaves_a_store_or_none(path: Path, backend: str, failpoint: str) -> None:
    letters = [path.with_name(f"store{end}") / "letter" for end in (".new", ".wiped")]
    for letter in letters:
        letter.parent.mkdir()
        letter.write_text("dear")
    with StoreProcess() as process:
        process.call("kill_at", failpoint)
        process.call_until_killed("open", backend, path, Durability.CHANGELOG, {})
    assert (path / "unfinished").exists() is (failpoint != CREATE_FINISHED)
    with open_store(backend, path) as store:
        assert list(store.all()) == []
        store.put(b"key", b"value")
        store.commit()
    assert [letter.read_text() for letter in letters] == ["dear", "dear"]
    assert {entry.name for entry in path.parent.iterdir()} == {"store", "store.new", "store.wiped"}
    assert not (path / "unfinished").exists()


@pytest.mark.parametrize(
    "found",
    [
        {"store.json": '{"name": "my shop"}', "orders.csv": "1"},
        {"store.json": '{"name": "my shop"}', "data/orders.csv": "1"},
        {"store.json": '{"name": "my shop"}', "lock": "12", "data/orders.csv": "1"},
        {"lock": "of my bicycle", "data/orders.csv": "1"},
        {"lock": "of my bicycle"},
        {"unfinished": "symphony"},
        {"unfinished.new": "symphony", "lock": "12"},
        {"lock": "12", "data/orders.csv": "1", "letter.txt": "dear"},
        {"data/orders.csv": "1"},
    ],
)
def test_a_folder_of_something_else_is_refused_and_left_as_it_was(path: Path, found: dict[str, str]) -> None:
    for name, content in found.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    before = sorted(path.rglob("*"))
    for refused in (lambda: open_store("sqlite", path), lambda: wipe(path)):
        with pytest.raises(StoreIncompatibleError):
            refused()
    assert sorted(path.rglob("*")) == before
    assert {name: (path / name).read_text() for name in found} == found


def test_a_lock_on_the_parent_folder_does_not_block_the_creation_of_a_store(path: Path) -> None:
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        with StoreProcess(deadline_s=20) as process:
            process.call("open", "sqlite", path, Durability.CHANGELOG, {})
    finally:
        os.close(above)


def test_a_store_that_is_being_made_is_locked_for_everybody_else(path: Path) -> None:
    def second() -> None:
        for refused in (lambda: open_store("sqlite", path), lambda: wipe(path)):
            with pytest.raises(StoreLockedError):
                refused()

    for failpoint in FAILPOINTS:
        arm(failpoint, second)
        open_store("sqlite", path).close()
        disarm()
        wipe(path)


def test_a_store_folder_may_be_a_link_to_another_place_and_an_empty_folder_stays_where_creation_fails(
    path: Path,
) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir()
    path.symlink_to(elsewhere)
    arm(CREATE_BUILT, refuse)
    with pytest.raises(StoreUnavailableError):
        open_store("sqlite", path)
    disarm()
    assert list(elsewhere.iterdir()) == []
    open_store("sqlite", path).close()
    wipe(path)
    assert list(elsewhere.iterdir()) == []
    assert path.is_symlink()


def test_a_store_folder_has_the_files_that_its_module_lists(path: Path) -> None:
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
        if failpoint != CREATE_FINISHED:
            arm(failpoint, fail)
            with pytest.raises(LookupError):
                open_store("sqlite", path)
            disarm()
            assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "unlink"])
def test_a_disk_that_refuses_when_a_store_is_closed_is_reported_and_the_store_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The next opening finds the store unclean, and no damage."""

    store = open_store("sqlite", path)
    store.put(b"key", b"value")
    store.commit()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailableError):
            store.close()
    assert not store.is_open
    with open_store("sqlite", path) as store:
        assert store.recover().outcome is RecoveryOutcome.ROLLED_BACK
        assert store.get(b"key") == b"value"


def test_the_names_of_the_folders_above_a_store_survive_power_loss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is synced in the folder above it: of the new ones, and of the one that was there."""
    syncs: list[Path] = []

    def sync(folder: Path) -> None:
        syncs.append(folder)
        sync_folder(folder)

    for module in (files, creation, directory):
        monkeypatch.setattr(module, "sync_folder", sync)
    store = path / "state" / "0_0" / "store"
    open_store("sqlite", store).close()
    assert {path.parent, path, path / "state", store.parent} <= set(syncs)
    syncs.clear()
    open_store("sqlite", store, durability=Durability.DISK).close()
    assert store.parent in syncs


def test_a_store_that_could_not_be_synced_once_is_not_trusted_after_power_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it was opened and closed since: a second sync seems to succeed. In this boot nothing is lost."""
    store = open_store("lmdb", path, durability=Durability.PROCESS)
    store.put(b"key", b"value")
    store.commit()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
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
    with monkeypatch.context() as patch:
        patch.setattr(directory, "sync_tree", refuse)
        with pytest.raises(StoreUnavailableError):
            # A level that promises more: opening syncs what that process wrote.
            open_store("lmdb", path, durability=Durability.DISK)
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
    syncs: list[Path] = []
    for module in (staging, log_file):
        monkeypatch.setattr(module, "sync_folder", syncs.append)
    for durability in Durability:
        open_store(backend, path, durability=durability).close()
        folders = [path / "data", *([path / "data.tmp"] if backend == "rocksdb-dual-store" else [])]
        assert syncs == (folders if durability is Durability.DISK else [])
        syncs.clear()
        SqliteChangelog(path.with_name(f"log of {durability}"), durability).close()
        assert syncs == ([path.parent] if durability is Durability.DISK else [])
        syncs.clear()


def _beside_store(file: Path) -> Path:
    return file.parents[2 if file.parent.name == "data" else 1]


DEEP = b'{"backend":' + b"[" * 60_000
STRANGE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link": lambda file: file.symlink_to(_beside_store(file) / "target"),
    "a broken link": lambda file: file.symlink_to(_beside_store(file) / "nowhere"),
    "deep JSON": lambda file: file.write_bytes(DEEP),
    "far too much": lambda file: file.write_bytes(bytes(1 << 20)),
    "a long line": lambda file: file.write_bytes(b"x" * 300),
}
SMALL = [("lmdb", "store.json"), ("lmdb", "open"), ("rocksdb-indexed-batch", "data/CURRENT")]
LARGE = [
    *SMALL,
    ("lmdb", "lock"),
    ("lmdb", "data/data.mdb"),
    ("lmdb", "data/lock.mdb"),
    ("sqlite", "data/store.db"),
    ("sqlite", "data/store.db-wal"),
    ("rocksdb-indexed-batch", "data/LOCK"),
    ("rocksdb-dual-store", "commit"),
]
CASES = [
    *((backend, name, kind) for backend, name in LARGE for kind in ("a pipe", "a link", "a broken link")),
    *((backend, name, kind) for backend, name in SMALL for kind in ("deep JSON", "far too much", "a long line")),
]


@pytest.mark.parametrize(("backend", "name", "kind"), CASES)
def test_what_lies_in_the_place_of_a_store_file_is_damage_and_a_link_is_not_followed(
    path: Path, backend: str, name: str, kind: str
) -> None:
    """It can be wiped and created again; the target of a link stays as it is."""
    target, nowhere = path.with_name("target"), path.with_name("nowhere")
    target.write_bytes(b"dear")
    open_store(backend, path).close()
    (path / name).unlink(missing_ok=True)
    STRANGE[kind](path / name)
    with StoreProcess(deadline_s=20) as process:
        with pytest.raises(StoreCorruptedError):
            process.call("open", backend, path, Durability.PROCESS, {})
        wipe(path)
        process.call("open", backend, path, Durability.PROCESS, {})
    assert target.read_bytes() == b"dear"
    assert not nowhere.exists()


@pytest.mark.parametrize("name", ["open.new", "store.json.new", "unfinished.new", "commit.new"])
def test_a_file_that_is_being_replaced_is_never_written_through_a_link(path: Path, name: str) -> None:
    target = path.with_name("target")
    target.write_bytes(b"dear")
    open_store("rocksdb-dual-store", path).close()
    (path / name).symlink_to(target)
    with suppress(StoreCorruptedError), open_store("rocksdb-dual-store", path) as store:
        store.put(b"key", b"value")
        store.commit()
    wipe(path)
    assert target.read_bytes() == b"dear"


def test_a_flipped_bit_in_the_identity_never_makes_a_store_another_one(path: Path) -> None:
    """A caller leaves a store of another backend alone, and restores a corrupted one."""
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
