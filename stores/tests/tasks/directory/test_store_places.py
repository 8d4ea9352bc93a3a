"""The places of stores in a task's folder: each is below its engine's folder, and all else is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreIncompatibleError
from stores.registry import open_store
from stores.tasks import StateDirectory, StreamTask
from stores.tasks.directory.store_places import Place, check_engines, places
from stores.tests.tasks.setup import TASK, checkpoint, counting_task, expected_state, feed, state

KEYS = [1, 2, 1]


def closed_task(folder: Path, log: MemoryChangelog) -> StreamTask:
    """Return a task with two stores of LMDB that has counted the keys, closed."""
    feed(log, KEYS)
    with counting_task(folder, log, "lmdb") as task:
        task.run()
    return task


def test_a_store_of_another_engine_is_refused_and_no_other_is_made_beside_it(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    task = closed_task(tmp_path, log)
    with pytest.raises(StoreIncompatibleError):
        counting_task(tmp_path, log, "sqlite").open()
    assert not (checkpoint(tmp_path).path.parent / "sqlite").exists()
    with task:
        assert state(task, "left") == expected_state(KEYS)


def test_an_empty_folder_of_another_engine_is_no_store_and_blocks_none(tmp_path: Path, log: MemoryChangelog) -> None:
    """A creation, or a removal, that was cut short has left it."""
    task = closed_task(tmp_path, log)
    folder = checkpoint(tmp_path).path.parent
    for name in ("sqlite/left", "sqlite/right"):
        (folder / name).mkdir(parents=True)
    (folder / "sqlite" / "right" / "lock").touch(0o600)
    with task:
        assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0)] * 2
        assert state(task, "left") == expected_state(KEYS)
    # A file in there is somebody's.
    (folder / "sqlite" / "left" / "letter").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        task.open()


def test_what_an_upgrade_keeps_beside_a_store_is_no_store_of_its_own(tmp_path: Path) -> None:
    for name in ("lmdb", "late.prepare", "late.former", "lmdb.former"):
        open_store("lmdb", tmp_path / "lmdb" / name).close()
    assert places(tmp_path) == [Place("lmdb", "late"), Place("lmdb", "lmdb")]


@pytest.mark.parametrize("place", ["left", "copies/left"])
def test_a_store_outside_the_folder_of_an_engine_is_not_removed(
    tmp_path: Path, log: MemoryChangelog, place: str
) -> None:
    copy = tmp_path / "state" / str(TASK) / place
    open_store("sqlite", copy).close()
    assert places(tmp_path / "state" / str(TASK)) == []
    closed_task(tmp_path, log)
    assert StateDirectory(tmp_path / "state").clean(-1.0) == []
    open_store("sqlite", copy).close()


def test_the_error_for_another_engine_names_a_folder_that_is_there(tmp_path: Path) -> None:
    """A replacement that was interrupted may have left its new store alone."""
    (tmp_path / "rocksdb" / "s.prepare").mkdir(parents=True)
    with pytest.raises(StoreIncompatibleError, match=r"s\.prepare contains"):
        check_engines(tmp_path, {"s": "lmdb"})
