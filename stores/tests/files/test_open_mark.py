"""The mark that a store is open: what power loss may have torn is found out, whatever level it is opened at next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores.errors import StoreCorruptedError
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
def test_what_a_process_left_unsynced_is_synced_by_who_opens_it_at_a_level_that_promises_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """And is then trusted in the next boot, however that one ended."""
    killed(path, backend, Durability.PROCESS)
    synced: list[Path] = []

    def watched(folder: Path) -> None:
        synced.append(folder)
        sync_tree(folder)

    monkeypatch.setattr(directory, "sync_tree", watched)
    store = reopened(path, backend, Durability.DISK)
    assert synced == [path]
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


def test_a_store_that_was_open_at_a_level_that_survives_power_loss_is_trusted_at_every_level_in_the_next_boot(
    path: Path,
) -> None:
    killed(path, LMDB, Durability.DISK)
    with next_boot():
        for asked in sorted(Durability):
            with reopened(path, LMDB, asked) as store:
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
