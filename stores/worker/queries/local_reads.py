"""Reads of the stores of this worker's tasks, from a state that has reached a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from stores.errors import NotUpToBoundError, StoreClosedError, StoreError
from stores.interface import IsolationLevel, Position, PositionBound
from stores.tasks.identifier import TaskId
from stores.tasks.task import StreamTask
from stores.worker.queries.parameters import Refused, unavailable
from stores.worker.queries.query_request import QueryRequest, shown_position
from stores.worker.running_task import TaskStatus

Answer = TypeVar("Answer")

WAITING_MAX = 4
"""The most queries that wait for a position at the same time. Each has a thread of the server meanwhile."""
_POLL_S = 0.01


class LocalTasks(Protocol):
    """The tasks of this worker, for any thread."""

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task that this worker has, None if it does not have it."""

    def open_task(self, task_id: TaskId) -> StreamTask | None:
        """Return a task that a thread of this worker works on, None if there is none yet or no more."""

    def global_view(self, name: str, bound: PositionBound) -> Any:
        """Return a view of a global store. Raises: StoreClosedError if it is not open yet, or no more."""


class LocalReads:
    """Reads of the stores that are here. For any thread.

    Raises, all methods: Refused; StoreRestoringError, StoreClosedError and ProducerFencedError while the task moves or
    rolls back; StoreError.
    """

    def __init__(self, tasks: LocalTasks) -> None:
        self._tasks = tasks
        self._ending = threading.Event()
        self._waiting = threading.Semaphore(WAITING_MAX)

    def end(self) -> None:
        """Refuse the queries that wait for a position."""
        self._ending.set()

    def status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task that is here, None if it is elsewhere."""
        return self._tasks.task_status(task_id)

    def read(self, request: QueryRequest, status: TaskStatus, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        """Return the result of ``read``, called with a view of the store, and the position that it reflects.

        The task is here, in the state ``status``. At READ_COMMITTED both are of one commit. At READ_UNCOMMITTED the
        result reflects the position at least.
        """
        task = self._tasks.open_task(status.task_id)
        if task is None or not status.running:
            raise unavailable(
                f"store {request.store.name!r} is being restored from its changelog ({status.restored:.0%} done): ask "
                "again later",
                partition=request.partition,
            )
        return self._read(request, task.store(request.store.name, request.level, request.bound), read)

    def read_global(self, request: QueryRequest, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        """Return the result of ``read``, called with a view of a global store, and the position that it reflects."""
        try:
            view = self._tasks.global_view(request.store.name, request.bound)
        except StoreClosedError:
            raise unavailable(f"global store {request.store.name!r} is being opened: ask again later") from None
        return self._read(request, view, read)

    def _read(self, request: QueryRequest, view: Any, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        try:
            return _at_one_moment(view, request.level, read)
        except NotUpToBoundError as error:
            if not request.wait_s:
                raise _behind(request, view, error) from None
        if not self._waiting.acquire(blocking=False):
            raise unavailable(f"{WAITING_MAX} queries wait for a position already: ask again later")
        try:
            return self._when_reached(request, view, read)
        finally:
            self._waiting.release()

    def _when_reached(self, request: QueryRequest, view: Any, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
        deadline = time.monotonic() + request.wait_s
        while not self._ending.wait(_POLL_S):
            try:
                return _at_one_moment(view, request.level, read)
            except NotUpToBoundError as error:
                if time.monotonic() >= deadline:
                    raise _behind(request, view, error) from None
        raise unavailable("this worker is ending: ask again later")


def _at_one_moment(view: Any, level: IsolationLevel, read: Callable[[Any], Answer]) -> tuple[Answer, Position]:
    if level is IsolationLevel.READ_COMMITTED:
        with _snapshot(view) as snapshot:
            # Before the read: a view without snapshots may then show more than the position.
            position = snapshot.position()
            return read(snapshot), position
    position = view.position()
    return read(view), position


def _snapshot(view: Any) -> AbstractContextManager[Any]:
    """Return a snapshot of a view. Of another package's store, which may have none, return the view."""
    try:
        snapshot: AbstractContextManager[Any] = view.snapshot()
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        return nullcontext(view)
    return snapshot


def _behind(request: QueryRequest, view: Any, error: NotUpToBoundError) -> Refused:
    part = "" if request.store.is_global else f"partition {request.partition} of "
    return Refused(
        409,
        f"{part}store {request.store.name!r} has not reached the position of 'bound' at "
        f"{request.level}: ask again later, or with wait_ms",
        position=shown_position(view.position()),
        bound=shown_position(request.bound.position),
        behind=shown_position(error.behind),
    )
