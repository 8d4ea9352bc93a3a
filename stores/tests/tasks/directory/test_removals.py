"""One rule for all that opens, moves or removes stores: nothing behind a link, and only engines' folders.

A row of ``ACTIONS`` names the place of a store that would be removed or moved, and does that. The store lies there
behind a link, or in a folder beside the engine's, as a copy that somebody keeps. It must be as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import StoreError, StoreIncompatibleError
from stores.files.identity import Identity
from stores.files.plain_files import check_no_link
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.spark.local_state import LocalState
from stores.tasks import DirectoryLayout, StateDirectory, Topology, change_layout, relocate
from stores.tasks.directory.store_places import FORMER_END, PREPARE_END, SWAP_END, is_streams_store
from stores.tasks.directory.unnamed_stores import UNNAMED_FILE, clean_stores
from stores.tests.tasks.directory.relocating import FORMER, PARTITION, PRESENT, lay_out, task_of
from stores.tests.tasks.directory.test_state_directory import age
from stores.tests.tasks.global_topic import PRICES, say, stores_over


class Action(NamedTuple):
    """A removal or a move, and the store that it reaches."""

    place: str
    """The place of the store in the state directory."""
    run: Callable[[Path], object]
    damage: str | None = None
    """A file of the store that is damaged, so that the store is wiped."""


def _global_stores(state: Path) -> None:
    with MemoryChangelog() as log:
        say(log, PRICES)
        with stores_over(log, state.parent, "lmdb-indexed-batch"):
            pass


def _task(state: Path) -> None:
    task = task_of(FORMER, 3, state, {})
    try:
        task.open()
    finally:
        task.close()


def _unnamed(state: Path) -> None:
    for _ in range(2):
        clean_stores(StateDirectory(state), Topology({}), 0.0)
        note = state / UNNAMED_FILE
        if note.exists():
            note.write_text(note.read_text().replace("17", "10"))


def _copies_of_spark(state: Path) -> None:
    state_of = LocalState(state / "log", 0, {"totals": StoreConfig("lmdb-indexed-batch")})
    state_of.close()


def _own_layout(state: Path) -> None:
    change_layout(state, DirectoryLayout.STORE_PARTITION)


OF_TASK = "3_14/lmdb/totals"
OWN = "totals/14/lmdb"
ACTIONS = {
    "global stores remove the copy of another engine": Action("global/rocksdb/prices", _global_stores),
    "global stores wipe a damaged copy": Action("global/lmdb/prices", _global_stores, "data/data.mdb"),
    "a clean-up removes an old task": Action(OF_TASK, lambda state: StateDirectory(state).clean(0.0)),
    "a clean-up removes an old store": Action(OWN, lambda state: StateDirectory(state).clean(0.0)),
    "a clean-up removes an unnamed store": Action(OF_TASK, _unnamed),
    "a clean-up removes an unnamed store of its own": Action(OWN, _unnamed),
    "a task wipes a damaged store": Action(OF_TASK, _task, "store.json"),
    "a task removes the rest of a swap": Action(OF_TASK + FORMER_END, _task),
    "a task removes an upgrade that is not configured": Action(OF_TASK + PREPARE_END, _task),
    "a relocation moves a store": Action("4_14/lmdb/rates", lambda state: relocate(state, PRESENT)),
    "a relocation moves a store to a task": Action("5_14/lmdb/rates", lambda state: relocate(state, PRESENT)),
    "a layout is changed": Action(OF_TASK, _own_layout),
    "a copy of Spark is wiped": Action("log/p00000/0/totals", _copies_of_spark, "store.json"),
}


def victim(path: Path, damage: str | None) -> None:
    """Make a store of the engine that the path names, which was not used for long."""
    engine = next(name for name in ("rocksdb", "lmdb") if name in path.as_posix() or name == "lmdb")
    with open_store(f"{engine}-indexed-batch", path, name="kept") as store:
        store.put(b"key", b"value")
        store.commit({TopicPartition("input", PARTITION): 1})
    if damage is not None:
        (path / damage).write_bytes(b"damaged")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        entry.relative_to(folder).as_posix(): entry.read_bytes()
        for entry in sorted(folder.rglob("*"))
        if entry.is_file()
    }


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    folder.mkdir()
    yield folder
    assert not (tmp_path / "elsewhere" / ".lock").exists()


def _prepare(state: Path, action: Action) -> None:
    if action.place == OWN:
        change_layout(state, DirectoryLayout.STORE_PARTITION)
    if action.place.endswith(FORMER_END):
        note = state / action.place.replace(FORMER_END, SWAP_END)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("a swap")


@pytest.mark.parametrize(
    ("name", "depth"),
    [(name, depth) for name, action in ACTIONS.items() for depth in range(1, action.place.count("/") + 2)],
)
def test_a_store_behind_a_link_is_as_it_was(state: Path, name: str, depth: int) -> None:
    action = ACTIONS[name]
    parts = action.place.split("/")
    if action.run is not _copies_of_spark and not action.place.startswith("global") and action.place != OWN:
        lay_out(state)
        if (state / action.place).exists():
            shutil.rmtree(state / action.place)
    _prepare(state, action)
    elsewhere = state.parent / "elsewhere"
    link = state.joinpath(*parts[:depth])
    if link.exists():
        # The rest of the task's folder lies elsewhere, too.
        shutil.move(link, elsewhere)
    victim(elsewhere.joinpath(*parts[depth:]), action.damage)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    age(state)
    age(elsewhere)
    before = contents(elsewhere)
    with suppress(StoreError):
        action.run(state)
    assert contents(elsewhere) == before
    assert link.is_symlink()
    assert link.readlink() == elsewhere


@pytest.mark.parametrize(
    "name", [name for name, action in ACTIONS.items() if action.damage is None and "5_14" not in action.place]
)
def test_a_copy_of_a_store_in_a_folder_of_no_engine_stays_where_it_is(state: Path, name: str) -> None:
    action = ACTIONS[name]
    *home, engine, store = (*action.place.split("/"), "") if action.place == OWN else action.place.split("/")
    assert engine in ("lmdb", "rocksdb")
    copy = state.joinpath(*home, "copies", store)
    if action.place == OWN:
        change_layout(state, DirectoryLayout.STORE_PARTITION)
    victim(copy, None)
    age(state)
    before = contents(copy)
    action.run(state)
    assert contents(copy) == before


def test_a_store_of_an_engine_that_is_not_installed_is_no_copy(state: Path) -> None:
    """Its folder has the name of the engine, which nobody here knows."""
    folder = state / "3_14" / "another"
    victim(folder / "totals", None)
    (folder / "totals" / "store.json").write_text(Identity("another-indexed-batch", 1).text())
    age(state)
    assert [str(task) for task in StateDirectory(state).clean(0.0)] == ["3_14"]


def test_a_folder_of_kafka_streams_behind_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/counts").mkdir(parents=True)
    (tmp_path / "elsewhere/counts/CURRENT").touch()
    assert is_streams_store(tmp_path / "elsewhere/counts")
    (tmp_path / "rocksdb").symlink_to(tmp_path / "elsewhere")
    assert not is_streams_store(tmp_path / "rocksdb/counts")


@pytest.mark.parametrize("path", ["../other", "a/../../other", "/other"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(StoreIncompatibleError):
        check_no_link(tmp_path, tmp_path / path)


def test_the_state_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "state")
    _task(tmp_path / "state")
    assert (tmp_path / "real" / OF_TASK / "store.json").is_file()
