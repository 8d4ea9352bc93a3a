"""The work on one task of a stream thread: opened when it is due, run in slices, and closed. For that thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stores.errors import ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError, StoreError, StoreLockedError
from stores.interface import TopicPartition
from stores.tasks.identifier import TaskId
from stores.tasks.stores.log_follower import OnRestore, RestoreProgress
from stores.tasks.task import StreamTask
from stores.tasks.task_resources import OpenCopy

_log = logging.getLogger(__name__)

SLICE_S = 0.05
"""The time that a slice aims at: a task is released, and the next one runs, after about this."""
_SLICE_RECORDS_MAX = 10_000
PAUSE_S = 0.1
"""The pause before a task is tried again, after an error that may pass."""

MakeTask = Callable[[TaskId, OnRestore], StreamTask]


class HandedCopies(Protocol):
    """The standby copies of a worker's tasks, which the tasks replace. For any thread."""

    def take(self, task_id: TaskId) -> OpenCopy | None:
        """Return the open copy of a task that is about to be opened, once; None if there is none."""

    def replaced(self, task_id: TaskId) -> None:
        """Note that a task runs, or has failed to open: queries do not read its copy any more."""


class ReleasedWhileRestoring(Exception):
    """Raised in a restore whose task is to be released."""


@dataclass(eq=False, slots=True)
class Assignment:
    """One assignment of a task to a thread, which ends with its release."""

    task_id: TaskId
    released: bool = False
    """True once the thread is to close the task."""
    clean: bool = True
    """True if the task commits when it is closed. False once the task is lost."""


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

    def __init__(
        self, assignment: Assignment, make: MakeTask, timeout_s: float, copies: HandedCopies | None = None
    ) -> None:
        """``timeout_s`` is the time without progress after which an error that may pass is raised."""
        self.assignment = assignment
        self.task_id = assignment.task_id
        self.status = TaskStatus(self.task_id, running=False)
        self.task = make(self.task_id, self._on_restore)
        self._timeout_s, self._copies = timeout_s, copies
        self._open = False
        self._due = 0.0
        self._fails_at: float | None = None
        self._slice = 1

    def step(self) -> bool:
        """Open the task, or process a slice of its input; return True if there was any work.

        Raises: the errors of ``open`` and ``run`` that do not pass by themselves, and those of the function.
        """
        if time.monotonic() < self._due:
            return False
        try:
            if not self._open:
                self._open_task()
            num_records = self._run()
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
        return num_records > 0

    def release(self, *, clean: bool) -> None:
        """Close the task: with a commit if ``clean``. Work that can't be committed is left to the next instance."""
        if clean and self._open:
            try:
                self.task.close()
                return
            except StoreError as error:
                _log.warning("task %s is released without its last commit: %s", self.task_id, error)
        try:
            self.task.close(clean=False)
        except StoreError as error:
            _log.warning("task %s could not be closed in order: %s", self.task_id, error)

    def _open_task(self) -> None:
        """Open the task, with the stores of its standby copy if there is one, which answers queries until it runs."""
        copies = self._copies
        copy = None if copies is None else copies.take(self.task_id)
        if copy is not None:
            _log.info("task %s continues with the open stores of its standby copy", self.task_id)
        try:
            self.task.open(copy)
            self._open = True
            self._note()
        except BaseException:
            if copies is not None and copy is not None:
                copies.replaced(self.task_id)
            raise
        if copies is not None:
            copies.replaced(self.task_id)
        _log.info("task %s runs", self.task_id)

    def _run(self) -> int:
        began = time.monotonic()
        num_records = self.task.run(self._slice, only_arrived=True)
        took_s = time.monotonic() - began
        if took_s > 2 * SLICE_S:
            self._slice = max(1, int(num_records * SLICE_S / took_s))
        elif num_records >= self._slice and took_s < SLICE_S:
            self._slice = min(_SLICE_RECORDS_MAX, 2 * self._slice)
        return num_records

    def _note(self) -> None:
        self.status = TaskStatus(
            self.task_id,
            running=True,
            process_total=self.task.metrics.process_total,
            next_offsets=tuple(self.task.input_offsets().items()),
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
