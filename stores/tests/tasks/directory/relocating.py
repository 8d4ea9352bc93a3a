"""Tasks of an application whose topology changes, their stores on disk, and the states that a relocation may leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stores.changelog import MemoryChangelog, Record
from stores.files.identity import Identity
from stores.interface import TopicPartition
from stores.tasks import (
    NO_INTERVAL,
    DirectoryLayout,
    StateDirectory,
    StoreConfig,
    StreamTask,
    Subtopology,
    TaskContext,
    TaskId,
    Topology,
    change_layout,
    relocate,
)
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.store_places import JOURNAL_FILE, places
from stores.tests.tasks.setup import Crash, state, stream_task

PARTITION = 14
STORES = ("counts", "names", "totals", "rates")
FORMER = Topology({2: Subtopology(("counts", "names")), 3: Subtopology(("totals",)), 4: Subtopology(("rates",))})
"""``counts`` and ``names`` go to two tasks, ``names`` and ``totals`` change places, ``counts`` and ``rates`` meet."""
PRESENT = Topology({3: Subtopology(("names",)), 2: Subtopology(("totals",)), 5: Subtopology(("counts", "rates"))})
BACKENDS = ["rocksdb-indexed-batch", "rocksdb-direct", "lmdb-indexed-batch", "sqlite-native"]
HOLD = """
import sys
from pathlib import Path
from stores.tests.tasks.directory import relocating

task = relocating.task_of(relocating.FORMER, int(sys.argv[2]), Path(sys.argv[1]), {})
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
    for name in context._stores._stores:
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
    return stream_task(task_id(number), **arguments)


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
                (path / "store.json").write_text(Identity("lmdb-indexed-batch", 1).text())
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


@contextmanager
def failing_at(number: int, seen: list[str]) -> Iterator[None]:
    """Let the ``number``-th call that changes a file or folder raise a crash before it does; counts them all."""
    functions = {name: getattr(os, name) for name in ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync")}

    def wrap(name: str) -> object:
        def call(*arguments: object, **named: object) -> object:
            seen.append(name)
            if len(seen) == number:
                raise Crash
            return functions[name](*arguments, **named)

        return call

    for name in functions:
        setattr(os, name, wrap(name))
    try:
        yield
    finally:
        for name, original in functions.items():
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


def folder_of(state: Path, number: int, engine: str = "lmdb") -> Path:
    return state / str(task_id(number)) / engine


def to_present(state: Path) -> object:
    return relocate(state, PRESENT)


def to_own(state: Path) -> object:
    return change_layout(state, DirectoryLayout.STORE_PARTITION)


def to_tasks(state: Path) -> object:
    return change_layout(state, DirectoryLayout.TASK, topology=FORMER)
