"""Relocation: after a change of the topology's numbers each store is where its task looks for it, as it was."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import (
    ConfigError,
    StoreMisplacedError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import StoreConfig, StreamTask, Subtopology, TaskConfig, TaskSettings, Topology, relocate
from stores.tasks.directory.store_places import Place, places
from stores.tests.tasks.directory.relocating import (
    BACKENDS,
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    check_laid_out,
    content,
    failing_at,
    keep,
    lay_out,
    run_all,
    task_id,
    task_of,
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_of_another_topology_go_on_with_their_stores_and_replay_nothing(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-816, "Motivation"."""
    run_all(FORMER, tmp_path, log, backend, 3)
    inodes = {path.name: path.stat().st_ino for path in tmp_path.glob("*/*/*") if path.is_dir()}
    assert inodes.keys() == set(STORES)
    assert run_all(PRESENT, tmp_path, log, backend, 4) == [0] * len(STORES)
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("*/*/*") if path.is_dir()} == inodes
    # And back again, over the entries that these tasks have left.
    assert run_all(FORMER, tmp_path, log, backend, 5) == [0] * len(STORES)


def test_each_store_has_one_rename_and_takes_its_entries_along(tmp_path: Path) -> None:
    inodes = lay_out(tmp_path, partitions=3)
    relocation = relocate(tmp_path, PRESENT)
    assert len(relocation.moved) == 3 * len(STORES)
    assert (relocation.completed, relocation.doubles, relocation.unnamed) == ((), (), ())
    check_laid_out(tmp_path, inodes)
    assert relocate(tmp_path, PRESENT).moved == ()
    check_laid_out(tmp_path, inodes)


def test_a_cycle_of_tasks_and_stores_that_meet_are_no_conflict(tmp_path: Path) -> None:
    former = Topology({number: Subtopology((f"s{number}",)) for number in range(5)})
    present = Topology({(number + 1) % 5: Subtopology((f"s{number}",)) for number in range(5)})
    inodes = lay_out(tmp_path, former)
    relocate(tmp_path, present)
    check_laid_out(tmp_path, inodes, present)
    together = Topology({0: Subtopology(tuple(f"s{number}" for number in range(5)))})
    relocate(tmp_path, together)
    check_laid_out(tmp_path, inodes, together)
    relocate(tmp_path, former)
    check_laid_out(tmp_path, inodes, former)


def test_stores_move_to_numbers_from_their_topics_and_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    inodes = lay_out(tmp_path)
    hashed = Topology.by_topics(
        Subtopology(subtopology.stores, (f"input-{number}",)) for number, subtopology in FORMER.subtopologies.items()
    )
    for topology in (hashed, PRESENT, hashed, FORMER):
        caplog.clear()
        relocate(tmp_path, topology)
        check_laid_out(tmp_path, inodes, topology)
        assert [record.args for record in caplog.records] == [(len(STORES), tmp_path)]


def test_stores_and_tasks_that_stay_are_not_touched(tmp_path: Path) -> None:
    present = Topology({**FORMER.subtopologies, 4: Subtopology(), 7: Subtopology(("rates",))})
    lay_out(tmp_path)

    def changed_at(entry: Path) -> tuple[int, int, int]:
        """Without the time of the last access: a listing of a folder may change that."""
        stat_result = entry.stat()
        return stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_ctime_ns

    before = {entry: changed_at(entry) for task in (2, 3) for entry in (tmp_path / str(task_id(task))).rglob("*")}
    assert len(relocate(tmp_path, present).moved) == 1
    assert {entry: changed_at(entry) for entry in before} == before


def test_what_a_topology_changes_beside_the_numbers_moves_nothing(tmp_path: Path) -> None:
    """Source: KIP-816, "Motivation": changes that do not affect a store do not reset it."""
    inodes = lay_out(tmp_path)
    more = {9: Subtopology(("new",), ("topic",))}
    relocate(tmp_path, Topology({**FORMER.subtopologies, **more}))
    check_laid_out(tmp_path, inodes, FORMER)


def test_an_existing_store_is_never_overwritten_and_the_other_one_stays(tmp_path: Path) -> None:
    lay_out(tmp_path)
    there = tmp_path / str(task_id(3)) / "lmdb" / "names"
    there.mkdir()
    (there / "mine").write_text("dear")
    relocation = relocate(tmp_path, PRESENT)
    assert [name for name, _, _ in relocation.doubles] == ["names"]
    assert (there / "mine").read_text() == "dear"
    assert (tmp_path / str(task_id(2)) / "lmdb" / "names" / "data").is_dir()
    assert {name for name, _, _ in relocation.moved} == set(STORES) - {"names"}


def test_of_two_copies_in_wrong_places_the_more_recent_one_is_moved(tmp_path: Path) -> None:
    lay_out(tmp_path, Topology({7: Subtopology(("rates",))}))
    lay_out(tmp_path)
    old = tmp_path / str(task_id(4))
    for entry in (*old.rglob("*"), old):
        os.utime(entry, (1e9, 1e9))
    relocation = relocate(tmp_path, PRESENT)
    assert [source for name, source, _ in relocation.moved if name == "rates"] == [
        tmp_path / str(task_id(7)) / "lmdb" / "rates"
    ]
    assert [source for _, source, _ in relocation.doubles] == [old / "lmdb" / "rates"]


def test_links_and_foreign_files_are_neither_followed_nor_moved(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    inodes = lay_out(folder)
    outside = tmp_path / "outside"
    lay_out(outside, Topology({8: Subtopology(("rates",))}))
    (folder / str(task_id(8))).symlink_to(outside / str(task_id(8)))
    for number, name in ((2, "totals"), (4, "counts")):
        (folder / str(task_id(number)) / "lmdb").mkdir(exist_ok=True)
        (folder / str(task_id(number)) / "rocksdb").mkdir()
        (folder / str(task_id(number)) / "rocksdb" / name).symlink_to(outside)
    (folder / str(task_id(3)) / "notes").mkdir()
    (folder / str(task_id(3)) / "notes" / "names").write_text("dear")
    (folder / "notes").mkdir()
    before = content(outside)
    relocate(folder, PRESENT)
    assert content(outside) == before
    assert (folder / str(task_id(3)) / "notes" / "names").read_text() == "dear"
    assert (folder / str(task_id(2)) / "rocksdb" / "totals").is_symlink()
    for name, inode in inodes.items():
        store = name.split()[0]
        assert (folder / f"{PRESENT.subtopology_of(store)}_{PARTITION}" / "lmdb" / store).stat().st_ino == inode


def test_without_automatic_relocation_no_task_opens_and_each_store_is_named(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    """Source: KIP-816, ``automatic.state.relocation``."""
    inodes = lay_out(tmp_path)
    before = content(tmp_path)
    task = task_of(PRESENT, 5, tmp_path, {"log": log, "automatic_state_relocation": False})
    with pytest.raises(StoreMisplacedError) as error:
        task.open()
    expected = {(name, tmp_path / f"{FORMER.subtopology_of(name)}_{PARTITION}" / "lmdb" / name) for name in STORES}
    assert {(name, source) for name, source, _ in error.value.misplaced} == expected
    for name, source, target in error.value.misplaced:
        assert target == tmp_path / f"{PRESENT.subtopology_of(name)}_{PARTITION}" / "lmdb" / name
        assert all(text in str(error.value) for text in (name, str(source), str(target)))
    assert content(tmp_path) == before
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


def test_without_automatic_relocation_a_store_with_an_occupied_target_is_refused(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    lay_out(tmp_path, PRESENT)
    wrong = tmp_path / str(task_id(9)) / "lmdb" / "counts"
    wrong.parent.mkdir(parents=True)
    right = tmp_path / f"{PRESENT.subtopology_of('counts')}_{PARTITION}" / "lmdb" / "counts"
    shutil.copytree(right, wrong)
    before = content(tmp_path)
    task = task_of(PRESENT, 5, tmp_path, {"log": log, "automatic_state_relocation": False})
    with pytest.raises(StoreMisplacedError) as error:
        task.open()
    assert error.value.misplaced == [("counts", wrong, right)]
    assert content(tmp_path) == before


def test_the_property_has_kafka_s_planned_name_and_the_topology_goes_to_each_task(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    properties: dict[str, str | int | bool] = {"application.id": "app", "state.dir": str(tmp_path)}
    assert TaskConfig.from_properties(properties).automatic_state_relocation is True
    properties["automatic.state.relocation"] = "false"
    config = TaskConfig.from_properties(properties, PRESENT)
    assert config.automatic_state_relocation is False
    lay_out(tmp_path / "app")
    log.create_topic("orders", PARTITION + 1)
    task = config.task(
        task_id(3), changelog=log, stores=["names"], process=keep, inputs=[TopicPartition("orders", PARTITION)]
    )
    with pytest.raises(StoreMisplacedError):
        task.open()


def test_stores_named_like_engines_are_moved_below_the_engine_that_they_have(tmp_path: Path) -> None:
    for number, name in ((2, "rocksdb"), (3, "lmdb"), (2, "names")):
        open_store("lmdb", tmp_path / str(task_id(number)) / "lmdb" / name, name=name).close()
    topology = Topology({3: Subtopology(("rocksdb",)), 2: Subtopology(("lmdb", "names"))})
    relocate(tmp_path, topology)
    assert places(tmp_path / str(task_id(3))) == [Place("lmdb", "rocksdb")]
    assert places(tmp_path / str(task_id(2))) == [Place("lmdb", "lmdb"), Place("lmdb", "names")]


def test_the_same_is_done_for_a_store_of_any_size(tmp_path: Path) -> None:
    """The calls that change the disk are the same ones, and no file of a store is opened."""
    calls = []
    for size in (1 << 10, 64 << 20):
        folder = tmp_path / str(size)
        lay_out(folder)
        with open(folder / str(task_id(2)) / "lmdb" / "counts" / "data" / "data.mdb", "wb") as file:
            file.truncate(size)
        inode = (folder / str(task_id(2)) / "lmdb" / "counts" / "data" / "data.mdb").stat().st_ino
        seen: list[str] = []
        with failing_at(-1, seen):
            relocate(folder, PRESENT)
        calls.append(seen)
        assert (folder / str(task_id(5)) / "lmdb" / "counts" / "data" / "data.mdb").stat().st_ino == inode
    assert calls[0] == calls[1]


def test_many_tasks_are_looked_through_in_one_listing_and_no_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology({number: Subtopology(tuple(f"s{number}-{i}" for i in range(5))) for number in range(4)})
    for number, subtopology in topology.subtopologies.items():
        for partition in range(25):
            for store in subtopology.stores:
                (tmp_path / str(task_id(number, partition)) / "lmdb" / store).mkdir(parents=True)
    listed: list[str] = []
    scan = os.scandir

    def counted(path: str | Path) -> object:
        listed.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert relocate(tmp_path, topology).moved == ()
    # Each task's folder and its one engine's.
    assert len(listed) == len(set(listed)) == 2 * 100


@pytest.mark.parametrize(
    ("number", "stores", "topics"),
    [(9, [], []), (2, ["totals"], []), (2, ["elsewhere"], []), (3, ["names"], ["other"])],
)
def test_a_task_that_contradicts_its_topology_is_refused(
    tmp_path: Path, log: MemoryChangelog, number: int, stores: list[str], topics: list[str]
) -> None:
    topology = Topology({2: Subtopology(("counts",)), 3: Subtopology(("names",), ("input",))})
    with pytest.raises(ConfigError):
        StreamTask(
            "app",
            task_id(number),
            state_dir=tmp_path,
            changelog=log,
            stores={name: StoreConfig() for name in stores},
            process=keep,
            inputs=[TopicPartition(topic, PARTITION) for topic in topics],
            settings=TaskSettings(topology=topology),
        )


@pytest.mark.parametrize("topology", [7, "2", {"subtopologies": {}}])
def test_what_is_no_topology_is_refused(tmp_path: Path, topology: object) -> None:
    with pytest.raises(TypeError):
        relocate(tmp_path, topology)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TaskConfig("app", tmp_path, topology=topology)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TaskConfig("app", tmp_path, automatic_state_relocation="no")  # type: ignore[arg-type]


def test_a_directory_that_is_not_there_is_reported_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        relocate(tmp_path / "none", PRESENT)
    assert not (tmp_path / "none").exists()
