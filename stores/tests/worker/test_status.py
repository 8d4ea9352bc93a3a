"""The status line of a worker."""

from __future__ import annotations

import pytest

from stores.changelog.memory import MemoryChangelog
from stores.tasks import TaskId
from stores.worker.running_task import TaskStatus
from stores.worker.standby_copy import StandbyStatus
from stores.worker.status import NO_TASKS, StatusLine, WorkerStatus

ID = TaskId(0, 1)


def test_a_worker_without_tasks_says_who_has_them_and_claims_no_lag() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0).line()
    assert NO_TASKS in line
    assert "lag" not in line


def test_the_line_names_the_address_of_the_queries() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0, "127.0.0.1:7070").line()
    assert line.startswith("counting: queries at 127.0.0.1:7070, ")


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
