"""A worker in this process: its threads share its tasks, and a registry of metrics has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.telemetry import MetricsRegistry
from stores.telemetry.registry import INSTRUMENTS
from stores.tests.worker.counting_app import PARTITIONS, app
from stores.worker import Worker
from stores.worker.running_task import RunningTask

DEADLINE_S = 60.0
ALL = [TaskId(0, number) for number in range(PARTITIONS)]


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(folder: Path, settings: Mapping[str, str], metrics: MetricsRegistry | None = None) -> Iterator[Worker]:
    """Run a worker on a thread, and yield it when it runs all tasks."""
    embedded = {"changelog.file": str(folder / "log"), "state.dir": str(folder / "state"), "status.interval.ms": "0"}
    worker = Worker(app, {**embedded, **settings}, metrics=metrics)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        await_true(lambda: worker.status().running == PARTITIONS)
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(("threads", "shares"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2])])
def test_the_tasks_are_shared_evenly_by_the_threads(tmp_path: Path, threads: int, shares: list[int]) -> None:
    with running(tmp_path, {"num.stream.threads": str(threads)}) as worker:
        assert sorted(len(thread.assigned) for thread in worker._threads) == shares
        assert sorted(task_id for thread in worker._threads for task_id in thread.assigned) == ALL
        for task_id in ALL:
            task = worker.open_task(task_id)
            assert task is not None
            assert task.task_id == task_id
        assert worker.open_task(TaskId(0, PARTITIONS)) is None


def test_lost_tasks_are_released_without_a_commit_and_revoked_ones_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[tuple[TaskId, bool]] = []
    release = RunningTask.release

    def noted(self: RunningTask, *, clean: bool) -> None:
        released.append((self.task_id, clean))
        release(self, clean=clean)

    monkeypatch.setattr(RunningTask, "release", noted)
    with running(tmp_path, {}) as worker:
        worker.lose([TopicPartition("words", 0)])
        worker.revoke([TopicPartition("words", 1)])
        assert released == [(ALL[0], False), (ALL[1], True)]
    assert sorted(released) == [(ALL[0], False), *((task_id, True) for task_id in ALL[1:])]


def test_a_worker_may_keep_copies_of_the_tasks_that_it_has_released(tmp_path: Path) -> None:
    with running(tmp_path, {"num.standby.replicas": "1"}) as worker:
        assert worker._standbys is not None
        assert worker._standbys._claimed == set(ALL)
        worker.revoke([TopicPartition("words", 0)])
        worker.lose([TopicPartition("words", 2)])
        assert worker._standbys._claimed == {ALL[1], ALL[3]}


def test_a_registry_of_metrics_has_the_tasks_of_the_worker(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    [total] = [each for each in INSTRUMENTS if (each.scope, each.name) == ("task", "process_total")]
    with running(tmp_path, {}, registry):
        found = [(labels["application"], labels["task"]) for labels, _ in registry.collect(total)]
        assert sorted(found) == [("counting", str(task_id)) for task_id in ALL]
