"""Stores of an earlier release's layout: moved below their engines' folders when a task opens, each by one rename."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.errors import StoreIncompatibleError
from stores.registry import open_store
from stores.tasks import StateDirectory, StoreConfig, TaskContext
from stores.tasks.directory.store_places import FAILPOINTS, Place, move_old_stores, places
from stores.tests.tasks.killed_process import call_until_killed
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    TASK,
    checkpoint,
    counting_task,
    expected_state,
    feed,
    single,
    state,
    store_folder,
)

KEYS = [1, 2, 1]
BACKENDS = {"rocksdb": INDEXED, "lmdb": "sqlite-indexed-batch", "left": "lmdb-indexed-batch", "sqlite": INDEXED}
"""Stores named like engines: their own, and those of others."""


def in_the_old_layout(folder: Path) -> Path:
    """Stores as an earlier release has left them; returns the task's folder."""
    for name, backend in BACKENDS.items():
        with open_store(backend, folder / "state" / str(TASK) / name, name=name) as store:
            store.put(b"key", name.encode())
            store.commit()
    return folder / "state" / str(TASK)


def keep_key(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    context.store("s").put(record.key, b"1")


def bring_all_in(folder: Path) -> None:
    move_old_stores(folder / "state" / str(TASK), {})


def inodes(folder: Path) -> set[int]:
    return {entry.stat().st_ino for entry in folder.rglob("*") if "data" in entry.parts}


def check_all_in(folder: Path) -> None:
    task_folder = folder / "state" / str(TASK)
    assert {entry.name for entry in task_folder.iterdir()} == {"rocksdb", "lmdb", "sqlite"}
    for name, backend in BACKENDS.items():
        with open_store(backend, store_folder(folder, backend, name), name=name) as store:
            assert list(store.all()) == [(b"key", name.encode())]


@pytest.mark.parametrize("backend", [INDEXED, DIRECT, "lmdb-native", "sqlite-indexed-batch"])
def test_a_store_of_the_old_layout_is_moved_as_it_is_and_nothing_is_replayed(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-816, "Compatibility, Deprecation, and Migration Plan"."""
    feed(log, KEYS)
    task = counting_task(tmp_path, log, backend)
    task.open()
    task.run()
    task.close()
    folder = checkpoint(tmp_path).path.parent
    for name in ("left", "right"):
        store_folder(tmp_path, backend, name).rename(folder / name)
    before = (folder / "left").stat().st_ino
    for _ in range(2):
        task = counting_task(tmp_path, log, backend)
        assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
        assert state(task, "left") == expected_state(KEYS)
        assert not (folder / "left").exists()
        assert store_folder(tmp_path, backend, "left").stat().st_ino == before
        task.close()


def test_stores_named_like_engines_find_their_places_by_what_they_say_of_themselves(tmp_path: Path) -> None:
    before = inodes(in_the_old_layout(tmp_path))
    bring_all_in(tmp_path)
    assert inodes(tmp_path) == before
    check_all_in(tmp_path)


@pytest.mark.parametrize("hit", range(1, 4))
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_move_that_is_cut_short_anywhere_is_completed_by_the_next(tmp_path: Path, failpoint: str, hit: int) -> None:
    in_the_old_layout(tmp_path)
    assert call_until_killed(bring_all_in, tmp_path, failpoint, hit)
    bring_all_in(tmp_path)
    check_all_in(tmp_path)


def test_a_store_in_both_places_is_refused_and_neither_is_touched(tmp_path: Path, log: MemoryChangelog) -> None:
    """No checkpoint says which of the two it is about."""
    folder = tmp_path / "state" / str(TASK)
    for path in (folder / "left", store_folder(tmp_path, "lmdb", "left")):
        open_store("lmdb", path).close()
    before = inodes(folder)
    with pytest.raises(StoreIncompatibleError):
        counting_task(tmp_path, log, "lmdb").open()
    assert inodes(folder) == before


def test_a_store_of_another_engine_is_refused_and_no_other_is_made_beside_it(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, KEYS)
    task = counting_task(tmp_path, log, "lmdb")
    task.open()
    task.run()
    task.close()
    with pytest.raises(StoreIncompatibleError):
        counting_task(tmp_path, log, "sqlite").open()
    assert not (checkpoint(tmp_path).path.parent / "sqlite").exists()
    task.open()
    assert state(task, "left") == expected_state(KEYS)
    task.close()


def test_a_damaged_store_of_the_old_layout_is_found_by_its_name_and_restored(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed(log, KEYS)
    task = single(tmp_path, log, keep_key, "lmdb")
    task.open()
    task.run()
    task.close()
    old = checkpoint(tmp_path).path.with_name("s")
    store_folder(tmp_path, "lmdb", "s").rename(old)
    (old / "store.json").write_bytes(b"garbage")
    assert [(report.wiped, report.records) for report in task.open()] == [(True, len(KEYS))]
    assert not old.exists()
    task.close()


def test_links_and_what_is_nobody_s_store_stay_where_they_are(tmp_path: Path, log: MemoryChangelog) -> None:
    folder = in_the_old_layout(tmp_path)
    (folder / "notes").mkdir()
    (folder / "notes" / "letter").write_text("dear")
    (folder / "left").rename(tmp_path / "elsewhere")
    (folder / "left").symlink_to(tmp_path / "elsewhere")
    task = counting_task(tmp_path, log, stores={"rocksdb": StoreConfig(INDEXED)})
    task.open()
    task.close()
    assert (folder / "notes" / "letter").read_text() == "dear"
    assert (folder / "left").is_symlink()
    assert not (folder / "lmdb" / "left").exists()


def test_a_task_s_folder_is_removed_with_stores_of_either_layout(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    for bring in (False, True):
        in_the_old_layout(tmp_path)
        if bring:
            bring_all_in(tmp_path)
        assert {place.store for place in places(tmp_path / "state" / str(TASK))} == set(BACKENDS)
        assert directory.clean(-1.0) == [TASK]
        assert directory.tasks() == []


def test_each_move_is_durable_in_both_folders_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = in_the_old_layout(tmp_path)
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append((str(Path(source).parent), str(Path(target).parent)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    move_old_stores(folder, {})
    moves = [number for number, (call, _) in enumerate(done) if call != "sync"]
    assert len(moves) > len(BACKENDS)
    for start, end in pairwise([*moves, len(done)]):
        assert {("sync", parent) for parent in done[start]} <= set(done[start:end])


def test_an_empty_folder_of_the_old_layout_or_of_another_engine_is_no_store_and_in_nobody_s_way(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """A creation, or a removal, that was cut short has left it."""
    feed(log, KEYS)
    task = counting_task(tmp_path, log, "lmdb")
    task.open()
    task.run()
    task.close()
    folder = checkpoint(tmp_path).path.parent
    for name in ("left", "sqlite/left", "sqlite/right"):
        (folder / name).mkdir(parents=True)
    (folder / "sqlite" / "right" / "lock").touch(0o600)
    assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)] * 2
    assert state(task, "left") == expected_state(KEYS)
    task.close()
    # A file in there is somebody's.
    (folder / "sqlite" / "left" / "letter").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        task.open()


def test_what_an_upgrade_keeps_beside_a_store_is_no_store_of_its_own(tmp_path: Path) -> None:
    folder = in_the_old_layout(tmp_path)
    expected = places(folder)
    for path in (folder / "left.prepare", folder / "lmdb" / "late.prepare", folder / "lmdb" / "late.former"):
        open_store("lmdb", path).close()
    assert places(folder) == expected
    for name in ("lmdb", "late"):
        open_store("lmdb", tmp_path / "other" / "lmdb" / f"{name}.former").close()
    assert places(tmp_path / "other") == [Place("lmdb", "late"), Place("lmdb", "lmdb")]


def test_a_store_of_the_old_layout_goes_to_the_engine_that_it_names_whatever_is_configured(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    folder = tmp_path / "state" / str(TASK)
    open_store("lmdb", folder / "left").close()
    with pytest.raises(StoreIncompatibleError):
        counting_task(tmp_path, log, "sqlite").open()
    assert places(folder) == [Place("lmdb", "left")]
    assert not (folder / "sqlite" / "left").exists()
    task = counting_task(tmp_path, log, "lmdb")
    task.open()
    task.close()
