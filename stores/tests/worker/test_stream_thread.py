"""A stream thread: the state of its tasks as others see it, and its end, also with tasks that can't be closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stores.tasks import TaskId
from stores.worker.stream_thread import StreamThread

FIRST, SECOND, THIRD, ELSEWHERE = (TaskId(0, number) for number in range(4))
DEADLINE_S = 600.0


class Tasks:
    """Tasks that note how they are closed, and do in ``run`` and ``close`` what a test has for them."""

    def __init__(self) -> None:
        self.closed: list[tuple[TaskId, bool]] = []
        self.runs: dict[TaskId, Callable[[], int]] = {}
        self.closes: dict[TaskId, Callable[[], None]] = {}

    def make(self, task_id: TaskId, on_restore: object) -> Any:
        def close(clean: bool = True) -> None:
            self.closed.append((task_id, clean))
            self.closes.get(task_id, lambda: None)()

        return SimpleNamespace(
            open=lambda copy: None,
            run=lambda records_max, **_: self.runs.get(task_id, lambda: 0)(),
            close=close,
            input_offsets=dict,
            metrics=SimpleNamespace(process_total=7),
        )


def failing() -> Any:
    raise ZeroDivisionError


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
def thread(tasks: Tasks) -> Iterator[StreamThread]:
    thread = StreamThread(1, tasks.make, 60.0)
    thread.start()
    yield thread
    thread.stop()
    assert thread.join(DEADLINE_S)


def is_running(thread: StreamThread, *task_ids: TaskId) -> bool:
    return all(status is not None and status.running for status in map(thread.task_status, task_ids))


def test_the_state_of_a_task_is_found_by_its_id(thread: StreamThread) -> None:
    assert thread.task_status(FIRST) is None
    thread.assign([FIRST, SECOND])
    await_true(lambda: is_running(thread, FIRST, SECOND))
    status, running = thread.task_status(SECOND), thread.task(SECOND)
    assert status is not None
    assert running is not None
    assert (status.task_id, status.process_total, running.task_id) == (SECOND, 7, SECOND)
    assert (thread.task_status(ELSEWHERE), thread.task(ELSEWHERE)) == (None, None)
    thread.release([SECOND], clean=True)
    assert thread.await_released([SECOND], DEADLINE_S)
    assert (thread.task_status(SECOND), thread.task(SECOND)) == (None, None)
    assert is_running(thread, FIRST)


def test_an_error_of_one_task_closes_all_others_even_if_one_of_them_can_not_be_closed(
    thread: StreamThread, tasks: Tasks
) -> None:
    tasks.closes[FIRST] = failing
    thread.assign([FIRST, SECOND, THIRD])
    await_true(lambda: is_running(thread, FIRST, SECOND, THIRD))
    tasks.runs[THIRD] = failing
    await_true(lambda: thread.failure is not None and thread.join(0))
    assert isinstance(thread.failure, ZeroDivisionError)
    assert tasks.closed == [(THIRD, False), (FIRST, True), (SECOND, True)]
    thread.release([FIRST], clean=True)
    assert thread.await_released([FIRST], 0)
    assert thread.status() == []


def test_a_lost_task_is_closed_without_a_commit_also_if_the_worker_ends_meanwhile(
    thread: StreamThread, tasks: Tasks
) -> None:
    in_function, may_end = threading.Event(), threading.Event()

    def slow() -> int:
        in_function.set()
        assert may_end.wait(DEADLINE_S)
        return 0

    tasks.runs[FIRST] = slow
    thread.assign([FIRST, SECOND])
    assert in_function.wait(DEADLINE_S)
    thread.release([FIRST], clean=False)
    thread.stop()
    may_end.set()
    assert thread.join(DEADLINE_S)
    assert tasks.closed[0] == (FIRST, False)
    assert thread.failure is None


@pytest.mark.parametrize("clean", [True, False])
def test_a_task_that_comes_back_while_its_function_still_runs_is_closed_and_begins_again(
    thread: StreamThread, tasks: Tasks, clean: bool
) -> None:
    in_function, may_end = threading.Event(), threading.Event()

    def slow() -> int:
        in_function.set()
        assert may_end.wait(DEADLINE_S)
        return 0

    tasks.runs[FIRST] = slow
    thread.assign([FIRST])
    assert in_function.wait(DEADLINE_S)
    before = thread.task(FIRST)
    thread.release([FIRST], clean=clean)
    assert not thread.await_released([FIRST], 0)
    assert thread.await_released([SECOND], 0)
    thread.assign([FIRST])
    may_end.set()
    await_true(lambda: thread.task(FIRST) is not None and thread.task(FIRST) is not before)
    await_true(lambda: is_running(thread, FIRST))
    assert thread.assigned == [FIRST]
    assert tasks.closed == [(FIRST, clean)]


def test_a_task_that_comes_after_the_order_to_stop_does_not_keep_the_thread(thread: StreamThread) -> None:
    thread.assign([FIRST])
    await_true(lambda: is_running(thread, FIRST))
    thread.stop()
    thread.assign([SECOND])
    assert thread.join(DEADLINE_S)
    assert thread.assigned == []
