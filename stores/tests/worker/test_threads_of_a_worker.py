"""A worker in this process: its threads share its tasks, and a registry of metrics has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.errors import ChangelogError
from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.telemetry import INSTRUMENTS, MetricsRegistry
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import EmbeddedPlace
from stores.tests.worker.worker_thread import ALL, counting, running
from stores.worker import Worker
from stores.worker.running_task import RunningTask


@pytest.mark.parametrize(("threads", "shares"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2])])
def test_the_tasks_are_shared_evenly_by_the_threads(tmp_path: Path, threads: int, shares: list[int]) -> None:
    with running(EmbeddedPlace(tmp_path), {"num.stream.threads": str(threads)}) as worker:
        assert sorted(len(thread.assigned) for thread in worker._threads) == shares
        assert sorted(task_id for thread in worker._threads for task_id in thread.assigned) == ALL
        for task_id in ALL:
            task = worker.open_task(task_id)
            assert task is not None
            assert task.task_id == task_id
        assert worker.open_task(TaskId(0, PARTITIONS)) is None


def test_a_worker_that_cannot_join_its_group_ends_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ChangelogError("the group has members of another application")

    place = EmbeddedPlace(tmp_path)
    monkeypatch.setattr(SqliteChangelog, "join_group", refuse)
    worker = Worker(counting(), {**place.properties(), "state.dir": str(tmp_path), "status.interval.ms": "0"})
    with pytest.raises(ChangelogError):
        worker.run()
    assert [thread._thread.is_alive() for thread in worker._threads] == [False]


def test_lost_tasks_are_released_without_a_commit_and_revoked_ones_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[tuple[TaskId, bool]] = []
    release = RunningTask.release

    def noted(self: RunningTask, *, clean: bool) -> None:
        released.append((self.task_id, clean))
        release(self, clean=clean)

    monkeypatch.setattr(RunningTask, "release", noted)
    with running(EmbeddedPlace(tmp_path), {}) as worker:
        worker.lose([TopicPartition("words", 0)])
        worker.revoke([TopicPartition("words", 1)])
        assert released == [(ALL[0], False), (ALL[1], True)]
    assert sorted(released) == [(ALL[0], False), *((task_id, True) for task_id in ALL[1:])]


def test_a_worker_may_keep_copies_of_the_tasks_that_it_has_released(tmp_path: Path) -> None:
    with running(EmbeddedPlace(tmp_path), {"num.standby.replicas": "1"}) as worker:
        assert worker._standbys is not None
        assert worker._standbys._claimed == set(ALL)
        worker.revoke([TopicPartition("words", 0)])
        worker.lose([TopicPartition("words", 2)])
        assert worker._standbys._claimed == {ALL[1], ALL[3]}


def test_a_registry_of_metrics_has_the_tasks_of_the_worker(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    [total] = [each for each in INSTRUMENTS if (each.scope, each.name) == ("task", "process_total")]
    with running(EmbeddedPlace(tmp_path), {}, registry):
        labels_of_tasks = [(labels["application"], labels["task"]) for labels, _ in registry.collect(total)]
        assert sorted(labels_of_tasks) == [("counting", str(task_id)) for task_id in ALL]
