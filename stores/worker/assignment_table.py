"""The tasks of one stream thread: those that it is to have, and those that it works on.

The group says which tasks the thread is to have; the thread closes and opens tasks until it works on these. A task may
be released and assigned again while the thread is still busy with it. So each assignment is an object of its own, and
the work of a released assignment is closed before that of the next one begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stores.tasks.identifier import TaskId


@dataclass(eq=False, slots=True)
class Assignment:
    """One assignment of a task to a thread, which ends with its release."""

    task_id: TaskId
    released: bool = False
    """True once the thread is to close the task."""
    clean: bool = True
    """True if the task commits when it is closed. False once the task is lost."""


class Work(Protocol):
    """The work of a thread on a task."""

    @property
    def assignment(self) -> Assignment:
        """The assignment for which it began."""


_Work = TypeVar("_Work", bound=Work)


class AssignmentTable(Generic[_Work]):
    """The desired and the actual tasks of a thread. For one thread at a time."""

    def __init__(self) -> None:
        self._desired: dict[TaskId, Assignment] = {}
        """The assignments that are not released, in the order in which they came."""
        self._actual: dict[TaskId, _Work] = {}

    def assign(self, task_ids: Collection[TaskId]) -> None:
        """The thread is to have these tasks. A task that it is to have already stays as it is."""
        for task_id in task_ids:
            if task_id not in self._desired:
                self._desired[task_id] = Assignment(task_id)

    def release(self, task_ids: Collection[TaskId], *, clean: bool) -> None:
        """The thread is not to have these tasks any more. A task that is lost before it is closed never commits."""
        for task_id in task_ids:
            assignment = self._desired.pop(task_id, None)
            if assignment is not None:
                assignment.released, assignment.clean = True, clean
            if not clean and task_id in self._actual:
                self._actual[task_id].assignment.clean = False

    def release_all(self) -> None:
        """The thread is to have no task. A task that was lost stays without a commit."""
        self.release(list(self._desired), clean=True)

    def begin(self, work: _Work) -> None:
        """The thread works on a task from now on. Earlier work on it is over: see ``end``."""
        assert work.assignment.task_id not in self._actual
        self._actual[work.assignment.task_id] = work

    def end(self, work: _Work) -> None:
        """The thread has closed a task. Only its own work is forgotten: the task may be assigned again."""
        if self._actual.get(work.assignment.task_id) is work:
            del self._actual[work.assignment.task_id]

    def to_close(self) -> list[_Work]:
        """Return the work whose assignment is released."""
        return [work for work in self._actual.values() if work.assignment.released]

    def to_run(self) -> list[Assignment]:
        """Return the assignments to work on, in the order in which they came."""
        return list(self._desired.values())

    def work(self, task_id: TaskId) -> _Work | None:
        """Return the work on a task, None if there is none."""
        return self._actual.get(task_id)

    def works(self) -> dict[TaskId, _Work]:
        """Return all work."""
        return dict(self._actual)

    def is_released(self, task_ids: Collection[TaskId]) -> bool:
        """Return True if no released work on one of these tasks is left to close."""
        return not any(work.assignment.task_id in task_ids for work in self.to_close())

    @property
    def is_empty(self) -> bool:
        """True if the thread is to have no task, and works on none."""
        return not self._desired and not self._actual

    def __iter__(self) -> Iterator[TaskId]:
        """Return the tasks that the thread is to have or works on."""
        return iter({**self._desired, **self._actual})
