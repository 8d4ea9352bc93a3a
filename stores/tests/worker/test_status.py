"""The status line of a worker."""

from __future__ import annotations

from stores.changelog.memory import MemoryChangelog
from stores.worker.status import NO_TASKS, StatusLine, WorkerStatus


def test_a_worker_without_tasks_says_who_has_them_and_claims_no_lag() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0).line()
    assert NO_TASKS in line
    assert "lag" not in line


def test_the_line_names_the_address_of_the_queries() -> None:
    line = StatusLine("counting", WorkerStatus, MemoryChangelog(), 0, "127.0.0.1:7070").line()
    assert line.startswith("counting: queries at 127.0.0.1:7070, ")
