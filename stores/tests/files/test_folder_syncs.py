"""A name that a commit relies on survives power loss: its file is synced before, and its folder afterwards."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from stores import Durability, failpoints, open_store
from stores.changelog import SqliteChangelog
from stores.engines.lmdb.engine import LmdbEngine
from stores.files import creation, folder, store_directory
from stores.files.creation import wipe
from stores.files.folder import LocalFolder
from stores.files.plain_files import remove
from stores.files.store_directory import StoreDirectory
from stores.interface import KeyValueStore, TopicPartition
from stores.registry import StoreBackend, backends
from stores.snapshots.index import SnapshotFile, SnapshotIndex, SnapshotKind, StoredPart
from stores.snapshots.objects import FILES, StoreObjects
from stores.strategies import indexed_batch
from stores.strategies import spilled as marker
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.state_directory import PROCESS_FILE, StateDirectory
from stores.tasks.directory.store_places import (
    JOURNAL_FILE,
    LAYOUT_FILE,
    DirectoryLayout,
    remove_streams_store,
    write_layout,
)

SPILLING = [name for name, backend in backends().items() if indexed_batch.SEALED in backend.failpoints]
SMALL: dict[str, object] = {"staging_buffer_bytes": 100, "copy_part_bytes": 1000}


class Synced:
    """The names that each folder had when it was last synced, by the folder's path, and the files that were synced."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.names: dict[Path, set[str]] = {}
        self.inodes: set[int] = set()

    def __call__(self, descriptor: int) -> None:
        self._sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.names[Path(os.readlink(f"/proc/self/fd/{descriptor}"))] = set(os.listdir(descriptor))
        else:
            self.inodes.add(os.fstat(descriptor).st_ino)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("which folder a descriptor is of is asked of Linux")
    watching = Synced(os.fsync)
    monkeypatch.setattr(os, "fsync", watching)
    return watching


@contextmanager
def looking_at(failpoint: str, look: Callable[[], None]) -> Iterator[list[str]]:
    """Call ``look`` whenever the failpoint is reached; yields the failpoint as often as it was."""
    reached: list[str] = []

    def act() -> None:
        look()
        reached.append(failpoint)

    failpoints.arm(failpoint, act)
    try:
        yield reached
    finally:
        failpoints.disarm()


@pytest.mark.parametrize(
    ("level", "options"), [(Durability.DISK, {}), (Durability.PROCESS, SMALL)], ids=["at DISK", "in parts"]
)
def test_the_folder_of_a_commit_marker_is_synced_once_the_marker_stands_in_it(
    path: Path, synced: Synced, level: Durability, options: dict[str, object]
) -> None:
    """A copy in several parts needs it at every level: power loss may keep a part and not the rest."""

    def look() -> None:
        assert "commit" in synced.names[path]

    with open_store("rocksdb-dual-store", path, durability=level, options=options) as store:
        for _ in range(2):
            synced.names.clear()
            store.put(b"key", b"v" * 500)
            with looking_at(marker.MARKER_SYNCED, look) as reached:
                store.commit()
            assert reached


@pytest.mark.parametrize("backend", SPILLING)
def test_every_folder_of_a_spill_is_synced_before_its_commit_is_decided(
    path: Path, synced: Synced, backend: str
) -> None:
    def look() -> None:
        parent = path / "data.tmp"
        [folder] = parent.iterdir()
        assert synced.names[folder] >= {entry.name for entry in folder.iterdir()}
        assert folder.name in synced.names[parent]
        assert parent.name in synced.names[path]

    with open_store(backend, path, options=SMALL) as store:
        for _ in range(2):
            synced.names.clear()
            store.put(b"key", b"v" * 500)
            with looking_at(indexed_batch.SEALED, look) as reached:
                store.commit()
            assert reached


@pytest.mark.parametrize("backend", [name for name in backends() if backends()[name].persistent])
def test_the_name_of_a_new_store_and_the_end_of_its_open_mark_survive_power_loss(
    path: Path, synced: Synced, backend: str
) -> None:
    with open_store(backend, path):
        assert path.name in synced.names[path.parent]
        assert "open" in os.listdir(path)
    assert "open" not in synced.names[path]
    synced.names.clear()
    if Durability.DISK in backends()[backend].durabilities:
        # The process that made it may have been killed before it synced the name.
        open_store(backend, path, durability=Durability.DISK).close()
        assert path.name in synced.names[path.parent]


def test_a_wiped_store_is_created_again_only_after_its_files_are_durably_removed(
    path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else power loss could bring them back without the marker that says that nothing counts."""
    open_store("lmdb", path).close()
    unlink, marked = Path.unlink, []

    def look(file: Path, missing_ok: bool = False) -> None:
        if file.name == "unfinished":
            marked.append(synced.names[path] & {"unfinished", "store.json", "data"})
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    wipe(path)
    assert marked == [{"unfinished"}]
    assert path.name not in synced.names[path.parent]


def test_a_store_that_is_wiped_on_a_full_disk_is_none_for_good_before_its_files_go(
    path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for a marker, so the file with its identity becomes the marker."""
    open_store("lmdb", path).close()
    left: list[set[str]] = []

    def full(file: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    def look(file: Path) -> None:
        left.append(synced.names.get(path, set()) & {"unfinished", "store.json", "data"})
        remove(file)

    monkeypatch.setattr(creation, "replace_file", full)
    monkeypatch.setattr(creation, "remove", look)
    wipe(path)
    assert left[:2] == [{"store.json", "data"}, {"unfinished", "data"}]


def test_a_wiped_store_of_another_package_stays_removed_after_power_loss(path: Path, synced: Synced) -> None:
    path.mkdir()
    StoreBackend("theirs", load_store=lambda: KeyValueStore).wipe(path)
    assert path.name not in synced.names[path.parent]


@pytest.mark.parametrize("durability", Durability)
def test_a_new_changelog_gets_its_durable_name_after_the_older_wal_is_durably_removed(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    """SQLite would take the pages of that log for the new file's."""
    file, stale = tmp_path / "log", tmp_path / "log-wal"
    stale.write_bytes(b"\x37\x7f\x06\x82")
    link, linked = os.link, []

    def look(new: Path, name: Path) -> None:
        linked.append(stale.name in synced.names[tmp_path])
        link(new, name)

    monkeypatch.setattr(os, "link", look)
    SqliteChangelog(file, durability).close()
    assert linked == [False]
    assert file.name in synced.names[tmp_path]


def compact(folder: Path) -> None:
    open_store("lmdb", folder / "store").close()
    LmdbEngine.compact(folder / "store" / "data", {})


def put_rows(folder: Path) -> None:
    with LocalFolder(folder).create("rows") as file:
        file.write(b"1")


PLACED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an embedded changelog": (lambda folder: SqliteChangelog(folder / "log").close(), "log"),
    "a version of a log": (lambda folder: LocalFolder(folder).put_if_absent("version", b"1"), "version"),
    "the rows of a version": (put_rows, "rows"),
    "a compacted store of LMDB": (compact, "data.mdb"),
}
"""The functions that put a file in its place, each with the name of the file."""


@pytest.mark.parametrize("what", PLACED)
def test_a_file_is_synced_before_it_has_its_name_and_its_folder_afterwards(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Else power loss may leave the name with a part of the file, or without it."""
    place, name = PLACED[what]
    whole: list[bool] = []
    folders: list[Path] = []

    def look(put: Callable[..., None], source: Path, target: Path, **given: bool) -> None:
        if Path(target).name == name:
            whole.append(os.stat(source).st_ino in synced.inodes)
            folders.append(Path(target).parent)
            synced.names.clear()
        put(source, target, **given)

    for call in ("link", "rename", "replace"):
        monkeypatch.setattr(os, call, partial(look, getattr(os, call)))
    place(tmp_path)
    assert whole == [True]
    assert name in synced.names[folders[0]]


def test_the_folders_of_a_log_that_another_process_has_made_are_synced_in_those_above(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed before it synced their names."""
    log = tmp_path / "log"
    (log / "p00000").mkdir(parents=True)
    for use in (lambda: LocalFolder(log).put_if_absent("p00000/1", b"1"), lambda: LocalFolder(log).settle("p00000/1")):
        synced.names.clear()
        monkeypatch.setattr(LocalFolder, "_durable", set())
        use()
        assert "p00000" in synced.names[log]
        assert "log" in synced.names[tmp_path]
        assert "1" in synced.names[log / "p00000"]


def test_the_parts_of_a_snapshot_survive_power_loss_before_its_index_is_in_place(
    tmp_path: Path, synced: Synced
) -> None:
    objects = StoreObjects(LocalFolder(tmp_path), TopicPartition("log", 0))
    parts = [StoredPart(str(number) * 64, 3, "0" * 16) for number in range(3)]
    kind = SnapshotKind("id", "lmdb-indexed-batch", 1, {})
    index = SnapshotIndex(
        partition=objects.partition,
        offset=7,
        kind=kind,
        position={},
        stream_time_ms=-1,
        created_ms=0,
        files=[SnapshotFile("data.mdb", parts)],
    )

    def look() -> None:
        files = tmp_path / objects.path(FILES)
        assert synced.names[files] == set(map(str, parts))
        assert {(files / str(part)).stat().st_ino for part in parts} <= synced.inodes

    with looking_at(folder.ASIDE_WRITTEN, look) as reached:
        for part in parts:
            objects.put(part, b"123")
        # One sync of the folder is enough for all parts.
        assert not synced.names.get(tmp_path / objects.path(FILES))
        assert objects.put_index(index)
    assert reached


def test_the_log_of_sqlite_has_a_spill_for_good_before_the_spill_goes(path: Path, synced: Synced) -> None:
    """At PROCESS, where no commit syncs the log."""

    def look() -> None:
        [log] = path.glob("data/*-wal")
        assert log.stat().st_ino in synced.inodes

    with open_store("sqlite", path, durability=Durability.PROCESS, options=SMALL) as store:
        synced.inodes.clear()
        store.put(b"key", b"v" * 500)
        with looking_at(indexed_batch.COPIED, look) as reached:
            store.commit()
        assert reached


def test_a_migration_writes_all_data_before_the_new_identity(
    path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store("lmdb", path).close()
    writes: list[bool] = []

    def replaced(file: Path, text: str) -> None:
        writes.append((path / "data" / "new").stat().st_ino in synced.inodes and "new" in synced.names[path / "data"])

    directory = StoreDirectory.lock_existing(path, "lmdb-indexed-batch")
    try:
        (directory.data / "new").touch()
        monkeypatch.setattr(store_directory, "replace_file", replaced)
        directory.identify(directory.identity)
    finally:
        directory.release()
    assert writes == [True]


NOTES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    ".checkpoint": (
        lambda folder: CheckpointFile(folder / ".checkpoint").write({TopicPartition("a", 0): 1}),
        lambda folder: CheckpointFile(folder / ".checkpoint").read(),
    ),
    ".origin": (
        lambda folder: OriginFile(folder / ".origin").write({"store": Origin.EXACTLY_ONCE}),
        lambda folder: OriginFile(folder / ".origin").read(["store"]),
    ),
    JOURNAL_FILE: (lambda folder: Journal(()).write(folder), Journal.read),
    PROCESS_FILE: (lambda folder: StateDirectory(folder).process_id(),) * 2,
}
"""The files that tasks rely on, by name: what writes one, and what reads it."""


@pytest.mark.parametrize("name", NOTES)
def test_a_note_survives_power_loss_before_anything_relies_on_it(tmp_path: Path, synced: Synced, name: str) -> None:
    """The process that wrote it may have been killed before it synced the name."""
    for step in NOTES[name]:
        synced.names.clear()
        assert step(tmp_path) != {}
        assert name in synced.names[tmp_path]


REMOVALS: dict[str, Callable[[Path], object]] = {
    ".checkpoint": lambda folder: CheckpointFile(folder / ".checkpoint").forget(TopicPartition("a", 0)),
    ".origin": lambda folder: OriginFile(folder / ".origin").write({}),
    JOURNAL_FILE: lambda folder: Journal(()).carry_out(folder),
    LAYOUT_FILE: lambda folder: write_layout(folder, DirectoryLayout.TASK),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_power_loss_brings_no_removed_note_back(tmp_path: Path, synced: Synced, name: str) -> None:
    (tmp_path / name).write_bytes(b"damaged")
    REMOVALS[name](tmp_path)
    assert name not in synced.names[tmp_path]


def test_the_file_by_which_a_store_of_kafka_streams_is_known_goes_last_for_good(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else power loss could leave files that nobody recognizes and removes."""
    store, unlink, left = tmp_path / "store", Path.unlink, []
    store.mkdir()
    for name in ("CURRENT", "MANIFEST-000001", "000004.sst"):
        (store / name).touch()

    def look(file: Path, missing_ok: bool = False) -> None:
        if file.name == "CURRENT":
            left.append(synced.names[store])
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    remove_streams_store(store)
    assert left == [{"CURRENT"}]
    assert store.name not in synced.names[tmp_path]
