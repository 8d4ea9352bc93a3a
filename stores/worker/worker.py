"""The worker of an application: it takes part in the group, and gives its tasks to its stream threads.

The thread that calls ``run`` never runs a task, so that long restores and slow functions do not keep the worker from
taking part in the group. The group shares the partitions of one topic for each sub-topology, the first of its inputs.
The owner of a partition runs the task, which reads the same partition of all its inputs.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from types import FrameType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stores.changelog.group import GroupMember
from stores.changelog.interface import Changelog
from stores.errors import ChangelogTimeoutError, StoreClosedError, StoreError
from stores.interface import PositionBound, TopicPartition
from stores.settings import Properties
from stores.tasks.global_stores import GlobalStores
from stores.tasks.identifier import Home, StorePartition, TaskId
from stores.tasks.memory_budget import MemoryBudget
from stores.tasks.settings import SharedResources
from stores.tasks.stores.log_follower import OnRestore
from stores.tasks.task import StreamTask
from stores.telemetry import MetricsRegistry
from stores.worker.copy_moment import CopyMoment
from stores.worker.definition import Definition
from stores.worker.local_copies import Cleaner, LocalCopies
from stores.worker.log_format import LogFormat
from stores.worker.probes import with_probes
from stores.worker.running_task import MakeTask, TaskStatus
from stores.worker.settings import WorkerSettings, exported_metrics, read_properties
from stores.worker.standbys import Standbys
from stores.worker.start import StoppedError, open_prepared
from stores.worker.status import StatusLine, WorkerState, WorkerStatus
from stores.worker.stream_thread import GlobalThread, StreamThread
from stores.worker.transaction_scope import TransactionScope

if TYPE_CHECKING:
    from stores.worker.queries.endpoint import QueryEndpoint

_log = logging.getLogger(__name__)

_POLL_S = 0.1
RELEASE_S = 270.0
"""The time to wait for the release of tasks in a rebalance. A member that waits for longer than Kafka's
``max.poll.interval.ms``, which is 300 s by default, loses all its partitions."""


COPIES_S = 1.0
"""The time to wait for the standby copies when the tasks are closed. They have nothing that others wait for."""


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
        self._metrics = MetricsRegistry() if metrics is None else metrics
        self._instance = self.settings.instance_id or uuid4().hex
        """The name of this worker in transactional IDs: unique among those that run at the same time."""
        self._stopped = threading.Event()
        self._threads: list[StreamThread] = []
        self._standbys: Standbys | None = None
        self._global: GlobalThread | None = None
        self._global_stores: GlobalStores | None = None
        self._leading: dict[str, int] = {}
        self._joined = self._ended = False

    def run(self) -> None:
        """Work until ``stop``, SIGTERM or SIGINT; then commit, close all tasks and leave the group.

        A second signal ends the process immediately: what was not committed is done again by the next instance. Signals
        are only handled if this is called on the main thread.

        Raises: ConfigError if a topic is missing or has too few partitions; ChangelogError if another application uses
        the group; the error of a task or of the global stores, after the other tasks have committed.
        """
        exported = exported_metrics(
            self.settings, self.application.name, self._metrics, lambda metrics: with_probes(metrics, self.status)
        )
        with Signals(self.stop, self.settings.log_format), exported, ExitStack() as resources:
            try:
                changelog, self._leading = open_prepared(
                    self.application,
                    self.settings.open_changelog,
                    self._stopped,
                    fencing=self._fences,
                    timeout_s=self.settings.tasks.task_timeout_s,
                )
            except StoppedError:
                return
            resources.callback(changelog.close)
            try:
                self._work(changelog)
            except TaskNotReleasedError:
                resources.pop_all()  # The task's thread still uses the changelog.
                raise
            if self._standbys is not None and not self._standbys.join(0):
                resources.pop_all()  # So does that of the standby copies, which have nothing to commit.

    def stop(self) -> None:
        """Let ``run`` end. For any thread, and for signal handlers."""
        self._stopped.set()

    def status(self) -> WorkerStatus:
        """Return the state of the worker's tasks. For any thread."""
        standbys = () if self._standbys is None else tuple(self._standbys.status())
        tasks = tuple(status for thread in self._threads for status in thread.status())
        lag = None if self._global is None else self._global.lag
        ready = self._global is None or self._global.await_ready(0)
        state = self._state(tasks, ready=ready)
        return WorkerStatus(tasks, standbys, len(self.application.global_stores), lag, ready, state)

    def _state(self, tasks: Collection[TaskStatus], *, ready: bool) -> WorkerState:
        if self._failures():
            return WorkerState.FAILED
        if self._stopped.is_set():
            return WorkerState.ENDING
        # It may have its tasks before the call that joins the group returns.
        if not (self._joined or tasks) or not ready:
            return WorkerState.STARTING
        return WorkerState.RUNNING if all(task.running for task in tasks) else WorkerState.RESTORING

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

    def standby(self, task_id: TaskId) -> CopyMoment | None:
        """Return the standby copy of a task as queries read it, to be closed; None if there is none here.

        For any thread. Only a worker with ``application.server`` has one.
        """
        return None if self._standbys is None else self._standbys.moment(task_id)

    def standby_addresses(self, partition: TopicPartition) -> list[str]:
        """Return the addresses of the other workers that keep a copy of an input partition's task. For any thread."""
        return [] if self._standbys is None else self._standbys.addresses(partition)

    def global_view(self, name: str, bound: PositionBound | None = None) -> Any:
        """Return a view of a global store of the application, as ``GlobalStores.view``. For any thread.

        Raises: KeyError; StoreClosedError if it is not open yet, or no more.
        """
        if self._global_stores is None:
            raise StoreClosedError("the worker has not opened its global stores yet: ask again later")
        return self._global_stores.view(name, bound)

    # What follows is called by the group's membership, on the thread that calls ``run``.

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        task_ids = self._tasks_of(partitions)
        if self._standbys is not None:
            self._standbys.claim(task_ids)
        for task_id in task_ids:
            # A thread may still be busy with the task that it is to release: only that thread can begin it again.
            has_it = [thread for thread in self._threads if task_id in thread.assigned]
            thread = min(has_it or self._threads, key=lambda each: len(each.assigned))
            thread.assign([task_id])

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        task_ids = self._release(partitions, clean=True)
        deadline = time.monotonic() + RELEASE_S
        for thread in self._threads:
            if not thread.await_released(task_ids, max(deadline - time.monotonic(), 0)):
                _log.warning("tasks are not released in time: their next instances fence them")
        self._unclaim(task_ids)

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        # Nobody waits for the tasks: others may have them already.
        self._unclaim(self._release(partitions, clean=False))

    def _release(self, partitions: Collection[TopicPartition], *, clean: bool) -> list[TaskId]:
        task_ids = [] if self._ended else self._tasks_of(partitions)
        for thread in self._threads:
            thread.release(task_ids, clean=clean)
        return task_ids

    def _unclaim(self, task_ids: Collection[TaskId]) -> None:
        if self._standbys is not None:
            self._standbys.unclaim(task_ids)

    def _tasks_of(self, partitions: Iterable[TopicPartition]) -> list[TaskId]:
        return sorted(
            TaskId(self._leading[topic], partition) for topic, partition in partitions if topic in self._leading
        )

    def _work(self, changelog: Changelog) -> None:
        self.settings.log_memory()
        budget = MemoryBudget(self.settings.tasks.store.staged_max_bytes)
        endpoint = self._endpoint(changelog)
        server = "" if endpoint is None else str(endpoint.address)
        status = StatusLine(
            self.application.name,
            self.status,
            changelog,
            self.settings.status_interval_s,
            server,
            self.settings.log_format.write,
        )
        try:
            with ExitStack() as resources:
                if endpoint is not None:
                    resources.enter_context(endpoint)
                self._global = self._begin_global_stores(changelog)
                if self.settings.standby_replicas:
                    self._standbys = self._make_standbys(self._maker(changelog, budget, 0))
                timeout_s, standbys = self.settings.tasks.task_timeout_s, self._standbys
                self._threads = [
                    StreamThread(number, self._maker(changelog, budget, number), timeout_s, standbys)
                    for number in range(1, self.settings.threads + 1)
                ]
                for thread in self._threads:
                    thread.start()
                copies = None if standbys is None else self._local_copies(standbys)
                resources.enter_context(status)
                if self._await_global_stores():
                    member = resources.enter_context(
                        changelog.join_group(
                            self.application.name,
                            sorted(self._leading),
                            self,
                            fingerprint=self.application.fingerprint,
                            session_timeout_s=self.settings.session_timeout_s,
                            server=server,
                            copies=copies,
                            instance_id=self.settings.instance_id,
                            fencing=self._fences,
                        )
                    )
                    with Cleaner(
                        self.settings.tasks,
                        self._needed_homes,
                        (lambda: None) if copies is None else copies.read_again,
                    ):
                        self._take_part(member, endpoint)
                if endpoint is not None:
                    endpoint.close()
                self._end_threads()
        finally:
            self._end_threads()
        for failure in self._failures():
            raise failure

    def _needed_homes(self) -> set[Home]:
        """Return the tasks, and their stores, that this worker has or keeps copies of, opened or not."""
        task_ids = {task_id for thread in self._threads for task_id in thread.assigned}
        if self._standbys is not None:
            task_ids |= self._standbys.needed
        homes: set[Home] = set(task_ids)
        for task_id in task_ids:
            stores = self.application.processors[task_id.subtopology].subtopology.stores
            homes.update(StorePartition(name, task_id.partition) for name in stores)
        return homes

    def _take_part(self, member: GroupMember, endpoint: QueryEndpoint | None) -> None:
        """Take part in the group until the worker is to end."""
        if endpoint is not None:
            endpoint.joined(member)
        if self._standbys is not None:
            self._standbys.start(member)
        while not self._stopped.is_set() and not self._failures():
            try:
                member.poll(_POLL_S)
                self._joined = self._joined or member.has_joined
            except ChangelogTimeoutError as error:
                _log.warning("%s", error)

    def _begin_global_stores(self, changelog: Changelog) -> GlobalThread | None:
        """Begin to open the global stores, which tasks read, if there are any."""
        if not self.application.global_stores:
            return None
        described = self.settings.global_stores(self.application.global_stores)
        tasks = self.settings.tasks
        self._global_stores = GlobalStores(
            tasks.state_dir, changelog, described, application_id=self.application.name, snapshots=tasks.snapshots
        )
        return GlobalThread(self._global_stores, self._metrics)

    def _await_global_stores(self) -> bool:
        """Wait until the tasks can read the global stores; return False if the worker is to end before."""
        while self._global is not None and not self._stopped.is_set():
            if self._global.await_ready(_POLL_S):
                break
        return not self._stopped.is_set() and not self._failures()

    @property
    def _fences(self) -> bool:
        """True if the group fences transactions, which are those of threads."""
        return self.settings.scope is TransactionScope.THREAD

    def _failures(self) -> list[BaseException]:
        # The global stores first: the error of a task may be due to them.
        threads = [*([] if self._global is None else [self._global]), *self._all_threads()]
        return [thread.failure for thread in threads if thread.failure is not None]

    def _all_threads(self) -> list[StreamThread | Standbys]:
        return [*self._threads, *([] if self._standbys is None else [self._standbys])]

    def _make_standbys(self, make: MakeTask) -> Standbys:
        persistent = self.settings.persistent_subtopologies(self.application)
        return Standbys(
            self.settings.standby_replicas,
            make,
            lambda partitions: [task_id for task_id in self._tasks_of(partitions) if task_id.subtopology in persistent],
            queried=self.settings.server is not None,
        )

    def _local_copies(self, standbys: Standbys) -> LocalCopies:
        """Return the local copies as the group sees them. Raises: as ``LocalCopies``."""
        offsets = [standbys.changelog_offsets, *(thread.changelog_offsets for thread in self._threads)]
        return LocalCopies(self.application, self.settings.tasks, offsets)

    def _endpoint(self, changelog: Changelog) -> QueryEndpoint | None:
        """Begin to answer queries, if the settings say so. Raises: ConfigError if the address can't be had."""
        settings = self.settings
        if settings.server is None:
            return None
        from stores.worker.queries.endpoint import QueryEndpoint  # It needs the extra "http".

        processors = self.application.processors.values()
        configs = {name: config for each in processors for name, config in settings.stores(each.stores).items()}
        described = settings.global_stores(self.application.global_stores)
        configs.update({name: each.config for name, each in described.items()})
        return QueryEndpoint(
            settings.server,
            self.application,
            configs,
            changelog.topics(),
            self,
            settings.query_partitioner,
            settings.access,
            self.status,
            self._metrics,
        )

    def _end_threads(self) -> None:
        """Let each thread commit and release its tasks. Raises: TaskNotReleasedError."""
        if self._ended:
            return
        self._ended = True
        for thread in self._all_threads():
            thread.stop()
        deadline = time.monotonic() + self.settings.session_timeout_s
        for thread in self._threads:
            if not thread.join(max(deadline - time.monotonic(), 0)):
                raise TaskNotReleasedError(
                    "a task was not released within session.timeout.ms: what it has not committed is done again by its "
                    "next instance"
                )
        if self._standbys is not None and not self._standbys.join(COPIES_S):
            _log.warning("the standby copies are not closed in time: they are recovered when they are opened again")
        if self._global is not None:
            self._global.stop()  # After the tasks, which read the stores.
            if not self._global.join(self.settings.session_timeout_s):
                raise TaskNotReleasedError("a topic of a global store did not answer within session.timeout.ms")

    def _maker(self, changelog: Changelog, budget: MemoryBudget, thread: int) -> Any:
        shared = SharedResources(
            memory=budget.share(),
            transaction=self.settings.scope.transaction(changelog, self.settings.tasks, self._instance, thread),
            global_stores=self._global_stores,
        )
        tasks = replace(self.settings.tasks, task_timeout_s=0)  # The thread itself tries again, and runs others first.

        def make(task_id: TaskId, on_restore: OnRestore) -> StreamTask:
            processor = self.application.processors[task_id.subtopology]
            task = tasks.task(
                task_id,
                changelog=changelog,
                stores=self.settings.stores(processor.stores),
                shared=shared,
                on_restore=on_restore,
                **processor.task_arguments(task_id.partition),
            )
            self._metrics.add(task)
            return task

        return make


class Application(Definition):
    """A stream processor: a name and its sub-topologies, which are one Processor, a list, or a mapping by number.

    ``name`` is the ``application.id``: that of the consumer group, and the first part of the names of its changelog
    topics. ``topics``, names or ``Topic``s, are created if they do not exist, with that number of partitions.
    ``global_stores`` are in each worker, and all functions read them.

    Raises: TypeError, ConfigError.
    """

    def run(self, properties: Properties | str | PathLike[str], *, metrics: MetricsRegistry | None = None) -> None:
        """Run a worker until SIGTERM or SIGINT, with these properties or those of a file.

        Raises: as ``Worker``, ``Worker.run`` and ``read_properties``.
        """
        raw = properties if not isinstance(properties, str | PathLike) else read_properties(properties)
        Worker(self, raw, metrics=metrics).run()


class Signals:
    """Calls ``stop`` at the first SIGTERM or SIGINT in the block. The second one ends the process."""

    def __init__(self, stop: Callable[[], None], form: LogFormat) -> None:
        self._stop, self._form = stop, form
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
        self._form.write("The worker begins to end. A second signal ends it immediately.")
        self._stop()
