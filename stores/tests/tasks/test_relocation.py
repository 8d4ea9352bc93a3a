"""Relocation: after a change of the topology's numbers each store is where its task looks for it, as it was."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.errors import (
    ConfigError,
    StoreCorruptedError,
    StoreLockedError,
    StoreMisplacedError,
    StoreUnavailableError,
)
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import (
    NO_INTERVAL,
    StateDirectory,
    StoreConfig,
    StreamTask,
    Subtopology,
    TaskConfig,
    TaskContext,
    TaskId,
    Topology,
    relocate,
)
from stores.tasks.directory import relocation_journal
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import JOURNAL_FILE
from stores.tasks.directory.origin_file import Origin, OriginFile
from stores.tasks.directory.relocation_journal import FAILPOINTS, STORE_MOVED, STORES_MOVED, Journal
from stores.tasks.directory.store_places import Place, places
from stores.tests.tasks.killed_process import call_until_killed
from stores.tests.tasks.setup import Crash, crashing_at, state

PARTITION = 14
STORES = ("counts", "names", "totals", "rates")
FORMER = Topology({2: Subtopology(("counts", "names")), 3: Subtopology(("totals",)), 4: Subtopology(("rates",))})
"""``counts`` and ``names`` go to two tasks, ``names`` and ``totals`` change places, ``counts`` and ``rates`` meet."""
PRESENT = Topology({3: Subtopology(("names",)), 2: Subtopology(("totals",)), 5: Subtopology(("counts", "rates"))})
BACKENDS = ["rocksdb-indexed-batch", "rocksdb-direct", "lmdb-indexed-batch", "sqlite-native"]
HOLD = """
import sys
from pathlib import Path
from stores.tests.tasks import test_relocation

task = test_relocation.task_of(test_relocation.FORMER, int(sys.argv[2]), Path(sys.argv[1]), {})
task.open()
print("held", flush=True)
sys.stdin.read()
"""


def task_id(number: int, partition: int = PARTITION) -> TaskId:
    return TaskId(number, partition)


def log_topic(store: str) -> str:
    return f"app-{store}-changelog"


def keep(record: Record, context: TaskContext) -> None:
    assert record.key is not None
    for name in context._stores:
        context.store(name).put(record.key, name.encode())


def task_of(topology: Topology, number: int, folder: Path, settings: Mapping[str, object]) -> StreamTask:
    """The task of the sub-topology's stores, each kept by the backend of the folder's ``backend`` file."""
    backend = settings.get("backend", "lmdb")
    log = settings.get("log") or MemoryChangelog()
    rest = {name: value for name, value in settings.items() if name not in ("backend", "log")}
    arguments: dict[str, object] = {
        "state_dir": folder,
        "changelog": log,
        "stores": {name: StoreConfig(str(backend)) for name in topology.subtopologies[number].stores},
        "process": keep,
        "inputs": [TopicPartition(f"input-{number}", PARTITION)],
        "commit_interval_ms": NO_INTERVAL,
        "topology": topology,
        **rest,
    }
    return StreamTask("app", task_id(number), **arguments)  # type: ignore[arg-type]


def run_all(topology: Topology, folder: Path, log: MemoryChangelog, backend: str, keys: int) -> list[int]:
    """Give each task of the topology some input; returns how many records each store was restored from."""
    restored = []
    for number in topology.subtopologies:
        topic = f"input-{number}"
        if topic not in log.topics():
            log.create_topic(topic, PARTITION + 1)
        with log.producer() as producer:
            for key in range(keys):
                producer.send(TopicPartition(topic, PARTITION), b"%d" % key, b"x")
            producer.flush()
        task = task_of(topology, number, folder, {"log": log, "backend": backend})
        restored += [report.records for report in task.open()]
        task.run()
        for store in topology.subtopologies[number].stores:
            assert len(state(task, store)) == keys
        task.close()
    return restored


def lay_out(folder: Path, topology: Topology = FORMER, partitions: int = 1) -> dict[str, int]:
    """Create the files that tasks of ``topology`` leave; return the inode of each store's folder."""
    inodes = {}
    for number, subtopology in topology.subtopologies.items():
        for partition in range(PARTITION, PARTITION + partitions):
            task_folder = folder / str(task_id(number, partition))
            for store in subtopology.stores:
                path = task_folder / "lmdb" / store
                path.mkdir(parents=True)
                (path / "store.json").write_text(json.dumps({"backend": "lmdb-indexed-batch", "format_version": 3}))
                (path / "data").mkdir()
                (path / "data" / "data.mdb").write_text(store)
                inodes[f"{store} {partition}"] = path.stat().st_ino
            stores = subtopology.stores
            offsets = {TopicPartition(log_topic(name), partition): len(name) for name in stores}
            CheckpointFile(task_folder / ".checkpoint").write(offsets)
            OriginFile(task_folder / ".origin").write(dict.fromkeys(stores, Origin.CLEAN))
    return inodes


def check_laid_out(folder: Path, inodes: Mapping[str, int], topology: Topology = PRESENT) -> None:
    """Every store is where ``topology`` has it, as it was, with its entries, and nothing else is there."""
    found = {}
    for task in StateDirectory(folder).tasks():
        task_folder = folder / str(task)
        stores = [place.store for place in places(task_folder)]
        assert sorted(stores) == sorted(topology.subtopologies[task.subtopology].stores)
        for store in stores:
            path = task_folder / "lmdb" / store
            found[f"{store} {task.partition}"] = path.stat().st_ino
            assert (path / "data" / "data.mdb").read_text() == store
        offsets = {TopicPartition(log_topic(name), task.partition): len(name) for name in stores}
        assert CheckpointFile(task_folder / ".checkpoint").read() == offsets
        assert OriginFile(task_folder / ".origin").read(()) == dict.fromkeys(stores, Origin.CLEAN)
    assert found == inodes
    assert not (folder / JOURNAL_FILE).exists()


def check_entries_are_beside_their_stores(folder: Path) -> None:
    """An offset or origin that names what is not there would have a task go on from data that it does not have."""
    for task in StateDirectory(folder).tasks():
        stores = {place.store for place in places(folder / str(task))}
        topics = {topic for topic, _ in CheckpointFile(folder / str(task) / ".checkpoint").read()}
        assert topics <= {log_topic(store) for store in stores}
        assert OriginFile(folder / str(task) / ".origin").read(()).keys() <= stores


def relocate_to_present(folder: Path) -> None:
    relocate(folder, PRESENT)


def content(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder but the lock files and the notes of the directory itself."""
    return {
        str(entry.relative_to(folder)): entry.read_bytes() if entry.is_file() else None
        for entry in folder.rglob("*")
        if entry.name not in (".lock", "lock") and not (entry.parent == folder and entry.is_file())
    }


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
    done = relocate(tmp_path, PRESENT)
    assert len(done.moved) == 3 * len(STORES)
    assert (done.completed, done.doubles, done.unnamed) == ((), (), ())
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


def test_stores_move_to_numbers_from_their_topics_and_back(tmp_path: Path) -> None:
    inodes = lay_out(tmp_path)
    hashed = Topology.by_topics(
        Subtopology(subtopology.stores, (f"input-{number}",)) for number, subtopology in FORMER.subtopologies.items()
    )
    for topology in (hashed, PRESENT, hashed, FORMER):
        relocate(tmp_path, topology)
        check_laid_out(tmp_path, inodes, topology)


def test_stores_and_tasks_that_stay_are_not_touched(tmp_path: Path) -> None:
    present = Topology({**FORMER.subtopologies, 4: Subtopology(), 7: Subtopology(("rates",))})
    lay_out(tmp_path)
    before = {entry: entry.stat() for task in (2, 3) for entry in (tmp_path / str(task_id(task))).rglob("*")}
    assert len(relocate(tmp_path, present).moved) == 1
    assert {entry: entry.stat() for entry in before} == before


def test_what_a_topology_changes_beside_the_numbers_moves_nothing(tmp_path: Path) -> None:
    """Source: KIP-816, "Motivation": changes that do not affect a store do not reset it."""
    inodes = lay_out(tmp_path)
    more = {9: Subtopology(("new",), ("topic",))}
    relocate(tmp_path, Topology({**FORMER.subtopologies, **more}))
    check_laid_out(tmp_path, inodes, FORMER)


@pytest.mark.parametrize(
    ("failpoint", "hit"), [*((failpoint, 1) for failpoint in FAILPOINTS), (STORE_MOVED, 2), (STORE_MOVED, len(STORES))]
)
def test_a_relocation_that_is_killed_anywhere_is_completed_by_the_next(
    tmp_path: Path, failpoint: str, hit: int
) -> None:
    inodes = lay_out(tmp_path)
    assert call_until_killed(relocate_to_present, tmp_path, failpoint, hit)
    check_entries_are_beside_their_stores(tmp_path)
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


@pytest.mark.parametrize("topology", [None, FORMER])
def test_a_task_that_knows_nothing_of_it_completes_a_relocation_first(
    tmp_path: Path, topology: Topology | None
) -> None:
    """Else it would restore what is on its way, and have its entries overwritten later."""
    inodes = lay_out(tmp_path)
    with crashing_at(STORE_MOVED):
        relocate(tmp_path, PRESENT)
    if topology is None:
        with MemoryChangelog() as log:
            log.create_topic("input-9", PARTITION + 1)
            task = task_of(Topology({9: Subtopology()}), 9, tmp_path, {"log": log, "topology": None})
            task.open()
            task.close()
        (tmp_path / str(task_id(9)) / ".lock").unlink()
        (tmp_path / str(task_id(9))).rmdir()
        check_laid_out(tmp_path, inodes)
    else:
        done = relocate(tmp_path, topology)
        assert len(done.completed) == len(done.moved) == len(STORES)
        check_laid_out(tmp_path, inodes, FORMER)


@contextmanager
def failing_at(number: int, seen: list[str]) -> Iterator[None]:
    """Let the ``number``-th call that changes a file or folder raise a crash before it does; counts them all."""
    patched = {name: getattr(os, name) for name in ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync")}

    def wrap(name: str) -> object:
        def call(*arguments: object, **named: object) -> object:
            seen.append(name)
            if len(seen) == number:
                raise Crash
            return patched[name](*arguments, **named)

        return call

    for name in patched:
        setattr(os, name, wrap(name))
    try:
        yield
    finally:
        for name, original in patched.items():
            setattr(os, name, original)


def cut_short_everywhere(base: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """State directories whose relocation has ended before each of its calls in turn, with their stores' inodes."""
    number = 0
    while True:
        number += 1
        folder = base / str(number)
        inodes = lay_out(folder)
        seen: list[str] = []
        try:
            with failing_at(number, seen):
                relocate(folder, PRESENT)
        except Crash:
            yield folder, inodes
            continue
        assert number > 30
        return


def test_whichever_call_is_the_last_one_no_entry_is_without_its_store_and_the_next_start_completes_it(
    tmp_path: Path,
) -> None:
    for folder, inodes in cut_short_everywhere(tmp_path):
        check_entries_are_beside_their_stores(folder)
        relocate(folder, PRESENT)
        check_laid_out(folder, inodes)


def test_a_relocation_that_copies_the_checkpoint_before_the_folder_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Journal, state: Path) -> None:
        for move in self.moves:
            source, target = (state / str(task) for task in (move.source, move.target))
            target.mkdir(exist_ok=True)
            file = CheckpointFile(target / ".checkpoint")
            file.write({**file.read(), **CheckpointFile(source / ".checkpoint").read()})
        self._move_stores(state)
        for task in self.homes:
            self._take_entries(state, task, self.moves)
            self._write_entries(state, task, self.moves)
        (state / JOURNAL_FILE).unlink()

    monkeypatch.setattr(Journal, "carry_out", broken)
    with pytest.raises(AssertionError):
        for folder, _ in cut_short_everywhere(tmp_path):
            check_entries_are_beside_their_stores(folder)


def test_an_existing_store_is_never_overwritten_and_the_other_one_stays(tmp_path: Path) -> None:
    lay_out(tmp_path)
    there = tmp_path / str(task_id(3)) / "lmdb" / "names"
    there.mkdir()
    (there / "mine").write_text("dear")
    done = relocate(tmp_path, PRESENT)
    assert [name for name, _, _ in done.doubles] == ["names"]
    assert (there / "mine").read_text() == "dear"
    assert (tmp_path / str(task_id(2)) / "lmdb" / "names" / "data").is_dir()
    assert {name for name, _, _ in done.moved} == set(STORES) - {"names"}


def test_of_two_copies_in_wrong_places_the_more_recent_one_is_moved(tmp_path: Path) -> None:
    lay_out(tmp_path, Topology({7: Subtopology(("rates",))}))
    lay_out(tmp_path)
    old = tmp_path / str(task_id(4))
    for entry in (*old.rglob("*"), old):
        os.utime(entry, (1e9, 1e9))
    done = relocate(tmp_path, PRESENT)
    assert [source for name, source, _ in done.moved if name == "rates"] == [
        tmp_path / str(task_id(7)) / "lmdb" / "rates"
    ]
    assert [source for _, source, _ in done.doubles] == [old / "lmdb" / "rates"]


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
    with pytest.raises(StoreMisplacedError) as refused:
        task.open()
    expected = {(name, tmp_path / f"{FORMER.subtopology_of(name)}_{PARTITION}" / "lmdb" / name) for name in STORES}
    assert {(name, source) for name, source, _ in refused.value.misplaced} == expected
    for name, source, target in refused.value.misplaced:
        assert target == tmp_path / f"{PRESENT.subtopology_of(name)}_{PARTITION}" / "lmdb" / name
        assert all(text in str(refused.value) for text in (name, str(source), str(target)))
    assert content(tmp_path) == before
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


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


@contextmanager
def holder(folder: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which has a task of ``FORMER`` open."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLD, str(folder), str(number)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_two_processes_with_different_topologies_exclude_each_other(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-816, "Non-goals"."""
    task = task_of(Topology({0: Subtopology(("other",))}), 0, tmp_path, {"log": log})
    same = task_of(FORMER, 3, tmp_path, {"log": log})
    with holder(tmp_path, 2) as process:
        for refuse in (task.open, lambda: relocate(tmp_path, PRESENT)):
            with pytest.raises(StoreLockedError) as refused:
                refuse()
            assert str(process.pid) in str(refused.value)
        # One with the same topology may come in.
        same.open()
        same.close()
        process.kill()
        process.wait()
        task.open()
    with pytest.raises(StoreLockedError):
        same.open()
    task.close()
    same.open()
    same.close()


@pytest.mark.parametrize("number", [2, 5])
def test_a_store_of_an_open_task_and_one_that_is_open_itself_stay_and_so_do_all_others(
    tmp_path: Path, number: int
) -> None:
    """Return True if it would give or get a store, also if its owner has another topology or none."""
    inodes = lay_out(tmp_path)
    (tmp_path / str(task_id(5))).mkdir()
    before = content(tmp_path)
    lock = StateDirectory(tmp_path).lock(task_id(number), "somebody")
    with pytest.raises(StoreLockedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before
    lock.release()
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


def test_a_store_that_is_open_by_itself_stays_and_so_do_all_others(tmp_path: Path) -> None:
    lay_out(tmp_path, Topology({3: Subtopology(("totals",))}))
    with open_store("sqlite", tmp_path / str(task_id(4)) / "sqlite" / "rates"):
        before = set(tmp_path.rglob("data"))
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, PRESENT)
        assert set(tmp_path.rglob("data")) == before
    assert len(relocate(tmp_path, PRESENT).moved) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("place", ["journal", "rename", "checkpoint"])
def test_a_disk_that_refuses_in_the_middle_is_told_and_the_next_start_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, place: str
) -> None:
    inodes = lay_out(tmp_path)

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        if place == "journal":
            broken.setattr(relocation_journal, "replace_file", refuse)
        elif place == "rename":
            broken.setattr(os, "rename", refuse)
        else:
            failpoints.arm(STORES_MOVED, lambda: broken.setattr(CheckpointFile, "write", refuse))
        with pytest.raises(StoreUnavailableError):
            relocate(tmp_path, PRESENT)
        failpoints.disarm()
    check_entries_are_beside_their_stores(tmp_path)
    relocate(tmp_path, PRESENT)
    check_laid_out(tmp_path, inodes)


def test_a_damaged_journal_is_refused_and_without_it_stores_are_found_by_their_names(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with crashing_at(STORE_MOVED):
        relocate(tmp_path, PRESENT)
    journal = tmp_path / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes().replace(b"counts", b"c0unts"))
    before = content(tmp_path)
    with pytest.raises(StoreCorruptedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before
    journal.unlink()
    relocate(tmp_path, PRESENT)
    check_entries_are_beside_their_stores(tmp_path)
    for name in STORES:
        assert (tmp_path / f"{PRESENT.subtopology_of(name)}_{PARTITION}" / "lmdb" / name / "data").is_dir()


def test_a_damaged_checkpoint_costs_its_own_entries_and_no_store(tmp_path: Path) -> None:
    lay_out(tmp_path)
    for name in (".checkpoint", ".origin"):
        (tmp_path / str(task_id(2)) / name).write_text("garbage")
    relocate(tmp_path, PRESENT)
    check_entries_are_beside_their_stores(tmp_path)
    assert CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").read() == {
        TopicPartition(log_topic("totals"), PARTITION): len("totals")
    }
    assert OriginFile(tmp_path / str(task_id(3)) / ".origin").read(()) == {"names": Origin.AT_LEAST_ONCE}


def test_an_entry_of_the_target_that_speaks_of_an_earlier_copy_gives_way(tmp_path: Path) -> None:
    lay_out(tmp_path)
    stale = {TopicPartition(log_topic("names"), PARTITION): 99}
    totals = {TopicPartition(log_topic("totals"), PARTITION): len("totals")}
    CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").write({**totals, **stale})
    CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").write({})
    relocate(tmp_path, PRESENT)
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {}


@pytest.mark.parametrize(("application_id", "kept"), [(None, False), ("app", True), ("app-a", False)])
def test_an_entry_that_may_be_of_two_stores_goes_with_neither_unless_the_application_is_known(
    tmp_path: Path, application_id: str | None, kept: bool
) -> None:
    """The topic app-a-b-changelog may be of the store a-b or b: losing its offset costs a restore, a wrong one more."""
    former = Topology({0: Subtopology(("b", "a-b"))})
    lay_out(tmp_path, former)
    relocate(tmp_path, Topology({1: Subtopology(("a-b",)), 0: Subtopology(("b",))}), application_id=application_id)
    found = CheckpointFile(tmp_path / str(task_id(1)) / ".checkpoint").read()
    assert found == ({TopicPartition(log_topic("a-b"), PARTITION): 3} if kept else {})


def test_the_position_file_of_kafka_s_follows_its_store(tmp_path: Path) -> None:
    lay_out(tmp_path)
    CheckpointFile(tmp_path / str(task_id(2)) / "names.position").write({TopicPartition("input", 0): 7})
    relocate(tmp_path, PRESENT)
    assert CheckpointFile(tmp_path / str(task_id(3)) / "names.position").read() == {TopicPartition("input", 0): 7}
    assert not (tmp_path / str(task_id(2)) / "names.position").exists()


def test_stores_of_the_old_layout_are_found_as_well_also_one_named_like_an_engine(tmp_path: Path) -> None:
    for number, name in ((2, "rocksdb"), (3, "lmdb"), (2, "names")):
        open_store("lmdb", tmp_path / str(task_id(number)) / name, name=name).close()
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


def test_a_store_that_is_no_longer_named_is_kept_and_told_and_removed_after_the_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The delay begins when it is first missed, not with its last use before: a slip in the topology can be mended."""
    lay_out(tmp_path)
    for entry in tmp_path.rglob("*"):
        os.utime(entry, (1e9, 1e9))
    fewer = Topology({2: Subtopology(("counts",)), 3: Subtopology(("totals",)), 4: Subtopology(("rates",))})
    config = TaskConfig("app", tmp_path, topology=fewer, state_cleanup_delay_s=600.0)
    path = tmp_path / str(task_id(2)) / "lmdb" / "names"
    with caplog.at_level("WARNING", "stores.tasks"):
        done = relocate(tmp_path, fewer)
    assert done.unnamed == (("names", path),)
    assert len(caplog.records) == 1
    young = tmp_path / str(task_id(2)) / "lmdb" / "counts" / "store.json"
    young.touch()
    for number in (3, 4):
        (tmp_path / str(task_id(number)) / "lmdb").joinpath(
            FORMER.subtopologies[number].stores[0], "store.json"
        ).touch()
    assert config.clean() == []
    assert path.is_dir()
    since = json.loads((tmp_path / ".unnamed").read_text())
    assert list(since) == ["2_14/lmdb/names"]
    (tmp_path / ".unnamed").write_text(json.dumps(dict.fromkeys(since, 1e9)))
    # Named again meanwhile: then it is not missed any more.
    relocate(tmp_path, FORMER)
    relocate(tmp_path, fewer)
    config.clean()
    assert path.is_dir()
    (tmp_path / ".unnamed").write_text(json.dumps(dict.fromkeys(since, 1e9)))
    config.clean()
    assert not path.exists()
    assert CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").read() == {
        TopicPartition(log_topic("counts"), PARTITION): len("counts")
    }
    assert OriginFile(tmp_path / str(task_id(2)) / ".origin").read(()) == {"counts": Origin.CLEAN}
    assert young.exists()


def test_an_unnamed_store_that_is_open_or_has_foreign_files_stays(tmp_path: Path) -> None:
    from stores.tasks.directory.unnamed_stores import clean_stores

    folder = tmp_path / str(task_id(0)) / "lmdb"
    state_directory = StateDirectory(tmp_path)
    open_store("lmdb", folder / "mine").close()
    (folder / "mine" / "letter").write_text("dear")
    (folder / "strange").mkdir()
    (folder / "strange" / "letter").write_text("dear")
    with open_store("lmdb", folder / "open"):
        assert clean_stores(state_directory, FORMER, -1.0) == []
    # Also while its task is open, which does not have it.
    lock = state_directory.lock(task_id(0), "somebody")
    assert clean_stores(state_directory, FORMER, -1.0) == [folder / "open"]
    lock.release()
    assert {entry.name for entry in folder.iterdir()} == {"mine", "strange"}


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
            topology=topology,
        )


@pytest.mark.parametrize("topology", [7, "2", {"subtopologies": {}}])
def test_what_is_no_topology_is_refused(tmp_path: Path, topology: object) -> None:
    with pytest.raises(TypeError):
        relocate(tmp_path, topology)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TaskConfig("app", tmp_path, topology=topology)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TaskConfig("app", tmp_path, automatic_state_relocation="no")  # type: ignore[arg-type]


def test_a_directory_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        relocate(tmp_path / "none", PRESENT)
    assert not (tmp_path / "none").exists()


def test_a_forked_process_does_not_hold_the_topology_of_its_parent(tmp_path: Path, log: MemoryChangelog) -> None:
    lay_out(tmp_path)
    log.create_topic("input-2", PARTITION + 1)
    task = task_of(FORMER, 2, tmp_path, {"log": log, "stores": {}})
    task.open()
    forked, told = os.pipe()
    child = os.fork()
    if not child:
        os.write(told, b"!")
        signal.pause()
        os._exit(0)
    try:
        # By then the child has given up what it has of its parent's.
        assert os.read(forked, 1) == b"!"
        with pytest.raises(StoreLockedError):
            relocate(tmp_path, PRESENT)
        task.close()
        relocate(tmp_path, PRESENT)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(forked)
        os.close(told)


@pytest.mark.parametrize("decided", [False, True])
def test_what_an_upgrade_keeps_beside_a_store_follows_it_also_while_the_two_are_swapped(
    tmp_path: Path, decided: bool
) -> None:
    """Left behind, the note of a swap would have the older of the two stores count."""
    lay_out(tmp_path)
    folder, target = (tmp_path / str(task_id(number)) / "lmdb" for number in (2, 3))
    if decided:
        (folder / "names").rename(folder / "names.former")
    (folder / "names.prepare").mkdir()
    (folder / "names.swap").write_text("note")
    names = {entry.name for entry in folder.iterdir()} - {"counts"}
    with crashing_at(STORE_MOVED):
        relocate(tmp_path, PRESENT)
    done = relocate(tmp_path, PRESENT)
    assert len(done.completed) == len(STORES)
    assert {entry.name for entry in target.iterdir()} == names
    assert {entry.name for entry in folder.iterdir()} == {"totals"}
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {
        TopicPartition(log_topic("names"), PARTITION): len("names")
    }
