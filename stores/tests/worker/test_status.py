"""The status line of a worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stores.changelog.memory import MemoryChangelog
from stores.interface import TopicPartition
from stores.tasks import TaskId
from stores.worker import status as status_module
from stores.worker.running_task import TaskStatus
from stores.worker.standbys import StandbyStatus
from stores.worker.status import NO_TASKS, NOT_READY, StatusLine, WorkerStatus

ID, OTHER = TaskId(0, 1), TaskId(0, 2)


def test_the_status_of_a_worker_without_tasks_names_their_owners_and_no_lag() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0).line()
    assert NO_TASKS in line
    assert "lag" not in line


def test_the_line_names_the_address_of_the_queries() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0, "127.0.0.1:7070").line()
    assert line.startswith("counting: queries at 127.0.0.1:7070, ")


@pytest.mark.parametrize(("lag", "shown"), [(None, "unknown"), (12_345, "12,345"), (0, "0")])
@pytest.mark.parametrize("ready", [False, True])
def test_a_worker_that_reads_its_global_stores_says_so(lag: int | None, shown: str, ready: bool) -> None:
    """It is in no group yet: neither other workers nor the brokers are the reason."""
    status = WorkerStatus(global_stores=1, global_lag=lag, global_ready=ready)
    line = StatusLine("counting", lambda: status, MemoryChangelog(), 0).line()
    assert line == f"counting: {NO_TASKS if ready else NOT_READY}; global stores: lag {shown}"


@pytest.mark.parametrize("tasks", [(), (TaskStatus(ID, running=True),)])
@pytest.mark.parametrize(("lags", "shown"), [((3, 4000), "lag 4,003"), ((0,), "lag 0"), ((None, 3), "lag unknown")])
def test_standby_copies_are_shown_with_their_lag(
    tasks: tuple[TaskStatus, ...], lags: tuple[int | None, ...], shown: str
) -> None:
    status = WorkerStatus(tasks, tuple(StandbyStatus(ID, lag) for lag in lags))
    line = StatusLine("counting", lambda: status, MemoryChangelog(), 0).line()
    assert line.endswith(f"; {len(lags)} standby copies, {shown}")


def test_a_worker_without_standby_copies_does_not_mention_them() -> None:
    status = WorkerStatus((TaskStatus(ID, running=True),))
    assert "standby" not in StatusLine("counting", lambda: status, MemoryChangelog(), 0).line()


def test_the_rate_is_that_of_the_records_since_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(status_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    totals = {ID: 0, OTHER: 0}

    def status() -> WorkerStatus:
        return WorkerStatus(tuple(TaskStatus(task, running=True, process_total=totals[task]) for task in totals))

    line = StatusLine("counting", status, MemoryChangelog(), 0)
    # The last time, a task was closed and opened again.
    for seconds, first, second, rate in ((10, 50, 150, 20), (5, 60, 190, 10), (5, 60, 190, 0), (2, 60, 20, 0)):
        clock.now += seconds
        totals.update({ID: first, OTHER: second})
        assert f"2 tasks, {rate} records/s, " in line.line()


def test_the_lag_is_that_of_all_inputs_of_all_tasks() -> None:
    log = MemoryChangelog()
    log.create_topic("words", 3)
    partitions = [TopicPartition("words", number) for number in range(3)]
    with log.producer() as producer:
        for partition in partitions:
            producer.send_all(partition, [(None, b"w", -1)] * 5)
        producer.flush()
    tasks = (
        TaskStatus(ID, running=True, next_offsets=((partitions[0], 2), (partitions[1], 4))),
        TaskStatus(OTHER, running=True, next_offsets=((partitions[2], 5),)),
    )
    assert StatusLine("counting", lambda: WorkerStatus(tasks), log, 0).line().endswith(", lag 4")


def test_the_progress_of_restores_is_that_of_the_tasks_that_are_restored() -> None:
    tasks = (TaskStatus(ID, running=True), TaskStatus(OTHER, running=False, restored=0.5))
    line = StatusLine("counting", lambda: WorkerStatus(tasks), MemoryChangelog(), 0).line()
    assert "2 tasks, 1 restoring (50%), " in line
