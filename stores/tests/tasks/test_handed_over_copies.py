"""A task continues with the open stores of its standby copy, on its own thread: nothing is closed, opened or repeated.

Source: Kafka Streams, KAFKA-10362 (stores of a standby task are recycled); KIP-535.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import ChangelogTimeoutError, StoreClosedError, StoreError, StoreLockedError, StoreUnavailableError
from stores.registry import backends
from stores.tasks import StreamTask
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task_resources import OpenCopy, StandbyTask
from stores.tasks.task_transaction import TaskTransaction
from stores.tests.tasks.followed import follow
from stores.tests.tasks.setup import DIRECT, INDEXED, INPUT, MEMORY, counting_task, expected_state, feed, state

KEYS = [number % 6 for number in range(20)]
MORE = [1, 7, 1]
HANDED = [name for name, each in backends().items() if each.persistent and each.transactional and each.manages_offsets]


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Any]]:
    """A thread of its own, as that of a worker's copies: call a function there."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result(timeout=600)


@pytest.fixture
def active(tmp_path: Path, log: MemoryChangelog) -> Iterator[StreamTask]:
    feed(log, KEYS)
    with counting_task(tmp_path / "active", log, commit_every_records=3) as task:
        task.run(commit=True)
        yield task


def opened(folder: Path, log: MemoryChangelog, left: str = INDEXED, right: str | None = None) -> StandbyTask:
    copy = counting_task(folder / "other", log, left, right).standby()
    copy.open()
    return copy


def handed(copy: StandbyTask) -> OpenCopy:
    stores = copy.hand_over()
    assert stores is not None
    return stores


def assert_free(folder: Path, log: MemoryChangelog) -> None:
    """Nobody has the folder of the copy, whose files have all that was committed."""
    with counting_task(folder / "other", log) as task:
        assert state(task, "left") == state(task, "right")
        assert [report.wiped for report in task.restore_reports()] == [False, False]


@pytest.mark.parametrize("backend", HANDED)
def test_a_task_continues_on_its_thread_with_the_open_stores_of_its_copy(
    tmp_path: Path, log: MemoryChangelog, active: StreamTask, elsewhere: Callable[..., Any], backend: str
) -> None:
    copy = elsewhere(opened, tmp_path, log, backend)
    elsewhere(follow, copy)
    snapshots = elsewhere(copy.snapshots)
    feed(log, MORE)
    active.run(commit=True)
    # The copy ends within a commit, and lacks the rest.
    assert elsewhere(copy.follow, 2) == 2
    stores = elsewhere(handed, copy)
    elsewhere(copy.close)
    active.close()
    with pytest.raises(StoreLockedError):
        counting_task(tmp_path / "other", log, backend).open()
    with pytest.raises(StoreLockedError):
        opened(tmp_path, log, backend)
    task = counting_task(tmp_path / "other", log, backend, commit_every_records=2)
    reports = task.open(stores)
    assert [(report.wiped, report.records) for report in reports] == [(False, 1), (False, 1)]
    # What queries read until the task runs: the last moment at which the copy was at the end.
    assert dict(snapshots["left"].all()) == dict(snapshots["right"].all()) == expected_state(KEYS)
    assert task.input_offsets() == {INPUT: len(KEYS + MORE)}
    feed(log, MORE)
    before = task.metrics.stores["left"].commit_total
    task.run(commit=True)
    assert task.metrics.stores["left"].commit_total > before
    assert dict(snapshots["left"].all()) == expected_state(KEYS)
    for store in ("left", "right"):
        assert state(task, store) == expected_state(KEYS + MORE + MORE)
        snapshots[store].close()
    task.close()
    with counting_task(tmp_path / "other", log, backend) as task:
        assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0), (False, 0)]
        assert state(task, "left") == state(task, "right") == expected_state(KEYS + MORE + MORE)


@pytest.mark.parametrize("right", [INDEXED, DIRECT])
@pytest.mark.usefixtures("active")
def test_a_copy_with_a_store_that_can_not_be_handed_over_stays_open(
    tmp_path: Path, log: MemoryChangelog, right: str
) -> None:
    copy = opened(tmp_path, log, DIRECT, right)
    assert copy.hand_over() is None
    follow(copy)
    copy.close()
    assert copy.hand_over() is None
    with counting_task(tmp_path / "other", log, DIRECT, right) as task:
        assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0), (False, 0)]


@pytest.mark.usefixtures("active")
def test_a_store_in_memory_is_restored_beside_the_handed_over_ones(tmp_path: Path, log: MemoryChangelog) -> None:
    copy = opened(tmp_path, log, INDEXED, MEMORY)
    follow(copy)
    task = counting_task(tmp_path / "other", log, INDEXED, MEMORY)
    reports = task.open(handed(copy))
    assert [report.records for report in reports] == [0, len(KEYS)]
    assert state(task, "left") == state(task, "right") == expected_state(KEYS)
    task.close()


@pytest.mark.usefixtures("active")
def test_stores_that_no_task_takes_are_closed(tmp_path: Path, log: MemoryChangelog) -> None:
    copy = opened(tmp_path, log)
    follow(copy)
    snapshots = copy.snapshots()
    with handed(copy):
        pass
    with pytest.raises(StoreClosedError):
        snapshots["left"].get(b"1")
    assert_free(tmp_path, log)


def _time_out(*arguments: object) -> NoReturn:
    raise ChangelogTimeoutError("no answer")


def _fail_at_right(store: TaskStore, copy: TaskStore) -> None:
    if store.name == "right":
        raise StoreUnavailableError("a fault")
    take_over(store, copy)


take_over = TaskStore._take_over


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [
        (MemoryChangelog, "topics", _time_out),
        (TaskTransaction, "open_producer", _time_out),
        (TaskStore, "_take_over", _fail_at_right),
    ],
)
@pytest.mark.usefixtures("active")
def test_an_opening_that_fails_closes_what_was_handed_over_and_the_next_one_opens_the_files(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failing: Any
) -> None:
    copy = opened(tmp_path, log)
    follow(copy)
    snapshots, stores = copy.snapshots(), handed(copy)
    task = counting_task(tmp_path / "other", log)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing)
        with pytest.raises(StoreError):
            task.open(stores)
    for snapshot in snapshots.values():
        with pytest.raises(StoreClosedError):
            snapshot.get(b"1")
    with task:
        assert [report.records for report in task.restore_reports()] == [0, 0]
    assert_free(tmp_path, log)


@pytest.mark.usefixtures("active")
def test_a_hand_over_that_fails_closes_the_copy(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = opened(tmp_path, log, INDEXED, MEMORY)
    follow(copy)
    close = TaskStore.close

    def failing(store: TaskStore) -> None:
        close(store)
        if store.name == "right":
            raise StoreUnavailableError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(TaskStore, "close", failing)
        with pytest.raises(StoreUnavailableError):
            copy.hand_over()
    copy.close()
    with counting_task(tmp_path / "other", log, INDEXED, MEMORY) as task:
        assert [report.records for report in task.restore_reports()] == [0, len(KEYS)]
