"""Upgrades on a disk that is full, or fills up: the old store stays as it was, and the task goes on."""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.errors import (
    CommitFailedError,
    StoreUnavailableError,
)
from stores.settings import Upgrade, UpgradeProgress
from stores.strategies.store import Store
from stores.tasks import TaskContext
from stores.tasks.directory.replacement import SYNCED
from stores.tasks.directory.store_places import PREPARE_END, beside
from stores.tasks.stores.store_format import files_bytes, kept_version, room_needed_bytes
from stores.tests.tasks.setup import DIRECT, INDEXED
from stores.tests.tasks.typed import feed_times, kept, store_folder
from stores.tests.tasks.upgrading import (
    BACKENDS,
    names_beside,
    new_task,
    old_task,
    online_task,
    shown,
    work,
)


def test_an_upgrade_without_room_for_a_second_store_changes_nothing(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 5)
    before = kept(tmp_path, INDEXED)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1_000))
        with pytest.raises(StoreUnavailableError):
            new_task(tmp_path, log).open()
    assert names_beside(tmp_path) == []
    assert kept(tmp_path, INDEXED) == before
    work(new_task(tmp_path, log))


@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT])
def test_an_upgrade_takes_no_more_room_than_it_asks_for(
    tmp_path: Path, log: MemoryChangelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 1_000)

    def write(record: Record, context: TaskContext) -> None:
        for number in range(record.offset * 1_000, record.offset * 1_000 + 1_000):
            context.store("s").put(b"%05d" % (number * 7_919 % 10_000), random.Random(number).randbytes(100))

    feed_times(log, range(10))
    work(old_task(tmp_path, log, backend, process=write, commit_every_records=1))
    folder = store_folder(tmp_path)
    new = beside(folder, PREPARE_END)
    needed = room_needed_bytes(folder, new)
    sizes: list[int] = []

    def note(progress: UpgradeProgress) -> None:
        sizes.append(files_bytes(new))

    upgrade = Upgrade(1, lambda record, version: [(record.key or b"", record.value)], on_upgrade=note)
    with closing(new_task(tmp_path, log, backend, store_records=None, store_upgrade=upgrade)) as task:
        failpoints.arm(SYNCED, lambda: sizes.append(files_bytes(new)))
        task.open()
    assert len(sizes) == 12
    assert 0 < max(sizes) <= needed


def check_that_the_old_store_stays(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, method: str, full: Callable[..., None]
) -> None:
    """Upgrade a store with ``full`` as a method of its stores, which fails, and then without it."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log))
    before = kept(tmp_path, INDEXED)
    with monkeypatch.context() as patch:
        patch.setattr(Store, method, full)
        with pytest.raises(StoreUnavailableError):
            new_task(tmp_path, log).open()
    assert names_beside(tmp_path) == []
    assert kept(tmp_path, INDEXED) == before
    work(new_task(tmp_path, log))


def test_a_disk_that_fills_up_in_an_upgrade_leaves_the_old_store(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: Store, pairs: Any, *_: Any, **named: Any) -> None:
        if pairs:
            raise CommitFailedError("no space left on the device", reopen=True)

    check_that_the_old_store_stays(tmp_path, log, monkeypatch, "restore", full)


def test_a_disk_that_is_found_full_as_the_new_store_is_closed_leaves_the_old_one(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB writes what it still has in memory when it is closed."""
    close = Store.close

    def full(store: Store) -> None:
        is_new = store.is_open and kept_version(store) == 1
        close(store)
        if is_new:
            raise CommitFailedError("no space left on the device", reopen=True)

    check_that_the_old_store_stays(tmp_path, log, monkeypatch, "close", full)


@pytest.mark.parametrize("backend", BACKENDS)
def test_files_that_can_not_grow_in_an_upgrade_leave_the_old_store(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    """As a full disk, which the system and not the library finds: here a limit on the size of files."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend))
    folder = store_folder(tmp_path)
    before = kept(tmp_path, backend)
    largest = max(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def large(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        return [(record.key or b"", random.Random(record.offset).randbytes(1 << 18))]

    upgrade = Upgrade(1, large)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + (1 << 20), hard))
    try:
        with pytest.raises(StoreUnavailableError):
            new_task(tmp_path, log, backend, store_records=None, store_upgrade=upgrade).open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names_beside(tmp_path) == []
    assert kept(tmp_path, backend) == before
    with closing(new_task(tmp_path, log, backend, store_records=None, store_upgrade=upgrade)) as task:
        task.open()
        assert len(shown(task)) == 20


def test_a_disk_that_fills_up_in_an_online_upgrade_leaves_the_task_at_work(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    restore = Store.restore

    def full(store: Store, pairs: Any, *rest: Any, **named: Any) -> None:
        if pairs:
            raise CommitFailedError("no space left on the device", reopen=True)
        restore(store, pairs, *rest, **named)

    with closing(online_task(tmp_path, log)) as task:
        task.open()
        with monkeypatch.context() as patch:
            patch.setattr(Store, "restore", full)
            task.run(10, commit=True)
        assert names_beside(tmp_path) == []
        task.run(10, commit=True)
        assert shown(task)[b"k19"] == b"19"
    work(new_task(tmp_path, log))
