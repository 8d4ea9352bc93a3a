"""A task of a stream thread: errors that pass are waited for, others end it, and a release interrupts a restore."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stores.errors import (
    ChangelogTimeoutError,
    CommitInDoubtError,
    ProducerFencedError,
    StoreCorruptedError,
    StoreError,
    StoreLockedError,
)
from stores.tasks import RestoreProgress, TaskId
from stores.worker import running_task
from stores.worker.running_task import RunningTask

TASK = TaskId(0, 1)


class ScriptedTask:
    """Raises or returns what the script has, call by call."""

    def __init__(self, script: list[tuple[str, Any]]) -> None:
        self.script, self.calls = script, list[str]()
        self.metrics = SimpleNamespace(process_total=7)

    def _next(self, call: str) -> Any:
        self.calls.append(call)
        expected, answer = self.script.pop(0)
        assert expected == call
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def open(self) -> None:
        self._next("open")

    def run(self, max_records: int) -> int:
        answer = self._next("run")
        assert type(answer) is int
        return answer

    def close(self, clean: bool = True) -> None:
        self._next("close" if clean else "close unclean")

    def input_offsets(self) -> dict[object, int]:
        return {}


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    script: list[tuple[str, Any]],
    timeout_s: float = 60.0,
    released: Callable[[TaskId], bool] = lambda task_id: False,
) -> tuple[RunningTask, ScriptedTask]:
    monkeypatch.setattr(running_task, "PAUSE_S", 0.0)
    task = ScriptedTask(script)
    return RunningTask(TASK, lambda task_id, on_restore: task, timeout_s, released), task  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("error", [ChangelogTimeoutError("t"), CommitInDoubtError("d")])
def test_an_error_that_passes_is_tried_again_in_the_open_task(
    monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    running, task = scripted(monkeypatch, [("open", None), ("run", error), ("run", 3), ("run", 0)])
    assert [running.step() for _ in range(3)] == [False, True, False]
    assert not task.script
    assert running.status.running
    assert running.status.process_total == 7


def test_a_fenced_task_is_opened_again_as_long_as_it_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    running, task = scripted(
        monkeypatch, [("open", None), ("run", ProducerFencedError("f")), ("open", None), ("run", 1)]
    )
    assert [running.step() for _ in range(2)] == [False, True]
    assert not task.script


def test_a_folder_that_another_process_still_has_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [("open", StoreLockedError("l")), ("open", StoreLockedError("l")), ("open", None), ("run", 1)]
    running, task = scripted(monkeypatch, script)
    assert [running.step() for _ in range(3)] == [False, False, True]
    assert not task.script


def test_an_error_that_does_not_pass_in_time_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    running, _ = scripted(monkeypatch, [("open", None), ("run", ChangelogTimeoutError("t"))], timeout_s=0.0)
    with pytest.raises(ChangelogTimeoutError):
        running.step()


def test_the_time_without_progress_begins_again_after_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(running_task, "time", SimpleNamespace(monotonic=lambda: clock.now))
    script = [("open", None), ("run", ChangelogTimeoutError("t")), ("run", 1), ("run", ChangelogTimeoutError("t"))]
    running, task = scripted(monkeypatch, script, timeout_s=10.0)
    for now, worked in ((0.0, False), (9.0, True), (18.0, False)):
        clock.now = now
        assert running.step() is worked
    assert not task.script


@pytest.mark.parametrize("error", [StoreCorruptedError("c"), StoreLockedError("l"), ZeroDivisionError()])
def test_other_errors_are_raised_immediately(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    running, _ = scripted(monkeypatch, [("open", None), ("run", error)])
    with pytest.raises(type(error)):
        running.step()


def test_a_release_commits_and_a_commit_that_fails_is_left_to_the_next_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [("open", None), ("run", 1), ("close", ChangelogTimeoutError("t")), ("close unclean", None)]
    running, task = scripted(monkeypatch, script)
    running.step()
    running.release(clean=True)
    assert not task.script


def test_partitions_that_are_lost_are_released_without_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    running, task = scripted(monkeypatch, [("open", None), ("run", 1), ("close unclean", None)])
    running.step()
    running.release(clean=False)
    assert not task.script


def test_a_release_interrupts_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = iter([False, True])

    def restore() -> None:
        for offset in (5, 10, 15):
            running._on_restore(RestoreProgress("s", offset, 20, 5, 50, 0.1))

    running, task = scripted(
        monkeypatch, [("open", restore), ("close unclean", None)], released=lambda _: next(waiting)
    )
    assert running.step()
    assert running.status.restored == 0.5
    running.release(clean=True)
    assert not task.script
