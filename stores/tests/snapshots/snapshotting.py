"""A task that puts the records of its input into one store, with snapshots, and the model of that store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from stores.changelog import Changelog, Record
from stores.interface import TopicPartition
from stores.registry import backends
from stores.snapshots import Snapshots
from stores.snapshots.index import StoredPart
from stores.snapshots.objects import FILES, StoreObjects
from stores.tasks import RestoreReport, StreamTask, TaskContext
from stores.tests.changelog.files.object_store import ConditionalPut
from stores.tests.tasks.setup import INPUT, changelog_of, single, state, store_folder

CHANGELOG = changelog_of("s")
SNAPPED = sorted(
    name
    for name, backend in backends().items()
    if backend.persistent and backend.transactional and backend.manages_offsets and backend.load_engine().captures
)
"""The backends of which there are snapshots."""
RECORDS = 300
WITHIN_S = 60.0
"""The most time for a snapshot."""


def put(record: Record, context: TaskContext) -> None:
    """Put the record; an empty value deletes."""
    assert record.key is not None
    context.store("s").put(record.key, record.value or None)


def send(log: Changelog, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Put pairs into the input."""
    with log.producer() as producer:
        for key, value in pairs:
            producer.send(INPUT, key, value)
        producer.flush()


def pairs_of(numbers: Iterable[int], value: bytes = b"value") -> list[tuple[bytes, bytes]]:
    """Return pairs whose keys are in the order of their numbers."""
    return [(b"key %08d" % number, value + b" %08d" % number) for number in numbers]


def settings(folder: Path, *, objects: bool = False, **given: Any) -> Snapshots:
    """Return snapshots in ``folder``, after each commit; in a simulated store of ``objects`` if wanted."""
    return Snapshots(folder / "snapshots", ConditionalPut() if objects else None, **{"interval_ms": 0, **given})


def snapping(folder: Path, log: Changelog, backend: str, snapshots: Snapshots | None, **given: Any) -> StreamTask:
    """Return the task."""
    return single(folder, log, put, backend, snapshots=snapshots, **given)


def objects_in(snapshots: Snapshots, partition: TopicPartition = CHANGELOG) -> StoreObjects:
    """Return the objects of the task's store."""
    return StoreObjects(snapshots.folder, partition)


def wait(task: StreamTask) -> None:
    """Wait for the end of the snapshots that are under way."""
    for store in task._stores._stores:
        assert store.snapshots.wait(WITHIN_S)


def commit(task: StreamTask) -> None:
    """Process the input that there is, commit, and wait for a snapshot that this has begun."""
    task.run(commit=True)
    wait(task)


def snap(task: StreamTask, log: Changelog, name: str = "s") -> int:
    """Commit until another snapshot is in place; return its offset."""
    before = task.metrics.stores[name].snapshot_total
    deadline = time.monotonic() + WITHIN_S
    number = 0
    while task.metrics.stores[name].snapshot_total == before:
        assert time.monotonic() < deadline, "no snapshot was taken in time"
        send(log, [(b"tick", b"%d" % number)])
        commit(task)
        number += 1
    offset = task.metrics.stores[name].snapshot_offset
    assert offset is not None
    return offset


def lose(folder: Path) -> None:
    """Remove the local state of all tasks."""
    rmtree(folder / "state")


def damage(objects: StoreObjects, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the case of ``value`` in the newest snapshot, as if it had been sent with the damage."""
    for part in objects.index(objects.indexes()[0]).parts():
        name = objects.path(FILES, part)
        content = objects.folder.read(name)
        (Path(objects.folder.location) / name).write_bytes(content.replace(value, value.swapcase()))

    def unverified(self: StoreObjects, part: StoredPart, write: Callable[[int, memoryview], object]) -> None:
        write(0, memoryview(self.folder.read(self.path(FILES, part))))

    monkeypatch.setattr(StoreObjects, "fetch", unverified)


def reopened(
    folder: Path, log: Changelog, backend: str, snapshots: Snapshots | None
) -> tuple[dict[bytes, bytes], RestoreReport]:
    """Open the task again, and return the contents of its store, with the report."""
    task = snapping(folder, log, backend, snapshots)
    [report] = task.open()
    try:
        return state(task, "s"), report
    finally:
        task.close()


def store_path(folder: Path, backend: str) -> Path:
    """Return the folder of the store."""
    return store_folder(folder, backend, "s")
