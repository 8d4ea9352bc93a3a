"""A name that a commit relies on survives power loss: its folder is synced while the name stands there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores import Durability, failpoints, open_store
from stores.changelog import SqliteChangelog
from stores.files.store_directory import wipe
from stores.registry import backends
from stores.strategies import commit_marker as marker
from stores.strategies import indexed_batch
from stores.tasks.directory.origin_file import Origin, OriginFile

SPILLING = [name for name, backend in backends().items() if indexed_batch.SEALED in backend.failpoints]
SMALL: dict[str, object] = {"staging_buffer_bytes": 100, "copy_part_bytes": 1000}


class Synced:
    """The names that each folder had when it was last synced, by the folder's path."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.names: dict[Path, set[str]] = {}

    def __call__(self, descriptor: int) -> None:
        self._sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.names[Path(os.readlink(f"/proc/self/fd/{descriptor}"))] = set(os.listdir(descriptor))


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


def test_a_store_that_is_wiped_counts_again_only_once_its_files_are_gone_for_good(
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


@pytest.mark.parametrize("durability", Durability)
def test_a_new_changelog_gets_its_name_for_good_once_the_log_of_an_older_one_is_gone_for_good(
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


def test_what_the_file_of_origins_says_survives_power_loss_before_anything_relies_on_it(
    tmp_path: Path, synced: Synced
) -> None:
    file = OriginFile(tmp_path / "origin")
    origins = {"store": Origin.EXACTLY_ONCE}
    file.write(origins)
    assert "origin" in synced.names[tmp_path]
    synced.names.clear()
    # The process that wrote it may have been killed before it synced the name.
    assert file.read(["store"]) == origins
    assert "origin" in synced.names[tmp_path]
    file.write({})
    assert "origin" not in synced.names[tmp_path]
