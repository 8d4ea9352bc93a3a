"""A stream thread: it opens the tasks that it is given, runs them in turn, and releases them on request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress

from stores.errors import StoreError
from stores.interface import TopicPartition
from stores.tasks.identifier import TaskId
from stores.worker.running_task import MakeTask, RunningTask, TaskStatus

_log = logging.getLogger(__name__)

_IDLE_S = 0.02
"""The pause after a turn in which no task had work."""


class StreamThread:
    """A thread with tasks. All methods are for the worker's own thread, which never runs a task.

    If a task fails, the thread commits and closes its other tasks, and ends: ``failure`` returns the error.
    """

    def __init__(self, number: int, make: MakeTask, task_timeout_s: float) -> None:
        self.failure: BaseException | None = None
        self._make, self._task_timeout_s = make, task_timeout_s
        self._change = threading.Condition()
        self._assigned: dict[TaskId, None] = {}
        """The tasks in the order in which they came."""
        self._to_release: dict[TaskId, bool] = {}
        """The tasks to release, and whether with a commit."""
        self._running: dict[TaskId, RunningTask] = {}
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"stream-thread-{number}", daemon=True)
        self._thread.start()

    @property
    def assigned(self) -> list[TaskId]:
        """The tasks that the thread has, opened or not."""
        with self._change:
            return list(self._assigned)

    def assign(self, task_ids: Collection[TaskId]) -> None:
        """Give tasks to the thread, which opens them by and by."""
        with self._change:
            self._assigned.update(dict.fromkeys(task_ids))
            self._change.notify_all()

    def release(self, task_ids: Collection[TaskId], *, clean: bool) -> None:
        """Tell the thread to release those of these tasks that it has: with a commit if ``clean``."""
        with self._change:
            for task_id in task_ids:
                if task_id in self._assigned:
                    self._to_release[task_id] = clean
            self._change.notify_all()

    def await_released(self, timeout_s: float) -> bool:
        """Wait until everything that was to be released is released; return False if that takes too long."""
        with self._change:
            return self._change.wait_for(lambda: self._ended or not self._to_release, timeout_s)

    def stop(self) -> None:
        """Let the thread end when it has released its tasks."""
        with self._change:
            for task_id in self._assigned:
                # A task that was lost stays without a commit.
                self._to_release.setdefault(task_id, True)
            self._stopping = True
            self._change.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if that takes too long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> list[TaskStatus]:
        """Return the state of each task that the thread has."""
        with self._change:
            return [self._status(task_id) for task_id in self._assigned]

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task, None if the thread does not have it. For any thread."""
        with self._change:
            return self._status(task_id) if task_id in self._assigned else None

    def task(self, task_id: TaskId) -> RunningTask | None:
        """Return a task that the thread works on, None if there is none. For any thread."""
        with self._change:
            return self._running.get(task_id)

    def tasks(self) -> Mapping[TaskId, RunningTask]:
        """Return the tasks that the thread works on."""
        with self._change:
            return dict(self._running)

    def changelog_offsets(self) -> dict[TaskId, Mapping[TopicPartition, int | None]]:
        """Return the changelog offsets of the tasks that process records."""
        offsets: dict[TaskId, Mapping[TopicPartition, int | None]] = {}
        for task_id, running in self.tasks().items():
            with suppress(StoreError):
                offsets[task_id] = running.task.changelog_offsets()
        return offsets

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            _log.error("a stream thread ends after %s", type(error).__name__)
            self.failure = error
        finally:
            with self._change:
                left = list(self._running.values())
            for running in left:
                try:
                    self._release(running, clean=True)
                except Exception as error:
                    # The first error is that of the worker. This one must not keep the other tasks open.
                    _log.warning("task %s could not be closed in order: %s", running.task_id, type(error).__name__)
            with self._change:
                self._ended = True
                self._assigned.clear()
                self._to_release.clear()
                self._change.notify_all()

    def _turn(self) -> bool:
        """Release what is to be released, and give each task a step; return False at the thread's end."""
        with self._change:
            releases = dict(self._to_release)
            assigned = [task_id for task_id in self._assigned if task_id not in releases]
            if self._stopping and not self._assigned:
                return False
        for task_id, clean in releases.items():
            self._release(self._running.get(task_id), clean=clean, task_id=task_id)
        worked = bool(releases)
        for task_id in assigned:
            if self._is_to_release(task_id):
                continue
            running = self._running.get(task_id)
            if running is None:
                running = RunningTask(task_id, self._make, self._task_timeout_s, self._is_to_release)
                with self._change:
                    self._running[task_id] = running
            try:
                worked |= running.step()
            except BaseException:
                self._release(running, clean=False)
                raise
        if not worked:
            with self._change:
                if not self._to_release and not (self._stopping and not self._assigned):
                    self._change.wait(_IDLE_S)
        return True

    def _status(self, task_id: TaskId) -> TaskStatus:
        running = self._running.get(task_id)
        return TaskStatus(task_id, running=False) if running is None else running.status

    def _is_to_release(self, task_id: TaskId) -> bool:
        return task_id in self._to_release

    def _release(self, running: RunningTask | None, *, clean: bool, task_id: TaskId | None = None) -> None:
        try:
            if running is not None:
                task_id = running.task_id
                running.release(clean=clean)
        finally:
            with self._change:
                if task_id is not None:
                    self._running.pop(task_id, None)
                    self._to_release.pop(task_id, None)
                    self._assigned.pop(task_id, None)
                self._change.notify_all()
