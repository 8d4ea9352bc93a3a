"""An online upgrade whose new store takes the old one's place at a commit of the running task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.changelog import MemoryChangelog, Record
from stores.errors import StoreClosedError, StoreError, StoreUnavailableError
from stores.interface import IsolationLevel, PositionBound
from stores.records import ValueAndTimestamp
from stores.settings import UpgradeProgress
from stores.tasks import TaskContext
from stores.tasks.directory import replacement as swap
from stores.tasks.stores import store_format
from stores.tasks.stores.log_format import VERSION_HEADER
from stores.tests.tasks.setup import DIRECT, INPUT
from stores.tests.tasks.typed import STORE, feed_times, sent, store_folder
from stores.tests.tasks.upgrading import (
    BACKENDS,
    expected,
    names_beside,
    new_task,
    old_task,
    running_task,
    shown,
    work,
)


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT])
def test_the_new_store_takes_the_old_one_s_place_at_a_commit_and_the_task_goes_on(
    tmp_path: Path, log: MemoryChangelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(40))
    work(old_task(tmp_path, log, backend), 20)
    monkeypatch.setattr("stores.tasks.stores.store_format.STEP_RECORDS_MIN", 8)
    progress: list[UpgradeProgress] = []
    swapped_at: list[int] = []
    with closing(running_task(tmp_path, log, backend, told=progress.append)) as task:
        task.open()
        for done in range(22, 41, 2):
            task.run(2, commit=True)
            if progress[-1].swapped and not swapped_at:
                swapped_at.append(done)
                assert shown(task) == expected(done)
                bound = PositionBound({INPUT: done - 1})
                assert task.store("s", IsolationLevel.READ_COMMITTED, bound).get("key-0") == expected(1)["key-0"]
        assert 22 < swapped_at[0] < 40
        assert shown(task) == expected(40)
        assert sum(step.swapped for step in progress) == 1
        metrics = task.metrics.stores["s"]
        assert (metrics.upgrade_total, metrics.upgrade_remaining_offsets) == (1, 0)
    assert names_beside(tmp_path) == []
    formats = [bool(record.headers) for record in log.read(STORE)]
    assert formats == sorted(formats)
    for task in (running_task(tmp_path, log, backend), new_task(tmp_path, log, backend)):
        with closing(task):
            [report] = task.open()
            assert (report.wiped, report.records) == (False, 0)
            assert shown(task) == expected(40)


def test_what_function_and_readers_have_kept_works_on_after_the_swap(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    kept: list[Any] = []

    def write(record: Record, context: TaskContext) -> None:
        write_kept = kept[0].put if record.offset < 14 else put
        write_kept(f"key-{record.offset}", record.offset, record.timestamp_ms)

    with closing(
        running_task(tmp_path, log, process=write, init=lambda context: kept.append(context.store("s")))
    ) as task:
        task.open()
        views = [task.store("s", level) for level in IsolationLevel]
        put, get = kept[0].put, views[0].get
        assert [view.get("key-5") for view in views] == [ValueAndTimestamp(5, -1)] * 2
        task.run(4, commit=True)
        assert {record.headers for record in log.read(STORE)} == {()}
        assert [view.get("key-9") for view in views] == [ValueAndTimestamp(9, sent(9)[1])] * 2
        task.run(4, commit=True)
        assert [view.get("key-12") for view in views] == [ValueAndTimestamp(12, sent(12)[1])] * 2
        assert {record.headers for record in log.read(STORE, 10)} >= {((VERSION_HEADER, b"1"),)}
        # A method of the old store is not one of the new store: it would read and write in the old format.
        with pytest.raises(StoreError):
            get("key-5")
        with pytest.raises(StoreClosedError):
            task.run(1)


def test_a_scan_that_is_open_at_the_swap_ends_in_an_error(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    with closing(running_task(tmp_path, log)) as task:
        task.open()
        scan = task.store("s")._present()._old.all()
        task.run(4, commit=True)
        with pytest.raises(StoreClosedError):
            list(scan)


def test_a_new_store_has_the_new_format_at_once(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path / "old", log), 6)
    work(new_task(tmp_path / "old", log), 6)
    with closing(running_task(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(12)
        task.run(commit=True)
        assert shown(task) == expected(20)
        assert task.metrics.stores["s"].upgrade_total == 0


def test_a_damaged_store_is_restored_in_the_format_that_its_changelog_has_come_to(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    work(running_task(tmp_path, log), 6)
    (store_folder(tmp_path) / "data" / "CURRENT").write_bytes(b"junk")
    with closing(running_task(tmp_path, log)) as task:
        [report] = task.open()
        assert report.wiped
        assert shown(task) == expected(12)


@pytest.mark.parametrize("failpoint", [store_format.CAUGHT_UP, swap.SYNCED])
def test_a_disk_that_refuses_the_swap_leaves_the_old_store_and_its_task_at_work(
    tmp_path: Path, log: MemoryChangelog, failpoint: str
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)

    def refuse() -> None:
        raise StoreUnavailableError("no space left on the device")

    with closing(running_task(tmp_path, log)) as task:
        task.open()
        failpoints.arm(failpoint, refuse)
        task.run(6, commit=True)
        failpoints.disarm()
        assert task.store("s").get("key-10") == ValueAndTimestamp(10, -1)
        task.run(2, commit=True)
        assert {record.headers for record in log.read(STORE)} == {()}
    with closing(running_task(tmp_path, log)) as task:
        task.open()
        task.run(commit=True)
        assert shown(task) == expected(20)
    assert names_beside(tmp_path) == []


@pytest.mark.parametrize("failpoint", [swap.DECIDED, swap.RENAMED, swap.PLACED, swap.CLEARED])
def test_a_swap_that_was_decided_is_completed_after_an_error(
    tmp_path: Path, log: MemoryChangelog, failpoint: str
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    left = [1]

    def refuse() -> None:
        if left:
            left.pop()
            raise StoreUnavailableError("input/output error")

    with closing(running_task(tmp_path, log)) as task:
        task.open()
        failpoints.arm(failpoint, refuse)
        task.run(6, commit=True)
        assert shown(task) == expected(12)
        task.run(commit=True)
        assert shown(task) == expected(20)
    assert names_beside(tmp_path) == []


def test_a_task_that_can_open_neither_store_fails_and_its_next_opening_completes_the_swap(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)

    def refuse() -> None:
        raise StoreUnavailableError("input/output error")

    task = running_task(tmp_path, log)
    task.open()
    failpoints.arm(swap.RENAMED, refuse)
    with pytest.raises(StoreUnavailableError):
        task.run(6, commit=True)
    with pytest.raises(StoreError):
        task.process(INPUT, next(iter(log.read(INPUT, 12))))
    failpoints.disarm()
    task.close(clean=False)
    with closing(task):
        [report] = task.open()
        assert (report.wiped, report.records) == (False, 0)
        assert shown(task) == expected(12)
