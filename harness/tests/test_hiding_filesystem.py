"""Stores on a file system that keeps a removed file in its folder while it is open, as FUSE and NFS do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.folders import quick_folder
from harness.tests.filesystems.hiding import hiding, missing
from stores.changelog import MemoryChangelog, Record
from stores.errors import StoreUnavailableError
from stores.files.creation import wipe
from stores.registry import backends, open_store
from stores.settings import Upgrade
from stores.tasks import DirectoryLayout, StateDirectory, Topology, change_layout, relocate
from stores.tasks.directory.unnamed_stores import clean_stores
from stores.tests.tasks.directory.relocating import PRESENT, STORES, lay_out
from stores.tests.tasks.typed import feed_times, store_folder
from stores.tests.tasks.upgrading import WAYS, expected, names_beside, new_task, old_task, shown, to_new, work

PERSISTENT = [name for name, backend in backends().items() if backend.persistent]


@pytest.fixture(scope="module")
def file_system() -> Iterator[Path]:
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="hiding-", dir=quick_folder()))
    try:
        (folder / "below").mkdir()
        with hiding(folder / "below", folder / "mount") as place:
            yield place
    finally:
        if not (folder / "mount").is_mount():
            shutil.rmtree(folder)


@pytest.fixture
def mount(file_system: Path) -> Path:
    """An empty folder of the file system."""
    return Path(tempfile.mkdtemp(dir=file_system))


def hidden(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".fuse_hidden*")]


def test_the_file_system_hides_a_file_that_is_open_at_its_removal(mount: Path) -> None:
    """Else all that follows would show nothing."""
    (mount / "file").touch()
    with (mount / "file").open() as _:
        (mount / "file").unlink()
        assert len(hidden(mount)) == 1
        (mount / "folder").mkdir()
    assert [entry.name for entry in mount.iterdir()] == ["folder"]


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch"])
def test_a_wipe_removes_the_store_s_folder(mount: Path, backend: str) -> None:
    with open_store(backend, mount / "store") as store:
        store.put(b"key", b"value")
        store.commit({})
    wipe(mount / "store")
    assert list(mount.iterdir()) == []


def again(record: Record, version: int) -> list[tuple[bytes, bytes | None]]:
    return list(to_new(record, 0)) if version == 0 else [(record.key or b"", record.value)]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_is_upgraded_twice(mount: Path, backend: str, way: str) -> None:
    log = MemoryChangelog()
    feed_times(log, range(12))
    work(old_task(mount, log, backend), 6)
    work(WAYS[way](mount, log, backend), 3)
    with closing(new_task(mount, log, backend, store_upgrade=Upgrade(2, again))) as task:
        task.open()
        task.run(commit=True)
        assert shown(task) == expected(12)
    assert names_beside(mount) == []
    assert hidden(mount) == []


@pytest.mark.long
@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_damaged_store_is_wiped_and_restored(mount: Path, backend: str) -> None:
    log = MemoryChangelog()
    feed_times(log, range(6))
    work(old_task(mount, log, backend))
    (store_folder(mount) / "store.json").write_text("damaged")
    with closing(old_task(mount, log, backend)) as task:
        assert [report.wiped for report in task.open()] == [True]
    path = store_folder(mount)
    wipe(path)
    assert not path.exists()
    assert hidden(mount) == []


@pytest.mark.long
def test_stores_are_relocated_and_their_layout_is_changed_and_they_are_cleaned(mount: Path) -> None:
    state = mount / "state"
    lay_out(state)
    relocate(state, PRESENT)
    change_layout(state, DirectoryLayout.STORE_PARTITION)
    change_layout(state, DirectoryLayout.TASK, topology=PRESENT)
    for path in state.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert len(StateDirectory(state).clean(0.0)) == len(PRESENT.subtopologies)
    assert [entry.name for entry in state.iterdir() if entry.is_dir()] == []


@pytest.mark.long
def test_a_store_that_is_no_longer_named_is_removed_with_its_folder(mount: Path) -> None:
    state = mount / "state"
    lay_out(state)
    change_layout(state, DirectoryLayout.STORE_PARTITION)
    for _ in range(2):
        for path in state.rglob("*"):
            os.utime(path, (1e9, 1e9))
        clean_stores(StateDirectory(state), Topology({}), 0.0)
    assert [entry.name for entry in state.iterdir() if entry.is_dir() and entry.name in STORES] == []


@pytest.mark.long
@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_creation_that_fails_leaves_nothing_and_can_be_repeated(
    mount: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched, pytest.raises(StoreUnavailableError):
        patched.setattr("stores.files.creation.sync_tree", full)
        open_store(backend, mount / "store")
    assert list(mount.iterdir()) == []
    with open_store(backend, mount / "store") as store:
        store.verify()
