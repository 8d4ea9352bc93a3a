"""The layout ``store-partition``: no store moves when sub-topologies are renumbered; the tool that changes layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog
from stores.errors import (
    ConfigError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.relocate import main
from stores.tasks import (
    DirectoryLayout,
    StateDirectory,
    Subtopology,
    TaskId,
    Topology,
    change_layout,
    relocate,
    stored_offsets,
)
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.replacement import DECIDED, RENAMED
from stores.tasks.directory.store_places import JOURNAL_FILE, LAYOUT_FILE, read_layout
from stores.tests.tasks.directory.relocating import (
    BACKENDS,
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    check_laid_out,
    content,
    failing_at,
    lay_out,
    log_topic,
    run_all,
    task_of,
)
from stores.tests.tasks.setup import Crash, crashing_at

OWN = DirectoryLayout.STORE_PARTITION
BY_TASK = DirectoryLayout.TASK


def to_own(folder: Path) -> None:
    change_layout(folder, OWN)


def to_tasks(folder: Path) -> None:
    change_layout(folder, BY_TASK, topology=FORMER)


def check_own(folder: Path, inodes: dict[str, int]) -> None:
    """Every store has a folder of its own, as it was, with its entries; nothing is left of the tasks."""
    assert read_layout(folder) is OWN
    assert not (folder / JOURNAL_FILE).exists()
    assert StateDirectory(folder).tasks() == []
    for told, inode in inodes.items():
        store, number = told.split()
        path = folder / store / number / "lmdb"
        assert path.stat().st_ino == inode
        assert (path / "data" / "data.mdb").read_text() == store
        assert CheckpointFile(path.with_name(".checkpoint")).read() == {
            TopicPartition(log_topic(store), int(number)): len(store)
        }
        assert OriginFile(path.with_name(".origin")).read(()) == {store: Origin.CLEAN}


def check_by_task(folder: Path, inodes: dict[str, int]) -> None:
    assert read_layout(folder) is BY_TASK
    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == {"2_14", "3_14", "4_14"}
    check_laid_out(folder, inodes, FORMER)


def check_no_entry_is_alone(folder: Path) -> None:
    """A checkpoint beside no store would have a task go on from data that it does not have."""
    for file in folder.rglob(".checkpoint"):
        for topic, _ in CheckpointFile(file).read():
            store = topic.removeprefix("app-").removesuffix("-changelog")
            own = file.parent.parent.name == store
            assert (file.with_name("lmdb") / ("" if own else store) / "store.json").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_of_another_topology_replay_nothing_and_nothing_is_moved(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """Source: KIP-816, "Alternative 1"."""
    change_layout(tmp_path, OWN)
    run_all(FORMER, tmp_path, log, backend, 3)
    paths = {path: path.stat().st_ino for path in tmp_path.glob("*/14/*") if path.is_dir()}
    assert {path.parent.parent.name for path in paths} == set(STORES)
    assert run_all(PRESENT, tmp_path, log, backend, 4) == [0] * len(STORES)
    assert {path: path.stat().st_ino for path in tmp_path.glob("*/14/*") if path.is_dir()} == paths
    assert relocate(tmp_path, FORMER).moved == ()
    for task in StateDirectory(tmp_path).tasks():
        assert [entry.name for entry in (tmp_path / str(task)).iterdir()] == [".lock"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_go_on_in_the_other_layout_and_replay_nothing(tmp_path: Path, log: MemoryChangelog, backend: str) -> None:
    run_all(FORMER, tmp_path, log, backend, 3)
    assert len(change_layout(tmp_path, OWN).moved) == len(STORES)
    assert run_all(PRESENT, tmp_path, log, backend, 4) == [0] * len(STORES)
    assert len(change_layout(tmp_path, BY_TASK, topology=FORMER).moved) == len(STORES)
    assert run_all(FORMER, tmp_path, log, backend, 5) == [0] * len(STORES)


def test_each_store_has_one_rename_and_takes_its_entries_along_there_and_back(tmp_path: Path) -> None:
    inodes = lay_out(tmp_path, partitions=3)
    assert len(change_layout(tmp_path, OWN).moved) == 3 * len(STORES)
    check_own(tmp_path, inodes)
    assert change_layout(tmp_path, OWN).moved == ()
    check_own(tmp_path, inodes)
    change_layout(tmp_path, BY_TASK, topology=PRESENT)
    check_laid_out(tmp_path, inodes)
    assert not (tmp_path / LAYOUT_FILE).exists()


@pytest.mark.parametrize("back", [False, True])
def test_a_change_cut_short_at_any_call_is_completed_by_the_next_run(tmp_path: Path, back: bool) -> None:
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        inodes = lay_out(folder)
        if back:
            to_own(folder)
        change = to_tasks if back else to_own
        try:
            with failing_at(number, []):
                change(folder)
        except Crash:
            check_no_entry_is_alone(folder)
            change(folder)
            (check_by_task if back else check_own)(folder, inodes)
            continue
        assert number > 30
        return


@pytest.mark.parametrize("back", [False, True])
def test_a_change_is_refused_while_any_task_is_open(tmp_path: Path, back: bool) -> None:
    """Also one without any store, and one that has come in after the tasks were listed."""
    lay_out(tmp_path)
    if back:
        to_own(tmp_path)
    state = StateDirectory(tmp_path)
    state.lock(TaskId(9, 0), "somebody").release()
    before = content(tmp_path)
    change = to_tasks if back else to_own
    lock = state.lock(TaskId(9, 0), "somebody")
    with pytest.raises(StoreLockedError):
        change(tmp_path)
    lock.release()
    failpoints.arm(DECIDED, lambda: locks.append(state.lock(TaskId(8, 0), "somebody")))
    locks: list[object] = []
    with pytest.raises(StoreLockedError):
        change(tmp_path)
    failpoints.disarm(DECIDED)
    assert len(locks) == 1
    (tmp_path / "8_0" / ".lock").unlink()
    (tmp_path / "8_0").rmdir()
    assert content(tmp_path) == before
    assert not (tmp_path / JOURNAL_FILE).exists()
    change(tmp_path)
    assert read_layout(tmp_path) is (BY_TASK if back else OWN)


def test_a_change_is_refused_while_a_store_is_open_by_itself(tmp_path: Path) -> None:
    with open_store("lmdb", tmp_path / "0_0" / "lmdb" / "counts"), pytest.raises(StoreLockedError):
        to_own(tmp_path)
    to_own(tmp_path)
    with open_store("lmdb", tmp_path / "counts" / "0" / "lmdb"), pytest.raises(StoreLockedError):
        to_tasks(tmp_path)
    assert (tmp_path / "counts" / "0" / "lmdb").is_dir()


def test_a_task_that_was_made_for_the_other_layout_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    log.create_topic("input-2", PARTITION + 1)
    task = task_of(FORMER, 2, tmp_path, {"log": log})
    to_own(tmp_path)
    with pytest.raises(StoreIncompatibleError):
        task.open()
    task = task_of(FORMER, 2, tmp_path, {"log": log})
    task.open()
    task.close()


def test_a_store_that_lies_as_the_other_layout_has_it_is_refused_and_not_restored(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    to_own(tmp_path)
    note = (tmp_path / LAYOUT_FILE).read_text()
    (tmp_path / LAYOUT_FILE).unlink()
    with pytest.raises(StoreIncompatibleError):
        task_of(FORMER, 2, tmp_path, {"log": log}).open()
    to_tasks(tmp_path)
    (tmp_path / LAYOUT_FILE).write_text(note)
    with pytest.raises(StoreIncompatibleError):
        task_of(FORMER, 2, tmp_path, {"log": log}).open()
    to_own(tmp_path)
    assert run_all(PRESENT, tmp_path, log, "lmdb", 4) == [0] * len(STORES)


def test_another_engine_s_store_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    to_own(tmp_path)
    run_all(FORMER, tmp_path, log, "lmdb", 3)
    with pytest.raises(StoreIncompatibleError):
        task_of(FORMER, 2, tmp_path, {"log": log, "backend": "sqlite-native"}).open()


def test_a_damaged_note_is_refused(tmp_path: Path, log: MemoryChangelog) -> None:
    to_own(tmp_path)
    (tmp_path / LAYOUT_FILE).write_text('{"layout": "other"}')
    with pytest.raises(StoreCorruptedError):
        task_of(FORMER, 2, tmp_path, {"log": log})


def twice(folder: Path) -> None:
    open_store("lmdb", folder / "0_0" / "lmdb" / "counts").close()
    open_store("lmdb", folder / "1_0" / "lmdb" / "counts").close()


def two_engines(folder: Path) -> None:
    open_store("lmdb", folder / "0_0" / "lmdb" / "counts").close()
    open_store("sqlite", folder / "0_0" / "sqlite" / "counts").close()


def both_layouts(folder: Path) -> None:
    open_store("lmdb", folder / "0_0" / "lmdb" / "counts").close()
    open_store("lmdb", folder / "counts" / "0" / "lmdb").close()


def named_like_a_task(folder: Path) -> None:
    open_store("lmdb", folder / "0_0" / "lmdb" / "1_1").close()


def own_unnamed(folder: Path) -> None:
    open_store("lmdb", folder / "other" / "0" / "lmdb").close()


@pytest.mark.parametrize(
    ("make", "layout", "topology", "error"),
    [
        (twice, OWN, None, StoreIncompatibleError),
        (two_engines, OWN, None, StoreIncompatibleError),
        (both_layouts, OWN, None, StoreIncompatibleError),
        (both_layouts, BY_TASK, Topology({0: Subtopology(("counts",))}), StoreIncompatibleError),
        (named_like_a_task, OWN, None, ConfigError),
        (own_unnamed, BY_TASK, FORMER, ConfigError),
        (own_unnamed, BY_TASK, None, ConfigError),
        (own_unnamed, "partition-store", None, ConfigError),
        (own_unnamed, OWN, "topology", TypeError),
    ],
)
def test_what_can_t_be_moved_is_refused_and_all_stays(
    tmp_path: Path,
    make: Callable[[Path], None],
    layout: str,
    topology: Topology | None,
    error: type[Exception],
) -> None:
    make(tmp_path)
    before = content(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(error):
            change_layout(tmp_path, layout, topology=topology, dry_run=dry_run)
    assert content(tmp_path) == before
    assert not (tmp_path / JOURNAL_FILE).exists()
    assert read_layout(tmp_path) is BY_TASK


def test_a_directory_that_is_not_there_is_reported_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        change_layout(tmp_path / "none", OWN)
    assert not (tmp_path / "none").exists()


def test_which_task_s_stores_are_here_is_known_from_the_paths_in_either_layout(tmp_path: Path) -> None:
    """Also those that a former topology has left elsewhere. Source: KIP-816, "Alternative 1"."""
    lay_out(tmp_path, partitions=2)
    expected = {
        TaskId(number, partition): {
            store: {TopicPartition(log_topic(store), partition): len(store)} for store in sorted(subtopology.stores)
        }
        for number, subtopology in PRESENT.subtopologies.items()
        for partition in (PARTITION, PARTITION + 1)
    }
    assert stored_offsets(tmp_path, PRESENT) == expected
    to_own(tmp_path)
    assert stored_offsets(tmp_path, PRESENT) == expected
    assert list(stored_offsets(tmp_path, PRESENT)) == sorted(expected)
    (tmp_path / "rates" / "14" / ".checkpoint").unlink()
    assert stored_offsets(tmp_path, Topology({7: Subtopology(("rates",))}))[TaskId(7, 14)] == {"rates": {}}
    assert stored_offsets(tmp_path / "none", PRESENT) == {}
    with pytest.raises(StoreIncompatibleError):
        StateDirectory(tmp_path).offsets(TaskId(2, 14))


def test_the_command_changes_the_layout_and_shows_it_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inodes = lay_out(tmp_path / "app")
    topology = tmp_path / "topology.json"
    topology.write_text('{"subtopologies": {"2": {"stores": ["counts", "names"]}}}')
    folder = str(tmp_path / "app")
    before = content(tmp_path)
    assert main([folder, "--layout", "store-partition", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "2_14/lmdb/counts -> counts/14/lmdb" in output
    assert content(tmp_path) == before
    assert main([folder, "--layout", "store-partition"]) == 0
    check_own(tmp_path / "app", inodes)
    assert main([folder, "--layout", "task"]) == 2
    assert main([folder, "--layout", "task", "--topology", str(topology)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    check_own(tmp_path / "app", inodes)
    with pytest.raises(SystemExit):
        main([folder])


def test_a_disk_that_refuses_is_reported_and_the_next_task_completes_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: MemoryChangelog
) -> None:
    inodes = lay_out(tmp_path)

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", refuse)
        with pytest.raises(StoreError):
            to_own(tmp_path)
    with crashing_at(RENAMED):
        to_own(tmp_path)
    assert read_layout(tmp_path) is OWN
    assert len(change_layout(tmp_path, OWN).completed) == len(STORES)
    check_own(tmp_path, inodes)
