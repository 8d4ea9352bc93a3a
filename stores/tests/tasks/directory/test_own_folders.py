"""Stores in folders of their own (layout ``store-partition``): who has one, and when it is removed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreLockedError
from stores.files.creation import is_complete
from stores.files.locks import take
from stores.interface import TopicPartition
from stores.registry import StoreBackend, backends, engines, open_store
from stores.tasks import (
    DirectoryLayout,
    StateDirectory,
    Subtopology,
    TaskConfig,
    TaskId,
    Topology,
    change_layout,
    relocate,
)
from stores.tasks.directory.entry_files import CheckpointFile, OriginFile
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.state_directory import REMOVING
from stores.tasks.directory.store_places import JOURNAL_FILE, LAYOUT_FILE, RELOCATING_FILE
from stores.tasks.directory.unnamed_stores import UNNAMED_FILE, clean_stores
from stores.tasks.identifier import StorePartition
from stores.tests.minimal_store import KINDS
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    failing_at,
    lay_out,
    log_topic,
    run_all,
    task_id,
    task_of,
)
from stores.tests.tasks.directory.test_state_directory import LONG_AGO, WEEK_S, age
from stores.tests.tasks.setup import MEMORY, Crash, crashing_at

OWN = DirectoryLayout.STORE_PARTITION
PERSISTENT = [name for name, backend in backends().items() if backend.persistent]
FEWER = Topology({2: Subtopology(("counts",)), 3: Subtopology(("totals",)), 4: Subtopology(("rates",))})
"""``FORMER`` without ``names``."""


@pytest.fixture
def laid_out(tmp_path: Path) -> Path:
    """A state directory of the layout with four stores that nobody has used for long."""
    lay_out(tmp_path)
    change_layout(tmp_path, OWN)
    age(tmp_path)
    return tmp_path


def home(store: str) -> StorePartition:
    return StorePartition(store, PARTITION)


@pytest.fixture
def other_package() -> Iterator[str]:
    """The name of a backend of another package, whose folders the library does not know."""
    registry = cast("dict[str, Any]", backends())
    name, kind = next(item for item in KINDS.items() if item[1].persistent)
    registry[name] = StoreBackend(name, load_store=lambda: kind)
    engines.cache_clear()
    yield name
    del registry[name]
    engines.cache_clear()


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_that_was_not_used_is_removed_and_its_next_task_restores_it_whole(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Its checkpoint entry is removed as well: else the task would continue from data that it does not have."""
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, backend, 3)
    age(tmp_path / "counts")
    assert StateDirectory(tmp_path).clean(WEEK_S) == [home("counts")]
    assert not (tmp_path / "counts").exists()
    assert run_all(FORMER, tmp_path, log, backend, 4) == [3, 0, 0, 0]


def test_old_task_folders_are_removed_and_young_ones_stay(laid_out: Path) -> None:
    (laid_out / "counts" / "14" / "lmdb" / "store.json").touch()
    shutil.copytree(laid_out / "counts" / "14", laid_out / "counts" / "15")
    age(laid_out / "counts" / "15")
    (laid_out / "notes" / "7").mkdir(parents=True)
    (laid_out / "notes" / "letter").write_text("dear")
    expected = [StorePartition("counts", 15), *map(home, sorted(set(STORES) - {"counts"}))]
    state = StateDirectory(laid_out)
    assert state.clean(WEEK_S) == expected
    assert state.clean(WEEK_S) == []
    assert {entry.name for entry in laid_out.iterdir() if entry.is_dir()} == {"counts", "notes"}
    assert [entry.name for entry in (laid_out / "counts").iterdir()] == ["14"]
    assert CheckpointFile(laid_out / "counts" / "14" / ".checkpoint").read() != {}


def test_what_is_spared_stays(laid_out: Path) -> None:
    state = StateDirectory(laid_out)
    assert state.clean(WEEK_S, {home("names"), home("counts")}) == [home("rates"), home("totals")]
    state.lock(TaskId(7, 7), "somebody").release()
    age(laid_out)
    assert state.clean(WEEK_S, [TaskId(7, 7), home("names")]) == [home("counts")]
    assert state.tasks() == [TaskId(7, 7)]


def test_stores_of_an_open_task_stay_however_long_it_has_been_idle(tmp_path: Path, log: MemoryChangelog) -> None:
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    task = task_of(FORMER, 2, tmp_path, {"log": log})
    task.open()
    age(tmp_path)
    state = StateDirectory(tmp_path)
    assert set(state.clean(WEEK_S)) == {task_id(3), task_id(4), home("totals"), home("rates")}
    assert clean_stores(state, Topology({}), -1.0) == []
    task.run()
    task.close()
    assert [report.records for report in task.open()] == [0, 0]
    task.close()
    age(tmp_path)
    assert set(state.clean(WEEK_S)) == {task_id(2), home("counts"), home("names")}


def test_a_store_belongs_to_one_task_at_a_time_under_any_name_of_its_sub_topology(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Its path does not depend on the number, so the locks of the two tasks keep neither out."""
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    log.create_topic("input-5", PARTITION + 1)
    one, other = (
        task_of(topology, number, tmp_path, {"log": log, "topology": None})
        for topology, number in ((FORMER, 2), (PRESENT, 5))
    )
    one.open()
    with pytest.raises(StoreLockedError) as error:
        other.open()
    assert str(tmp_path / "counts" / "14") in str(error.value)
    one.close()
    assert [report.records for report in other.open()] == [0, 0]
    other.close()


def test_an_empty_folder_of_another_engine_does_not_block_a_store(tmp_path: Path, log: MemoryChangelog) -> None:
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    (tmp_path / "counts" / "14" / "sqlite").mkdir()
    assert run_all(FORMER, tmp_path, log, "lmdb", 4) == [0] * len(STORES)
    (tmp_path / "counts" / "14" / "sqlite" / "letter").write_text("dear")
    with pytest.raises(StoreIncompatibleError):
        task_of(FORMER, 2, tmp_path, {"log": log}).open()


def test_a_store_that_is_open_by_itself_stays(tmp_path: Path) -> None:
    change_layout(tmp_path, OWN)
    path = tmp_path / "counts" / "0" / "lmdb"
    with open_store("lmdb", path):
        age(tmp_path)
        assert StateDirectory(tmp_path).clean(WEEK_S) == []
        assert clean_stores(StateDirectory(tmp_path), FEWER, -1.0) == []
    assert clean_stores(StateDirectory(tmp_path), Topology({}), -1.0) == [path]
    assert not (tmp_path / "counts").exists()


@pytest.mark.parametrize("name", ["letter", "lmdb/letter", "rocksdb/letter", "lmdb.prepare/letter"])
def test_a_folder_with_anything_foreign_in_it_stays_whole(laid_out: Path, name: str) -> None:
    file = laid_out / "names" / "14" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("dear")
    age(laid_out)
    before = sorted(file.parents[-len(laid_out.parts) - 1].rglob("*"))
    assert home("names") not in StateDirectory(laid_out).clean(WEEK_S)
    assert sorted(file.parents[-len(laid_out.parts) - 1].rglob("*")) == before
    assert len(before) > 4


def test_links_are_not_followed(laid_out: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("names", "totals/14"):
        (laid_out / name).rename(elsewhere / Path(name).name)
        (laid_out / name).symlink_to(elsewhere / Path(name).name)
    assert set(StateDirectory(laid_out).clean(WEEK_S)) == {home("counts"), home("rates")}
    assert (elsewhere / "14" / "lmdb" / "store.json").exists()
    assert (elsewhere / "names" / "14" / "lmdb" / "store.json").exists()


def test_a_removal_that_is_cut_short_leaves_no_store_and_is_finished_by_the_next(laid_out: Path) -> None:
    state = StateDirectory(laid_out)
    (laid_out / "counts" / "15.removed").mkdir()
    (laid_out / "counts" / "15.removed" / "letter").write_text("dear")
    with crashing_at(REMOVING):
        state.clean(WEEK_S)
    assert not (laid_out / "counts" / "14").exists()
    assert (laid_out / "counts" / "14.removed").is_dir()
    lay_out(laid_out / "more", Topology({2: Subtopology(("counts",))}))
    change_layout(laid_out / "more", OWN)
    (laid_out / "more" / "counts" / "14").rename(laid_out / "counts" / "14")
    state.clean(WEEK_S)
    assert sorted(entry.name for entry in (laid_out / "counts").iterdir()) == ["14", "15.removed"]
    assert (laid_out / "counts" / "15.removed" / "letter").exists()


def relocating(folder: Path) -> Callable[[], None]:
    return partial(os.close, take(folder / RELOCATING_FILE))


def cut_short(folder: Path) -> Callable[[], None]:
    Journal((), layout=OWN).write(folder)
    return (folder / JOURNAL_FILE).unlink


@pytest.mark.parametrize("begin", [relocating, cut_short])
def test_nothing_is_removed_while_somebody_relocates(
    laid_out: Path, begin: Callable[[Path], Callable[[], None]]
) -> None:
    end = begin(laid_out)
    state = StateDirectory(laid_out)
    assert state.clean(WEEK_S) == []
    assert clean_stores(state, Topology({}), -1.0) == []
    end()
    assert set(state.clean(WEEK_S)) == set(map(home, STORES))


def test_where_the_directory_does_not_say_its_layout_nothing_is_removed(laid_out: Path) -> None:
    StateDirectory(laid_out).lock(TaskId(7, 7), "somebody").release()
    note = (laid_out / LAYOUT_FILE).read_text()
    (laid_out / LAYOUT_FILE).write_text("garbage")
    age(laid_out)
    before = sorted(laid_out.rglob("*"))
    with pytest.raises(StoreCorruptedError):
        StateDirectory(laid_out).clean(WEEK_S)
    with pytest.raises(StoreCorruptedError):
        clean_stores(StateDirectory(laid_out), FEWER, -1.0)
    assert set(before) <= set(laid_out.rglob("*"))
    # Of the layout ``task`` they are nobody's.
    (laid_out / LAYOUT_FILE).unlink()
    assert StateDirectory(laid_out).clean(WEEK_S) == [TaskId(7, 7)]
    (laid_out / LAYOUT_FILE).write_text(note)
    assert len(StateDirectory(laid_out).clean(WEEK_S)) == len(STORES)


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_a_store_that_is_no_longer_named_is_kept_and_reported_and_removed_after_the_delay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: DirectoryLayout
) -> None:
    """The delay begins when the store is first missed, in each layout, also if its folder has nothing else."""
    lay_out(tmp_path, Topology({**FEWER.subtopologies, 9: Subtopology(("names",))}))
    change_layout(tmp_path, layout)
    (tmp_path / RELOCATING_FILE).unlink()
    age(tmp_path)
    below = "9_14/lmdb/names" if layout is DirectoryLayout.TASK else "names/14/lmdb"
    of_it = task_id(9) if layout is DirectoryLayout.TASK else home("names")
    config = TaskConfig("app", tmp_path, topology=FEWER, state_cleanup_delay_s=WEEK_S)
    with caplog.at_level("WARNING", "stores.tasks"):
        relocation = relocate(tmp_path, FEWER)
    assert (relocation.unnamed, relocation.moved) == ((("names", tmp_path / below),), ())
    assert [str(tmp_path / below) in record.getMessage() for record in caplog.records] == [True]
    assert of_it not in config.clean()
    assert (tmp_path / below / "store.json").exists()
    since = json.loads((tmp_path / UNNAMED_FILE).read_text())
    assert list(since) == [below]
    long_ago = json.dumps({below: LONG_AGO})
    (tmp_path / UNNAMED_FILE).write_text(long_ago)
    # Named again meanwhile: then it is not missed any more.
    relocate(tmp_path, Topology({**FEWER.subtopologies, 9: Subtopology(("names",))}))
    relocate(tmp_path, FEWER)
    assert of_it not in config.clean()
    assert (tmp_path / below / "store.json").exists()
    (tmp_path / UNNAMED_FILE).write_text(long_ago)
    config.clean()
    assert not (tmp_path / below).exists()
    assert not (tmp_path / below).parents[1].exists()


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_without_automatic_relocation_a_store_that_is_no_longer_named_is_reported_as_well(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture, layout: DirectoryLayout
) -> None:
    """It is not in a wrong place, so tasks open; its delay begins."""
    change_layout(tmp_path, layout)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    task = task_of(FEWER, 3, tmp_path, {"log": log, "automatic_state_relocation": False})
    with caplog.at_level("WARNING", "stores.tasks"):
        task.open()
    task.close()
    assert ["names" in record.getMessage() for record in caplog.records] == [True]
    assert len(json.loads((tmp_path / UNNAMED_FILE).read_text())) == 1


def test_a_store_that_is_no_longer_named_stays_while_it_is_used(laid_out: Path) -> None:
    state = StateDirectory(laid_out)
    clean_stores(state, FEWER, WEEK_S)
    (laid_out / UNNAMED_FILE).write_text(json.dumps({"names/14/lmdb": LONG_AGO}))
    (laid_out / "names" / "14" / "lmdb" / "data" / "data.mdb").touch()
    assert clean_stores(state, FEWER, WEEK_S) == []
    age(laid_out)
    assert clean_stores(state, FEWER, WEEK_S) == [laid_out / "names" / "14" / "lmdb"]
    assert not (laid_out / "names").exists()


def test_beside_foreign_files_only_the_store_and_its_entries_go(laid_out: Path) -> None:
    (laid_out / "names" / "14" / "letter").write_text("dear")
    assert len(clean_stores(StateDirectory(laid_out), FEWER, -1.0)) == 1
    assert sorted(entry.name for entry in (laid_out / "names" / "14").iterdir()) == [".lock", "letter"]
    assert CheckpointFile(laid_out / "counts" / "14" / ".checkpoint").read() == {
        TopicPartition(log_topic("counts"), PARTITION): len("counts")
    }
    assert OriginFile(laid_out / "counts" / "14" / ".origin").read(()).keys() == {"counts"}


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_a_removal_cut_short_at_any_call_leaves_no_entry_without_its_store(
    tmp_path: Path, layout: DirectoryLayout
) -> None:
    """And the next removal completes it."""
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        lay_out(folder, Topology({2: Subtopology(("counts", "names"))}))
        change_layout(folder, layout)
        of_it = folder / ("2_14" if layout is DirectoryLayout.TASK else "names/14")
        path = of_it / ("lmdb/names" if layout is DirectoryLayout.TASK else "lmdb")
        state = StateDirectory(folder)
        try:
            with failing_at(number, []):
                clean_stores(state, FEWER, -1.0)
        except Crash:
            if not (path / "data" / "data.mdb").exists() or not is_complete(path):
                offsets = CheckpointFile(of_it / ".checkpoint").known()
                assert TopicPartition(log_topic("names"), PARTITION) not in offsets
                assert "names" not in OriginFile(of_it / ".origin").read(())
            clean_stores(state, FEWER, -1.0)
            state.clean(WEEK_S)
            assert not path.exists()
            continue
        assert number > 10
        return


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_a_store_of_another_package_that_is_no_longer_named_is_removed_by_its_own_backend(
    tmp_path: Path, log: MemoryChangelog, other_package: str, layout: DirectoryLayout
) -> None:
    """Not while its task is open: it has no lock of its own."""
    change_layout(tmp_path, layout)
    run_all(FORMER, tmp_path, log, other_package, 3)
    task = task_of(FORMER, 2, tmp_path, {"log": log, "backend": other_package})
    task.open()
    files = {store: file for store in STORES for file in tmp_path.rglob("pairs.json") if store in file.parts}
    assert files.keys() == set(STORES)
    state = StateDirectory(tmp_path)
    expected = {files[store].parent for store in ("totals", "rates")}
    assert set(clean_stores(state, Topology({}), -1.0)) == expected
    assert {store for store, file in files.items() if file.exists()} == {"counts", "names"}
    task.close()
    assert len(clean_stores(state, Topology({}), -1.0)) == 2
    assert not any(file.parent.exists() for file in files.values())


def test_a_store_in_memory_has_no_folder_and_is_restored(tmp_path: Path, log: MemoryChangelog) -> None:
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, MEMORY, 3)
    assert run_all(PRESENT, tmp_path, log, MEMORY, 4) == [3] * len(STORES)
    assert {entry.name for entry in tmp_path.iterdir() if entry.is_dir()} == {"2_14", "3_14", "4_14", "5_14"}
    assert relocate(tmp_path, FEWER).unnamed == ()


def test_nothing_but_the_stores_moves_back_with_them(tmp_path: Path, log: MemoryChangelog) -> None:
    """The lock file of a store's own folder has no business in a task's folder, and keeps no empty one alive."""
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    assert all((tmp_path / store / "14" / ".lock").is_file() for store in STORES)
    change_layout(tmp_path, DirectoryLayout.TASK, topology=FORMER)
    assert {entry.name for entry in tmp_path.iterdir() if entry.is_dir()} == {"2_14", "3_14", "4_14"}
    assert run_all(FORMER, tmp_path, log, "lmdb", 4) == [0] * len(STORES)
