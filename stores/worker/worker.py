"""The worker of an application: it takes part in the group, and gives its tasks to its stream threads.

The thread that calls ``run`` never runs a task, so that long restores and slow functions do not keep the worker from
taking part in the group. The group shares the partitions of one topic for each sub-topology, the first of its inputs.
The owner of a partition runs the task, which reads the same partition of all its inputs.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stores.changelog.interface import Changelog
from stores.errors import ChangelogTimeoutError, ConfigError, StoreError
from stores.interface import TopicPartition
from stores.settings.properties import Properties
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import MemoryBudget
from stores.tasks.stores.restore import OnRestore
from stores.tasks.task import StreamTask
from stores.telemetry import MetricsRegistry
from stores.worker.definition import Definition
from stores.worker.local_copies import LocalCopies
from stores.worker.running_task import MakeTask, TaskStatus
from stores.worker.settings import WorkerSettings
from stores.worker.standbys import Standbys
from stores.worker.status import StatusLine, WorkerStatus
from stores.worker.stream_thread import StreamThread
from stores.worker.transaction_scope import TransactionScope

if TYPE_CHECKING:
    from stores.worker.queries.endpoint import QueryEndpoint

_log = logging.getLogger(__name__)

_POLL_S = 0.1
RELEASE_S = 300.0
"""The time to wait for the release of tasks in a rebalance. Source: Kafka, default of ``max.poll.interval.ms``."""


class TaskNotReleasedError(StoreError):
    """A function or a changelog did not answer while the worker was leaving. End the process."""


class Worker:
    """One worker of an application, with its own threads. ``run`` works until ``stop``, a signal or an error.

    ``properties`` are those of docs/worker.md. ``metrics`` is a registry that gets the tasks while they are here.

    Raises: ConfigError for properties that are unknown or do not fit.
    """

    def __init__(
        self, application: Definition, properties: Properties, *, metrics: MetricsRegistry | None = None
    ) -> None:
        if not isinstance(application, Definition):
            raise TypeError(f"a worker has an Application, not {type(application).__name__}")
        self.application = application
        self.settings = WorkerSettings.from_properties(application, properties)
        self._metrics = metrics
        self._instance = self.settings.instance_id or uuid4().hex
        """The name of this worker in transactional IDs: unique among those that run at the same time."""
        self._stopped = threading.Event()
        self._threads: list[StreamThread] = []
        self._standbys: Standbys | None = None
        self._leading: dict[str, list[int]] = {}
        self._ended = False

    def run(self) -> None:
        """Work until ``stop``, SIGTERM or SIGINT; then commit, close all tasks and leave the group.

        A second signal ends the process immediately: what was not committed is done again by the next instance. Signals
        are only handled if this is called on the main thread.

        Raises: ChangelogError if an input topic is missing or has too few partitions, or another application uses the
        group; the error of a task, after the other tasks have committed.
        """
        with _Signals(self.stop), ExitStack() as held:
            changelog = self.settings.open_changelog()
            held.callback(changelog.close)
            self._leading = self._prepare(changelog)
            try:
                self._work(changelog)
            except TaskNotReleasedError:
                held.pop_all()  # The task's thread still uses the changelog.
                raise

    def stop(self) -> None:
        """Let ``run`` end. For any thread, and for signal handlers."""
        self._stopped.set()

    def status(self) -> WorkerStatus:
        """Return the state of the worker's tasks. For any thread."""
        standbys = () if self._standbys is None else tuple(self._standbys.status())
        return WorkerStatus(tuple(status for thread in self._threads for status in thread.status()), standbys)

    def task_status(self, task_id: TaskId) -> TaskStatus | None:
        """Return the state of a task that this worker has, None if it does not have it. For any thread."""
        statuses = (thread.task_status(task_id) for thread in self._threads)
        return next((status for status in statuses if status is not None), None)

    def open_task(self, task_id: TaskId) -> StreamTask | None:
        """Return a task that a thread works on, None if there is none yet or no more. For any thread."""
        for thread in self._threads:
            running = thread.task(task_id)
            if running is not None:
                return running.task
        return None

    # What follows is called by the group's membership, on the thread that calls ``run``.

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        task_ids = self._tasks_of(partitions)
        if self._standbys is not None:
            self._standbys.claim(task_ids)
        for task_id in task_ids:
            thread = min(self._threads, key=lambda each: len(each.assigned))
            thread.assign([task_id])

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._release(partitions, clean=True)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        self._release(partitions, clean=False)

    def _release(self, partitions: Collection[TopicPartition], *, clean: bool) -> None:
        if self._ended:
            return
        task_ids = self._tasks_of(partitions)
        for thread in self._threads:
            thread.release(task_ids, clean=clean)
        for thread in self._threads:
            if not thread.await_released(RELEASE_S):
                _log.warning("tasks are not released in time: their next instances fence them")
        if self._standbys is not None:
            self._standbys.unclaim(task_ids)

    def _tasks_of(self, partitions: Iterable[TopicPartition]) -> list[TaskId]:
        return sorted(
            TaskId(number, partition) for topic, partition in partitions for number in self._leading.get(topic, ())
        )

    def _prepare(self, changelog: Changelog) -> dict[str, list[int]]:
        """Check inputs and group, then create missing topics; return the sub-topologies by their leading topic."""
        existing = changelog.topics()
        topics = {**self.application.topics, **existing}
        leading: dict[str, list[int]] = {}
        for number, processor in self.application.processors.items():
            inputs = processor.subtopology.inputs
            for topic in inputs:
                _check_topic(topic, topics, inputs)
            leading.setdefault(inputs[0], []).append(number)
        for topic, partitions in self.application.topics.items():
            if topics[topic] < partitions:
                raise ConfigError(
                    f"topic {topic!r} has {topics[topic]} partitions, and the application needs {partitions}: add "
                    "partitions, or change the application"
                )
        missing = self.application.topics.keys() - existing.keys()
        if missing:
            scope = self.settings.scope
            changelog.check_group(
                self.application.name,
                fingerprint=self.application.fingerprint,
                fencing=scope is TransactionScope.THREAD,
            )
        for topic in sorted(missing):
            changelog.create_topic(topic, self.application.topics[topic])
        return leading

    def _work(self, changelog: Changelog) -> None:
        budget = MemoryBudget(self.settings.tasks.store.uncommitted_max_bytes)
        endpoint = self._endpoint(changelog)
        server = "" if endpoint is None else str(endpoint.address)
        status = StatusLine(self.application.name, self.status, changelog, self.settings.status_interval_s, server)
        try:
            with ExitStack() as held:
                if endpoint is not None:
                    held.enter_context(endpoint)
                self._threads = [
                    StreamThread(number, self._maker(changelog, budget, number), self.settings.tasks.task_timeout_s)
                    for number in range(1, self.settings.threads + 1)
                ]
                copies = None
                if self.settings.standby_replicas:
                    copies = self._prepare_copies(self._maker(changelog, budget, 0))
                held.enter_context(status)
                member = held.enter_context(
                    changelog.join_group(
                        self.application.name,
                        sorted(self._leading),
                        self,
                        fingerprint=self.application.fingerprint,
                        session_timeout_s=self.settings.session_timeout_s,
                        server=server,
                        copies=copies,
                        instance_id=self.settings.instance_id,
                        fencing=self.settings.scope is TransactionScope.THREAD,
                    )
                )
                if endpoint is not None:
                    endpoint.joined(member)
                if self._standbys is not None:
                    self._standbys.start(member)
                while not self._stopped.is_set() and not self._failures():
                    try:
                        member.poll(_POLL_S)
                    except ChangelogTimeoutError as error:
                        _log.warning("%s", error)
                if endpoint is not None:
                    endpoint.close()
                self._end_threads()
        finally:
            self._end_threads()
        for failure in self._failures():
            raise failure

    def _failures(self) -> list[BaseException]:
        return [thread.failure for thread in self._all_threads() if thread.failure is not None]

    def _all_threads(self) -> list[StreamThread | Standbys]:
        return [*self._threads, *([] if self._standbys is None else [self._standbys])]

    def _prepare_copies(self, make: MakeTask) -> LocalCopies:
        """Prepare the thread of the standby copies; return the local copies as the group sees them.

        Raises: as ``LocalCopies``.
        """
        kept = self.settings.persistent_subtopologies(self.application)
        self._standbys = Standbys(
            self.settings.standby_replicas,
            make,
            lambda partitions: [task_id for task_id in self._tasks_of(partitions) if task_id.subtopology in kept],
        )
        offsets = [self._standbys.changelog_offsets, *(thread.changelog_offsets for thread in self._threads)]
        return LocalCopies(self.application, self.settings.tasks, offsets)

    def _endpoint(self, changelog: Changelog) -> QueryEndpoint | None:
        """Begin to answer queries, if the settings say so. Raises: ConfigError if the address can't be had."""
        settings = self.settings
        if settings.server is None:
            return None
        from stores.worker.queries.endpoint import QueryEndpoint  # It needs the extra "http".

        processors = self.application.processors.values()
        configs = {name: config for each in processors for name, config in settings.stores(each.stores).items()}
        return QueryEndpoint(settings.server, self.application, configs, changelog.topics(), self, settings.partitioner)

    def _end_threads(self) -> None:
        """Let each thread commit and release its tasks. Raises: TaskNotReleasedError."""
        if self._ended:
            return
        self._ended = True
        for thread in self._all_threads():
            thread.stop()
        deadline = time.monotonic() + self.settings.session_timeout_s
        for thread in self._all_threads():
            if not thread.join(max(deadline - time.monotonic(), 0)):
                raise TaskNotReleasedError(
                    "a task was not released within session.timeout.ms: what it has not committed is done again by its "
                    "next instance"
                )

    def _maker(self, changelog: Changelog, budget: MemoryBudget, thread: int) -> Any:
        memory = budget.share()
        transaction = self.settings.scope.transaction(changelog, self.settings.tasks, self._instance, thread)
        tasks = replace(self.settings.tasks, task_timeout_s=0)  # The thread itself tries again, and runs others first.

        def make(task_id: TaskId, on_restore: OnRestore) -> StreamTask:
            processor = self.application.processors[task_id.subtopology]
            task = tasks.task(
                task_id,
                changelog=changelog,
                stores=self.settings.stores(processor.stores),
                process=processor.process,
                inputs=[TopicPartition(topic, task_id.partition) for topic in processor.subtopology.inputs],
                init=processor.init,
                on_error=processor.on_error,
                on_restore=on_restore,
                memory=memory,
                transaction=transaction,
            )
            if self._metrics is not None:
                self._metrics.add(task)
            return task

        return make


def _check_topic(topic: str, topics: Mapping[str, int], inputs: Collection[str]) -> None:
    if topic not in topics:
        raise ConfigError(f"the input topic {topic!r} does not exist: create it, or name it in Application(topics=...)")
    most = max(inputs, key=lambda each: topics.get(each, 0))
    if topics[topic] < topics[most]:
        raise ConfigError(
            f"topic {topic!r} has {topics[topic]} partitions, and {most!r} of the same sub-topology has {topics[most]}"
            ": they need the same number"
        )


class _Signals:
    """Calls ``stop`` at the first SIGTERM or SIGINT in the block. The second one ends the process."""

    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._first) for number in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _first(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        # Not print(): the handler may interrupt one.
        os.write(2, b"The worker begins to end. A second signal ends it immediately.\n")
        self._stop()
