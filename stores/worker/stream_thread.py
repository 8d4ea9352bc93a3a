"""The threads of a worker: stream threads run tasks, and one thread follows the topics of the global stores."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress

from stores.errors import ChangelogTimeoutError, StoreError
from stores.interface import TopicPartition
from stores.tasks.global_stores import GlobalStores
from stores.tasks.identifier import TaskId
from stores.telemetry import MetricsRegistry
from stores.worker.running_task import Assignment, HandedCopies, MakeTask, RunningTask, TaskStatus

_log = logging.getLogger(__name__)

_IDLE_S = 0.02
"""The pause after a turn in which no task had work."""


FOLLOW_S = 0.1
"""The time between two looks for new records, once the stores have all. Source: Kafka Streams, ``poll.ms``."""


class StreamThread:
    """A thread that opens the tasks that it is given, runs them in turn, and releases them on request.

    The group says which tasks the thread is to have; the thread closes and opens tasks until it works on these. A task
    may be released and assigned again while the thread is still busy with it. So each assignment is an object of its
    own, and the work of a released assignment is closed before that of the next one begins.

    All methods are for the worker's own thread, which never runs a task. If a task fails, the thread commits and closes
    its other tasks, and ends: ``failure`` returns the error.
    """

    def __init__(self, number: int, make: MakeTask, task_timeout_s: float, copies: HandedCopies | None = None) -> None:
        self.failure: BaseException | None = None
        self._make, self._task_timeout_s, self._copies = make, task_timeout_s, copies
        self._change = threading.Condition()
        """For the next two."""
        self._desired: dict[TaskId, Assignment] = {}
        """The assignments that are not released, in the order in which they came."""
        self._actual: dict[TaskId, RunningTask] = {}
        """The tasks that the thread works on."""
        self._at_end: list[RunningTask] = []
        """The tasks at the end of the thread, for as long as the thread: a registry of metrics has weak references."""
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"stream-thread-{number}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def assigned(self) -> list[TaskId]:
        """The tasks that the thread has, opened or not. A task that was released is one of them until it is closed."""
        with self._change:
            return list({**self._desired, **self._actual})

    def assign(self, task_ids: Collection[TaskId]) -> None:
        """Give tasks to the thread, which opens one at a time, between records. No effect after ``stop``."""
        with self._change:
            if not self._stopping:
                for task_id in task_ids:
                    self._desired.setdefault(task_id, Assignment(task_id))
            self._change.notify_all()

    def release(self, task_ids: Collection[TaskId], *, clean: bool) -> None:
        """Tell the thread to release those of these tasks that it has: with a commit if ``clean``.

        A task that is lost before it is closed never commits.
        """
        with self._change:
            for task_id in task_ids:
                assignment = self._desired.pop(task_id, None)
                if assignment is not None:
                    assignment.released, assignment.clean = True, clean
                if not clean and task_id in self._actual:
                    self._actual[task_id].assignment.clean = False
            self._change.notify_all()

    def await_released(self, task_ids: Collection[TaskId], timeout_s: float) -> bool:
        """Wait until those of these tasks that were released are closed; return False if that takes too long."""

        def are_released() -> bool:
            return self._ended or not any(running.task_id in task_ids for running in self._released())

        with self._change:
            return self._change.wait_for(are_released, timeout_s)

    def stop(self) -> None:
        """Let the thread end when it has released its tasks."""
        with self._change:
            self._at_end += self._actual.values()
            self.release(list(self._desired), clean=True)
            self._stopping = True

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if that takes too long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> list[TaskStatus]:
        """Return the state of each task that the thread has. For any thread."""
        with self._change:
            return [self._status(task_id) for task_id in self.assigned]

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task, None if the thread does not have it. For any thread."""
        with self._change:
            return self._status(task_id) if task_id in self.assigned else None

    def task(self, task_id: TaskId) -> RunningTask | None:
        """Return a task that the thread works on, None if there is none. For any thread."""
        with self._change:
            return self._actual.get(task_id)

    def tasks(self) -> Mapping[TaskId, RunningTask]:
        """Return the tasks that the thread works on."""
        with self._change:
            return dict(self._actual)

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
            self._finish()

    def _finish(self) -> None:
        """Close all tasks, and take no more."""
        self.stop()
        for running in self.tasks().values():
            try:
                self._close(running)
            except Exception as error:
                # The first error is that of the worker. This one must not keep the other tasks open.
                _log.warning("task %s could not be closed in order: %s", running.task_id, type(error).__name__)
        with self._change:
            self._ended = True
            self._change.notify_all()

    def _turn(self) -> bool:
        """Close what is released, and give each task a step; return False at the thread's end."""
        with self._change:
            if self._is_done():
                return False
            released, assignments = self._released(), list(self._desired.values())
        for running in released:
            self._close(running)
        worked = bool(released)
        for assignment in assignments:
            if not assignment.released:
                worked |= self._step(assignment)
        if not worked:
            with self._change:
                if not self._released() and not self._is_done():
                    self._change.wait(_IDLE_S)
        return True

    def _is_done(self) -> bool:
        return self._stopping and not self._desired and not self._actual

    def _released(self) -> list[RunningTask]:
        """Return the tasks to close."""
        return [running for running in self._actual.values() if running.assignment.released]

    def _step(self, assignment: Assignment) -> bool:
        running = self.task(assignment.task_id)
        if running is None:
            running = RunningTask(assignment, self._make, self._task_timeout_s, self._copies)
            with self._change:
                self._actual[assignment.task_id] = running
        try:
            return running.step()
        except BaseException:
            # It has failed: what it has done is not committed.
            self.release([assignment.task_id], clean=False)
            self._close(running)
            raise

    def _close(self, running: RunningTask) -> None:
        try:
            running.release(clean=running.assignment.clean)
        finally:
            with self._change:
                # Only its own work is forgotten: the task may be assigned again.
                if self._actual.get(running.task_id) is running:
                    del self._actual[running.task_id]
                self._change.notify_all()

    def _status(self, task_id: TaskId) -> TaskStatus:
        running = self._actual.get(task_id)
        return TaskStatus(task_id, running=False) if running is None else running.status


class GlobalThread:
    """The thread that opens ``stores``, brings them to the ends of their topics, and follows these.

    ``metrics`` gets the stores once they are open. If the changelog does not answer in time, they stay as they are, and
    the thread tries again. All methods are for the worker's own thread, ``lag`` and ``failure`` for any. Source: Kafka
    Streams, ``GlobalStreamThread``.
    """

    def __init__(self, stores: GlobalStores, metrics: MetricsRegistry | None = None) -> None:
        self.failure: BaseException | None = None
        """The error that has ended the thread."""
        self.lag: int | None = None
        """The number of offsets that the stores lacked at the last look; None while they are not open."""
        self._stores, self._metrics = stores, metrics
        self._told = ""
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="global-thread", daemon=True)
        self._thread.start()

    def await_ready(self, wait_s: float) -> bool:
        """Wait until the stores have the ends that their topics had at first, or the thread has ended.

        Return False if that takes longer.
        """
        return self._ready.wait(wait_s)

    def stop(self) -> None:
        """Let the thread close the stores, and end. No task may read them any more."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if that takes too long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._open()
            self._ready.set()
            while not self._stopping.is_set():
                self._follow()
        except _StoppingError:
            pass
        except BaseException as error:
            _log.error("the thread of the global stores ends after %s", type(error).__name__)
            self.failure = error
            self._ready.set()
            self._stopping.wait()  # The tasks read the stores until then.
        finally:
            self._ready.set()
            self._close()

    def _close(self) -> None:
        try:
            self._stores.close()
        except BaseException as error:
            self.failure = self.failure or error

    def _open(self) -> None:
        while True:
            try:
                self._stores.open(self._progress)
                break
            except ChangelogTimeoutError as error:
                self._try_later(error)
        self.lag, self._told = 0, ""
        if self._metrics is not None:
            for copy in self._stores.opened():  # Another process may have copies of its own.
                self._metrics.add(copy, {"path": str(copy.path)})

    def _progress(self, left: int) -> None:
        self.lag = left
        if self._stopping.is_set():
            raise _StoppingError

    def _follow(self) -> None:
        try:
            while self._stores.follow():
                self._progress(self._stores.lag())
            self.lag, self._told = 0, ""
        except ChangelogTimeoutError as error:
            self._try_later(error)
        self._stopping.wait(FOLLOW_S)

    def _try_later(self, error: ChangelogTimeoutError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("the global stores do not follow their topics, and try again: %s", error)
        if self._stopping.wait(FOLLOW_S):
            raise _StoppingError


class _StoppingError(Exception):
    """Raised in the thread, which is to end."""
