"""The work on one task of a stream thread: opened when it is due, run in slices, and closed. For that thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stores.errors import (
    ChangelogTimeoutError,
    CommitInDoubtError,
    ProducerFencedError,
    StoreError,
    StoreLockedError,
)
from stores.interface import TopicPartition
from stores.tasks.identifier import TaskId
from stores.tasks.stores.log_follower import OnRestore, RestoreProgress
from stores.tasks.task import StreamTask

_log = logging.getLogger(__name__)

SLICE_S = 0.05
"""The time that a slice aims at: a task is released, and the next one runs, after about this."""
_SLICE_RECORDS_MAX = 10_000
PAUSE_S = 0.1
"""The pause before a task is tried again, after an error that may pass."""

MakeTask = Callable[[TaskId, OnRestore], StreamTask]


class ReleasedWhileRestoring(Exception):
    """Raised in a restore whose task is to be released."""


@dataclass(frozen=True)
class TaskStatus:
    """The state of one task, as other threads may see it."""

    task_id: TaskId
    running: bool
    """False while it is opened and restored."""
    process_total: int = 0
    restored: float = 0.0
    """The part of the current restore that is done, 0 to 1."""
    next_offsets: tuple[tuple[TopicPartition, int], ...] = ()


class RunningTask:
    """A task that a stream thread owns, for one ``assignment``, whose release also interrupts the opening."""

    def __init__(self, assignment: Assignment, make: MakeTask, timeout_s: float) -> None:
        """``timeout_s`` is the time without progress after which an error that may pass is raised."""
        self.assignment = assignment
        self.task_id = assignment.task_id
        self.status = TaskStatus(self.task_id, running=False)
        self._task = make(self.task_id, self._on_restore)
        self._timeout_s = timeout_s
        self._open = False
        self._due = 0.0
        self._fails_at: float | None = None
        self._slice = 1

    @property
    def task(self) -> StreamTask:
        """The task itself."""
        return self._task

    def step(self) -> bool:
        """Open the task, or process a slice of its input; return True if there was any work.

        Raises: the errors of ``open`` and ``run`` that do not pass by themselves, and those of the function.
        """
        if time.monotonic() < self._due:
            return False
        try:
            if not self._open:
                self._task.open()
                self._open = True
                _log.info("task %s runs", self.task_id)
            done = self._run()
        except ReleasedWhileRestoring:
            return True
        except (ChangelogTimeoutError, CommitInDoubtError) as error:
            self._try_later(error)
            return False
        except ProducerFencedError as error:
            # It has closed itself. If the group still has it here, it fences the other instance in its turn.
            self._open = False
            self._try_later(error)
            return False
        except StoreLockedError as error:
            if self._open:
                raise
            self._try_later(error)  # The process that had the task has not closed it yet.
            return False
        self._fails_at = None
        self._note()
        return done > 0

    def release(self, *, clean: bool) -> None:
        """Close the task: with a commit if ``clean``. Work that can't be committed is left to the next instance."""
        if clean and self._open:
            try:
                self._task.close()
                return
            except StoreError as error:
                _log.warning("task %s is released without its last commit: %s", self.task_id, error)
        try:
            self._task.close(clean=False)
        except StoreError as error:
            _log.warning("task %s could not be closed in order: %s", self.task_id, error)

    def _run(self) -> int:
        began = time.monotonic()
        done = self._task.run(self._slice)
        took_s = time.monotonic() - began
        if took_s > 2 * SLICE_S:
            self._slice = max(1, int(done * SLICE_S / took_s))
        elif done >= self._slice and took_s < SLICE_S:
            self._slice = min(_SLICE_RECORDS_MAX, 2 * self._slice)
        return done

    def _note(self) -> None:
        self.status = TaskStatus(
            self.task_id,
            running=True,
            process_total=self._task.metrics.process_total,
            next_offsets=tuple(self._task.input_offsets().items()),
        )

    def _on_restore(self, progress: RestoreProgress) -> None:
        whole = max(progress.to_offset, 1)
        self.status = TaskStatus(self.task_id, running=False, restored=min(progress.offset / whole, 1.0))
        if self.assignment.released:
            raise ReleasedWhileRestoring

    def _try_later(self, error: StoreError) -> None:
        now = time.monotonic()
        if self._fails_at is None:
            self._fails_at = now + self._timeout_s
            _log.warning("task %s is tried again, for up to %g s: %s", self.task_id, self._timeout_s, error)
        if now >= self._fails_at:
            error.add_note(f"Task {self.task_id} has made no progress for {self._timeout_s:g} s.")
            raise error
        self._due = now + PAUSE_S


@dataclass(eq=False, slots=True)
class Assignment:
    """One assignment of a task to a thread, which ends with its release."""

    task_id: TaskId
    released: bool = False
    """True once the thread is to close the task."""
    clean: bool = True
    """True if the task commits when it is closed. False once the task is lost."""


class TaskWork(Protocol):
    """The work of a thread on a task."""

    @property
    def assignment(self) -> Assignment:
        """The assignment for which it began."""


_Work = TypeVar("_Work", bound=TaskWork)


class AssignmentTable(Generic[_Work]):
    """The desired and the actual tasks of a thread. For one thread at a time.

    The group says which tasks the thread is to have; the thread closes and opens tasks until it works on these. A task
    may be released and assigned again while the thread is still busy with it. So each assignment is an object of its
    own, and the work of a released assignment is closed before that of the next one begins.
    """

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
