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
from stores.worker.running_task import Assignment, RunningTask

TASK = TaskId(0, 1)


class ScriptedTask:
    """Raises or returns what the script has, call by call."""

    def __init__(self, script: list[tuple[str, Any]]) -> None:
        self.script, self.calls, self.slices = script, list[str](), list[int]()
        self.copies: list[object] = []
        self.slice = 0
        self.metrics = SimpleNamespace(process_total=7)

    def _next(self, call: str) -> Any:
        self.calls.append(call)
        expected, answer = self.script.pop(0)
        assert expected == call
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def open(self, copy: object = None) -> None:
        self.copies.append(copy)
        self._next("open")

    def run(self, max_records: int, *, only_arrived: bool) -> int:
        self.slice = max_records
        self.slices.append(max_records)
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
) -> tuple[RunningTask, ScriptedTask]:
    monkeypatch.setattr(running_task, "PAUSE_S", 0.0)
    task = ScriptedTask(script)
    return RunningTask(Assignment(TASK), lambda task_id, on_restore: task, timeout_s), task  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("error", [ChangelogTimeoutError("t"), CommitInDoubtError("d")])
def test_an_error_that_passes_is_tried_again_in_the_open_task(
    monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    running, task = scripted(monkeypatch, [("open", None), ("run", error), ("run", 3), ("run", 0)])
    assert [running.step() for _ in range(3)] == [False, True, False]
    assert not task.script
    assert running.status.running
    assert running.status.process_total == 7


class Copies:
    """The copy that a task takes, and the calls."""

    def __init__(self, copy: object) -> None:
        self.copy, self.calls = copy, list[str]()

    def take(self, task_id: TaskId) -> object:
        self.calls.append("take")
        copy, self.copy = self.copy, None
        return copy

    def replaced(self, task_id: TaskId) -> None:
        self.calls.append("replaced")


def with_copy(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[str, Any]], copy: object
) -> tuple[RunningTask, ScriptedTask, Copies]:
    monkeypatch.setattr(running_task, "PAUSE_S", 0.0)
    task, copies = ScriptedTask(script), Copies(copy)
    made: Any = lambda task_id, on_restore: task  # noqa: E731
    return RunningTask(Assignment(TASK), made, 60.0, copies), task, copies  # type: ignore[arg-type]


def test_a_task_opens_with_its_copy_which_answers_queries_until_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = object()

    def opened() -> None:
        assert copies.calls == ["take"]
        assert not running.status.running

    running, task, copies = with_copy(monkeypatch, [("open", opened), ("run", 0), ("run", 0)], copy)
    running.step()
    assert (task.copies, copies.calls, running.status.running) == ([copy], ["take", "replaced"], True)
    running.step()
    assert copies.calls == ["take", "replaced"]


def test_a_task_that_fails_to_open_does_not_answer_by_its_copy_and_opens_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [("open", ChangelogTimeoutError("t")), ("open", StoreLockedError("l")), ("open", None), ("run", 0)]
    running, task, copies = with_copy(monkeypatch, script, copy := object())
    running.step()
    assert copies.calls == ["take", "replaced"]
    # One that is handed over late is for the next try.
    running.step()
    assert copies.calls == ["take", "replaced", "take"]
    copies.copy = late = object()
    running.step()
    assert task.copies == [copy, None, late]
    assert copies.calls == ["take", "replaced", "take", "take", "replaced"]


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
    def restore() -> None:
        for offset in (5, 10, 15):
            running.assignment.released = offset >= 10
            running._on_restore(RestoreProgress("s", offset, 20, 5, 50, 0.1))

    running, task = scripted(monkeypatch, [("open", restore), ("close unclean", None)])
    assert running.step()
    assert running.status.restored == 0.5
    running.release(clean=True)
    assert not task.script


def test_a_slice_grows_while_it_is_short_and_shrinks_with_a_slow_function(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, each_s=0.0001)

    def process(records: int) -> Callable[[], int]:
        def answer() -> int:
            num_records = min(records, task.slice)
            clock.now += num_records * clock.each_s
            return num_records

        return answer

    monkeypatch.setattr(running_task, "time", SimpleNamespace(monotonic=lambda: clock.now))
    running, task = scripted(monkeypatch, [("open", None), *(("run", process(100_000)) for _ in range(17))])
    for _ in range(12):
        running.step()
    fast = task.slices[-1]
    assert 0.5 * running_task.SLICE_S <= fast * clock.each_s <= 2 * running_task.SLICE_S
    assert task.slices[0] == 1
    clock.each_s = 0.01
    for _ in range(3):
        running.step()
    slow = task.slices[-1]
    assert 0.5 * running_task.SLICE_S <= slow * clock.each_s <= 2 * running_task.SLICE_S
    clock.each_s = 3.0
    for _ in range(2):
        running.step()
    assert task.slices[-1] == 1


def test_a_slice_that_ends_early_as_there_is_no_more_input_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    running, task = scripted(monkeypatch, [("open", None), *[("run", 0)] * 5])
    for _ in range(5):
        running.step()
    assert task.slices == [1] * 5
