"""Corners of relocation: what appears or vanishes meanwhile, entries of others, damaged journals, and who waits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from stores.errors import (
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import (
    DirectoryLayout,
    StateDirectory,
    Subtopology,
    Topology,
    change_layout,
    relocate,
    stored_offsets,
)
from stores.tasks.directory import relocation
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile, SplitCheckpoint, SplitOrigins
from stores.tasks.directory.placement import Move, owners
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.replacement import DECIDED
from stores.tasks.directory.store_places import JOURNAL_FILE
from stores.tasks.directory.unnamed_stores import UNNAMED_FILE, clean_stores
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    PRESENT,
    STORES,
    check_laid_out,
    content,
    folder_of,
    lay_out,
    log_topic,
    task_id,
    to_own,
    to_present,
)
from stores.tests.tasks.setup import crashing_at

TASKS = FORMER.subtopologies.items()
NAMES, TOTALS = (TopicPartition(log_topic(store), PARTITION) for store in ("names", "totals"))


@pytest.mark.parametrize("move", [to_present, to_own])
def test_a_store_on_another_file_system_is_reported_and_nothing_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], object]
) -> None:
    """A rename does not lead there, and a copy would take as long as the store is large."""
    lay_out(tmp_path)
    before = content(tmp_path)
    stat = Path.stat

    def mounted(self: Path, **given: bool) -> os.stat_result:
        stat_result = stat(self, **given)
        return (
            os.stat_result((*stat_result[:2], 10**6, *stat_result[3:10]))
            if str(task_id(2)) in self.parts
            else stat_result
        )

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", mounted)
        with pytest.raises(StoreUnavailableError):
            move(tmp_path)
    assert content(tmp_path) == before
    assert not (tmp_path / JOURNAL_FILE).exists()
    move(tmp_path)


def test_a_store_that_appears_at_the_target_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    target = folder_of(tmp_path, 5) / "rates"

    def late(*given: object) -> None:
        target.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(relocation, "_check_devices", late)
    done = relocate(tmp_path, PRESENT)
    assert [name for name, _, _ in done.doubles] == ["rates"]
    assert "rates" not in [name for name, _, _ in done.moved]
    assert list(target.iterdir()) == []
    assert (folder_of(tmp_path, 4) / "rates" / "store.json").exists()
    assert CheckpointFile(tmp_path / str(task_id(4)) / ".checkpoint").read() != {}


def test_what_appears_in_the_right_place_before_a_completion_is_not_overwritten_and_gets_no_entries(
    tmp_path: Path,
) -> None:
    """An offset beside a store that it is not about would have a task go on from data that it does not have."""
    lay_out(tmp_path)
    CheckpointFile(tmp_path / str(task_id(2)) / "names.position").write({TopicPartition("input", 0): 7})
    with crashing_at(DECIDED):
        relocate(tmp_path, PRESENT)
    target = folder_of(tmp_path, 3) / "names"
    target.mkdir()
    (target / "mine").write_text("dear")
    relocation = relocate(tmp_path, PRESENT)
    assert len(relocation.completed) == len(STORES)
    assert [entry.name for entry in target.iterdir()] == ["mine"]
    assert (folder_of(tmp_path, 2) / "names" / "store.json").exists()
    assert (tmp_path / str(task_id(2)) / "names.position").exists()
    for number in (2, 3):
        assert NAMES not in CheckpointFile(tmp_path / str(task_id(number)) / ".checkpoint").read()
        assert "names" not in OriginFile(tmp_path / str(task_id(number)) / ".origin").read(())


def test_entries_of_another_partition_or_of_no_store_here_stay_where_they_are(tmp_path: Path) -> None:
    lay_out(tmp_path)
    file = CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint")
    others = {TopicPartition(log_topic("names"), 99): 77, TopicPartition("names", PARTITION): 78}
    file.write({**file.read(), **others})
    relocate(tmp_path, PRESENT)
    assert file.read() == {**others, TOTALS: len("totals")}
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {NAMES: len("names")}


def test_offsets_of_another_partition_or_of_two_stores_are_not_reported_for_task_assignment(tmp_path: Path) -> None:
    topology = Topology({0: Subtopology(("b", "a-b"))})
    lay_out(tmp_path, topology)
    file = CheckpointFile(tmp_path / str(task_id(0)) / ".checkpoint")
    file.write({**file.read(), TopicPartition(log_topic("b"), 99): 77})
    b, a_b = (TopicPartition(log_topic(store), PARTITION) for store in ("b", "a-b"))
    assert stored_offsets(tmp_path, topology) == {task_id(0): {"a-b": {}, "b": {b: 1}}}
    offsets = stored_offsets(tmp_path, topology, application_id="app")
    assert offsets == {task_id(0): {"a-b": {a_b: 3}, "b": {b: 1}}}


def test_a_changelog_is_its_store_s_with_an_application_before_it() -> None:
    names = {"names", "a-names"}
    assert owners("app-names-changelog", names, None) == ["names"]
    assert sorted(owners("app-a-names-changelog", names, None)) == ["a-names", "names"]
    assert owners("app-a-names-changelog", names, "app-a") == ["names"]
    for topic in ("names-changelog", "-names-changelog", "app-names", "app-other-changelog"):
        assert owners(topic, names, None) == []
    for topic in ("names-changelog", "-names-changelog", "other-names-changelog"):
        assert owners(topic, names, "app") == []


def checked(told: dict[str, object]) -> str:
    return json.dumps({**told, "checksum": crc32(json.dumps(told, sort_keys=True).encode())})


@pytest.mark.parametrize(
    "changed",
    [{"version": 2}, {"store": ".."}, {"store": "a/b"}, {"engine": ".."}, {"from": "../2_14"}, {"to": "2_14/lmdb"}],
)
def test_a_journal_that_leads_out_of_the_directory_or_is_of_a_later_release_is_not_carried_out(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    lay_out(tmp_path)
    Journal((Move("names", "lmdb", task_id(2), task_id(3)),)).write(tmp_path)
    journal = json.loads((tmp_path / JOURNAL_FILE).read_text())
    del journal["checksum"]
    (tmp_path / JOURNAL_FILE).write_text(checked(journal))
    assert Journal.read(tmp_path) is not None
    for name, value in changed.items():
        (journal if name in journal else journal["moves"][0])[name] = value
    (tmp_path / JOURNAL_FILE).write_text(checked(journal))
    before = content(tmp_path)
    with pytest.raises(StoreCorruptedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_or_another_engine_s_store_where_a_store_belongs_is_a_store_that_is_there(
    tmp_path: Path, dangling: bool
) -> None:
    outside = tmp_path / "outside"
    if not dangling:
        outside.mkdir()
    state = tmp_path / "state"
    lay_out(state)
    folder_of(state, 5).mkdir(parents=True)
    (folder_of(state, 5) / "rates").symlink_to(outside)
    (folder_of(state, 3, "sqlite") / "names").mkdir(parents=True)
    relocation = relocate(state, PRESENT)
    assert {name for name, _, _ in relocation.doubles} == {"rates", "names"}
    assert {name for name, _, _ in relocation.moved} == {"counts", "totals"}
    assert (folder_of(state, 2) / "names" / "store.json").exists()
    assert (folder_of(state, 4) / "rates" / "store.json").exists()
    assert (folder_of(state, 5) / "rates").is_symlink()
    assert outside.exists() is not dangling


def test_links_beside_a_store_neither_follow_it_nor_go_with_it(tmp_path: Path) -> None:
    state, letter = tmp_path / "state", tmp_path / "letter"
    letter.write_text("dear")
    lay_out(state)
    links = [folder_of(state, 2) / f"names{end}" for end in (".swap", ".former")]
    for link in links:
        link.symlink_to(letter)
    assert "names" in [name for name, _, _ in relocate(state, PRESENT).moved]
    assert sorted(entry.name for entry in folder_of(state, 3).iterdir()) == ["names"]
    lay_out(state / "more", Topology({2: Subtopology(("names",))}))
    (state / "more" / "2_14" / "lmdb" / "names").rename(folder_of(state, 2) / "names")
    assert folder_of(state, 2) / "names" in clean_stores(StateDirectory(state), Topology({}), -1.0)
    assert all(link.is_symlink() for link in links)
    assert letter.read_text() == "dear"


def test_beside_foreign_files_a_task_s_lock_file_stays(tmp_path: Path) -> None:
    """A process that has it open would continue with a lock that excludes nobody."""
    lay_out(tmp_path)
    (tmp_path / str(task_id(4)) / "letter").write_text("dear")
    relocate(tmp_path, PRESENT)
    assert sorted(entry.name for entry in (tmp_path / str(task_id(4))).iterdir()) == [".lock", "letter"]


def test_each_rename_is_durable_before_an_entry_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    steps: list[tuple[str, Path]] = []
    sync, rename, replace = os.fsync, os.rename, os.replace

    def synced(descriptor: int) -> None:
        steps.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        steps.append(("rename", Path(target)))
        rename(source, target)

    def replaced(source: Path, target: Path) -> None:
        steps.append(("replace", Path(target)))
        replace(source, target)

    for name, call in (("fsync", synced), ("rename", renamed), ("replace", replaced)):
        monkeypatch.setattr(os, name, call)
    relocate(tmp_path, PRESENT)
    renames = [number for number, (call, _) in enumerate(steps) if call == "rename"]
    assert len(renames) == len(STORES)
    journal_step = steps.index(("replace", tmp_path / JOURNAL_FILE))
    assert ("sync", tmp_path) in steps[journal_step : renames[0]]
    entries = next(number for number, (call, _) in enumerate(steps) if call == "replace" and number > renames[-1])
    folders = {folder_of(tmp_path, number) for number in (2, 3, 4, 5)}
    assert folders <= {path for call, path in steps[renames[-1] : entries] if call == "sync"}


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_a_folder_has_durably_lost_its_name_before_the_first_of_its_files_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: DirectoryLayout
) -> None:
    """Else power loss may bring the name back, with some of the files."""
    lay_out(tmp_path, Topology({2: Subtopology(("names",))}))
    change_layout(tmp_path, layout)
    folder = tmp_path / ("2_14" if layout is DirectoryLayout.TASK else "names/14")
    steps: list[tuple[str, str]] = []
    sync, rename, unlink = os.fsync, os.rename, os.unlink

    def synced(descriptor: int) -> None:
        steps.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        steps.append(("rename", str(source)))
        rename(source, target)

    def unlinked(file: str, **given: int) -> None:
        steps.append(("unlink", ""))
        unlink(file, **given)

    for name, call in (("fsync", synced), ("rename", renamed), ("unlink", unlinked)):
        monkeypatch.setattr(os, name, call)
    assert len(StateDirectory(tmp_path).clean(-1.0)) == 1
    start = steps.index(("rename", str(folder)))
    assert ("sync", str(folder.parent)) in steps[start : steps.index(("unlink", ""))]


def test_a_store_that_is_open_keeps_its_entries_when_it_is_not_named(tmp_path: Path) -> None:
    lay_out(tmp_path, Topology({2: Subtopology(("names",))}))
    with open_store("sqlite", folder_of(tmp_path, 2, "sqlite") / "mine", name="mine"):
        file = CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint")
        file.write({**file.read(), TopicPartition(log_topic("mine"), PARTITION): 4})
        assert len(clean_stores(StateDirectory(tmp_path), PRESENT, -1.0)) == 0
        assert file.read()[TopicPartition(log_topic("mine"), PARTITION)] == 4
    assert len(clean_stores(StateDirectory(tmp_path), Topology({}), -1.0)) == 2
    assert file.read() == {}


def test_a_second_copy_in_a_wrong_place_is_noted_and_removed_after_the_delay_and_never_the_one_in_the_right_place(
    tmp_path: Path,
) -> None:
    inodes = lay_out(tmp_path, PRESENT)
    lay_out(tmp_path, Topology({7: Subtopology(("names",))}))
    assert [name for name, _, _ in relocate(tmp_path, PRESENT).doubles] == ["names"]
    assert list(json.loads((tmp_path / UNNAMED_FILE).read_text())) == ["7_14/lmdb/names"]
    state = StateDirectory(tmp_path)
    assert clean_stores(state, PRESENT, 1e6) == []
    assert clean_stores(state, PRESENT, -1.0) == [folder_of(tmp_path, 7) / "names"]
    assert CheckpointFile(tmp_path / str(task_id(7)) / ".checkpoint").read() == {}
    assert state.clean(-1.0, [task_id(2), task_id(3), task_id(5)]) == [task_id(7)]
    check_laid_out(tmp_path, inodes)


@pytest.mark.parametrize("layout", DirectoryLayout)
def test_all_that_lies_beside_an_unnamed_store_goes_with_it(tmp_path: Path, layout: DirectoryLayout) -> None:
    lay_out(tmp_path, FORMER)
    folder = tmp_path / str(task_id(2))
    open_store("lmdb", folder / "lmdb" / "names.prepare", name="names").close()
    (folder / "lmdb" / "names.swap").write_text("note")
    CheckpointFile(folder / "names.position").write({TopicPartition("input", 0): 7})
    change_layout(tmp_path, layout)
    names_left = Topology({number: Subtopology(tuple({*each.stores} - {"names"})) for number, each in TASKS})
    assert len(clean_stores(StateDirectory(tmp_path), names_left, -1.0)) == 1
    assert [entry for entry in tmp_path.rglob("*") if "names" in entry.name] == []
    assert len(list(tmp_path.rglob("store.json"))) == len(STORES) - 1


def test_a_store_that_is_missed_since_the_future_is_missed_since_now(tmp_path: Path) -> None:
    """The clock was set back: else it would stay for years."""
    lay_out(tmp_path, Topology({2: Subtopology(("former",))}))
    relocate(tmp_path, PRESENT)
    (tmp_path / UNNAMED_FILE).write_text(json.dumps({"2_14/lmdb/former": time.time() + 1e9}))
    relocate(tmp_path, PRESENT)
    (since,) = json.loads((tmp_path / UNNAMED_FILE).read_text()).values()
    assert since <= time.time()


def test_folders_that_only_look_like_another_layout_are_no_stores(tmp_path: Path) -> None:
    lay_out(tmp_path, PRESENT)
    open_store("lmdb", tmp_path / "former" / "3" / "lmdb").close()
    relocation = relocate(tmp_path, PRESENT)
    assert (relocation.unnamed, relocation.moved, relocation.doubles) == ((), (), ())
    assert clean_stores(StateDirectory(tmp_path), PRESENT, -1.0) == []
    assert StateDirectory(tmp_path).clean(1e6) == []


def other_engine_there(state: Path) -> None:
    open_store("lmdb", state / "0_0" / "lmdb" / "counts").close()
    open_store("sqlite", state / "counts" / "0" / "sqlite").close()


def alike(state: Path) -> None:
    open_store("lmdb", state / "0_0" / "lmdb" / "counts").close()
    open_store("lmdb", state / "Counts" / "0" / "lmdb").close()


@pytest.mark.parametrize(
    ("make", "error"),
    [(other_engine_there, StoreIncompatibleError), (alike, ConfigError)],
)
def test_a_change_of_layout_that_would_lose_a_store_is_refused_and_all_stays(
    tmp_path: Path, make: Callable[[Path], None], error: type[Exception]
) -> None:
    make(tmp_path)
    before = content(tmp_path)
    with pytest.raises(error):
        change_layout(tmp_path, DirectoryLayout.STORE_PARTITION)
    assert content(tmp_path) == before
    assert not (tmp_path / JOURNAL_FILE).exists()


def test_each_file_of_a_split_checkpoint_speaks_of_its_own_store_alone(tmp_path: Path) -> None:
    files = {NAMES: CheckpointFile(tmp_path / "names"), TOTALS: CheckpointFile(tmp_path / "totals")}
    split = SplitCheckpoint(tmp_path / "task", files)
    split.write({NAMES: 5, TOTALS: 6})
    assert [file.read() for file in files.values()] == [{NAMES: 5}, {TOTALS: 6}]
    assert split.read() == {NAMES: 5, TOTALS: 6}
    split.write({TOTALS: 7})
    assert split.read() == {TOTALS: 7}
    files[TOTALS].write({TOTALS: 7, NAMES: 99})
    assert split.read() == {TOTALS: 7}
    files[NAMES].write({NAMES: 5})
    (tmp_path / "totals").write_text("garbage")
    assert split.read() == {NAMES: 5}


def test_each_file_of_split_origins_speaks_of_its_own_store_alone(tmp_path: Path) -> None:
    files = {name: OriginFile(tmp_path / name) for name in ("names", "totals")}
    split = SplitOrigins(files)
    split.write({"names": Origin.CLEAN, "totals": Origin.EXACTLY_ONCE})
    assert split.read(["names", "totals"]) == {"names": Origin.CLEAN, "totals": Origin.EXACTLY_ONCE}
    assert split.read(["names"]) == {"names": Origin.CLEAN}
    (tmp_path / "totals").write_text("garbage")
    assert split.read(["names", "totals"]) == {"names": Origin.CLEAN, "totals": Origin.AT_LEAST_ONCE}
    split.write({"names": Origin.CLEAN})
    assert split.read(["names", "totals"]) == {"names": Origin.CLEAN}
