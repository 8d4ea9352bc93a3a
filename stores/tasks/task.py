"""A task: a function over records, with stores that follow their changelogs through any crash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from stores.changelog.arguments import check_changelog
from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.contract.arguments import check_function, check_seconds, check_type
from stores.declarations import Stores, configurations
from stores.files.store_directory import checked_path
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.metrics import EarlyCommitCause
from stores.tasks.bounds import BatchSize
from stores.tasks.context import (
    NO_PARTITION,
    NO_RECORD,
    BatchFunction,
    InitFunction,
    ProcessFunction,
    TaskContext,
    still_processing,
)
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.store_places import read_layout
from stores.tasks.directory.task_files import TaskFiles, TaskFolder
from stores.tasks.identifier import TaskId, check_application, check_stores
from stores.tasks.input_loop import InputLoop, checked_inputs, unexpected_record
from stores.tasks.memory_budget import MemoryBudget
from stores.tasks.offset_reset import InputStarts, checked_offset_reset
from stores.tasks.on_error import check_dead_letter_topic, guarded, origin_note
from stores.tasks.readable_task import ReadableTask
from stores.tasks.record_batch import Batch, place_of
from stores.tasks.settings import (
    NOTHING_SHARED,
    SharedResources,
    TaskSettings,
    check_functions,
    check_process,
    checked_partitioner,
)
from stores.tasks.stores.file_snapshots import check_snapshots
from stores.tasks.stores.log_follower import RestoreReport
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.stores.store_metrics import latencies_of, measured
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task_resources import OpenCopy, StandbyTask, TaskResources
from stores.tasks.task_state import Call, TaskCounters, TaskLifecycle
from stores.tasks.task_transaction import TaskTransaction
from stores.tasks.timing import SystemClock, Timing, checked_commit_interval_ms
from stores.topic import TopicHandle

_DEFAULTS = TaskSettings()
K = TypeVar("K")
V = TypeVar("V")


class StreamTask(ReadableTask):
    """A function over input partitions, with stores. Open it, give it records, commit, close it. For one thread.

    A ``with`` block opens the task, and closes it: with a commit, unless an exception leaves the block.

    A store is in ``state_dir/TASK/ENGINE/NAME``, and ``state_dir/TASK`` is locked while the task is open. In a
    directory of the layout ``store-partition`` a store is in ``state_dir/NAME/PARTITION/ENGINE`` (``change_layout``).
    A store follows the changelog topic ``APPLICATION-NAME-changelog``, partition ``task_id.partition``, which is
    created if it does not exist. Input offsets are committed for the group ``application_id``.

    ``stores`` declares each store by its name: a description of ``stores.records``, a ``StoreConfig``, the name of a
    backend, or None for bytes. Descriptions that have names may also come as a list.

    ``inputs`` are partitions, whose records have bytes, and ``Topic``s, of which the task reads the partition
    ``task_id.partition`` with their serdes. ``process`` gets each record of the inputs, and a context.
    ``process_batch``, in its place, gets a ``Batch`` of records of one input. ``init`` is called at ``open`` with the
    same context, and creates the schedules of punctuators (``TaskContext.schedule``). They may be methods of one object
    of yours.

    A task commits after ``commit_every_records`` records, when ``commit_interval_ms`` is over, when the function asks
    for it, at ``commit``, and before its stores together exceed their limit on memory: see ``TaskSettings`` and
    ``SharedResources``. The clock is checked after each record or batch and by ``run``; without calls of ``process`` or
    ``run`` nothing is committed. A batch ends where a commit, a punctuator or a limit is due.

    Source: KIP-129 (exactly once), KIP-844 ("StateStore changes", steps 1 to 5), KIP-892 ("Atomic Checkpointing"),
    KIP-1033 and KIP-1034 (``on_error``), KIP-447 (``transaction``).
    """

    @overload
    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        *,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Stores,
        process: Callable[[Record, TaskContext], None] | None = ...,
        process_batch: Callable[[Batch, TaskContext], None] | None = ...,
        inputs: Sequence[TopicPartition],
        init: InitFunction | None = ...,
        settings: TaskSettings = ...,
        shared: SharedResources = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        *,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Stores,
        process: Callable[[Record[K, V], TaskContext], None] | None = ...,
        process_batch: Callable[[Batch[K, V], TaskContext], None] | None = ...,
        inputs: Sequence[TopicHandle[K, V]],
        init: InitFunction | None = ...,
        settings: TaskSettings = ...,
        shared: SharedResources = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        *,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Stores,
        process: Callable[[Record[K | bytes, V | bytes], TaskContext], None] | None = ...,
        process_batch: Callable[[Batch[K | bytes, V | bytes], TaskContext], None] | None = ...,
        inputs: Sequence[TopicPartition | TopicHandle[K, V]],
        init: InitFunction | None = ...,
        settings: TaskSettings = ...,
        shared: SharedResources = ...,
    ) -> None: ...

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        *,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Stores,
        process: ProcessFunction | None = None,
        process_batch: BatchFunction | None = None,
        inputs: Sequence[TopicPartition | TopicHandle[Any, Any]],
        init: InitFunction | None = None,
        settings: TaskSettings = _DEFAULTS,
        shared: SharedResources = NOTHING_SHARED,
    ) -> None:
        check_type(settings, TaskSettings, "settings is a TaskSettings")
        check_type(shared, SharedResources, "shared is a SharedResources")
        configs = configurations(stores, StoreConfig())
        check_type(task_id, TaskId, "task_id is a TaskId", ": write TaskId(0, 3), or TaskId.parse('0_3')")
        check_changelog(changelog)
        check_process(process, process_batch)
        if init is not None:
            check_function("init", init, "the context")
        typed_inputs = checked_inputs(inputs, task_id.partition)
        input_partitions = tuple(typed_inputs)
        check_application(application_id)
        check_stores(configs)
        if settings.topology is not None:
            settings.topology.check_task(task_id.subtopology, configs, [topic for topic, _ in input_partitions])
        self.application_id = application_id
        self.task_id = task_id
        self.guarantee = settings.guarantee_over(configs.values())
        exactly_once = self.guarantee is ProcessingGuarantee.EXACTLY_ONCE
        shared.check_task(configs, self.guarantee)
        check_functions(configs, self.guarantee)
        if settings.snapshots is not None:
            check_snapshots(configs, changelog, self.guarantee)
        self._kinds = {name: config.records for name, config in configs.items()}
        self._settings = settings
        self._shared = shared
        self._on_errors = settings.checked_on_errors(input_partitions)
        self._changelog = changelog
        self._init = init
        state = StateDirectory(checked_path(state_dir))
        layout = read_layout(state.path)
        files = TaskFiles(application_id, task_id, state, layout, configs, changelog, self.guarantee)
        automatic, topology = settings.automatic_state_relocation, settings.topology
        folder = TaskFolder(application_id, state, layout, task_id, files.kept, topology, automatic=automatic)
        members = [
            TaskStore(plan, exactly_once=exactly_once, verify=settings.verify_stores, snapshots=settings.snapshots)
            for plan in files.plans
        ]
        self._latencies = latencies_of(members, settings.recording_level)
        self._stores = StoreGroup(
            members, files.checkpoint, files.origins, settings.on_restore, exactly_once=exactly_once
        )
        self._commit_every = settings.commit_every_records or sys.maxsize
        self._num_records = 1
        """The number of records of the current step: more than one if it is a batch."""
        interval_ms = checked_commit_interval_ms(settings.commit_interval_ms, self.guarantee)
        clock = SystemClock() if shared.clock is None else shared.clock
        self._timing = timing = Timing(interval_ms, clock)
        partitioner = checked_partitioner(settings.partitioner)
        self._context = TaskContext(task_id, changelog, timing.punctuation, timing.stream_time, partitioner)
        own_memory = MemoryBudget.of_stores(config.staged_max_bytes for config in configs.values()).share()
        self._memory = own_memory if shared.memory is None else shared.memory
        self._lifecycle = TaskLifecycle(task_id)
        self._counters = TaskCounters()
        self._function, self._context._undo = guarded(
            process, process_batch, self._on_errors, typed_inputs, self._counters
        )
        self._transaction = TaskTransaction(
            application_id,
            task_id,
            input_partitions,
            changelog,
            self._stores,
            self._context,
            self._timing,
            self._lifecycle,
            self._counters,
            exactly_once=exactly_once,
            make_schedules=self._make_schedules,
            close=self._close_all,
            starts=InputStarts(task_id, changelog, checked_offset_reset(settings.auto_offset_reset)),
            shared=shared.transaction,
        )
        self._resources = TaskResources(self._transaction, folder, self._memory, files.checkpoint, self.commit)
        self._bounds = self._resources.bounds
        self._batches: BatchSize | None = None
        if process_batch is not None:
            self._batches = BatchSize(self._transaction, self._memory, settings)
            self._function = self._batches.measured(self._function)
        self._next = self._transaction.next_offsets
        self._input_loop = InputLoop(
            self._transaction,
            process=self.process,
            process_all=self.process_all,
            commit=self.commit,
            keep_time=self._bounds.keep_time,
            batches=self._batches,
        )

    def __enter__(self) -> Self:
        """Open the task: see ``open``. ``restore_reports`` returns what ``open`` does."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the task, cleanly unless an exception leaves the block: then nothing more is committed."""
        self.close(clean=kind is None)

    def __repr__(self) -> str:
        stores = ", ".join(partition.topic for partition in self._stores.partitions)
        return f"<StreamTask {self.application_id} {self.task_id}, {self._lifecycle.state}, changelogs: {stores}>"

    def open(self, copy: OpenCopy | None = None) -> list[RestoreReport]:
        """Recover each store from its own files, and restore the tail of its changelog. Return a report per store.

        This aborts an open transaction of another instance of the task, and fences that instance. A store that can't
        be trusted is wiped and restored whole; ``reason`` in its report says why. ``copy`` has the open stores of the
        task's standby copy (``StandbyTask.hand_over``): the task continues with these, or closes them if it fails.

        Raises: StoreLockedError if another instance has the task's folder, or tasks with another topology are open in
        the directory; ChangelogError over Kafka if an input partition does not exist; StoreMisplacedError unless
        ``automatic_state_relocation``; ChangelogLostError if the changelog is empty but a store was filled from it;
        StoreError inside of the task's own function; as ``open_store``.
        """
        with nullcontext() if copy is None else copy:
            return self._open(copy)

    def _open(self, copy: OpenCopy | None) -> list[RestoreReport]:
        self._check_may_open()
        self._lifecycle.open()
        try:
            for on_error in self._on_errors:
                check_dead_letter_topic(on_error, self._changelog, f"task {self.task_id}")
            self._resources.open_stores(processes=True, copy=copy)
            self._transaction.open_producer()
            reports = self._stores.restore(self._transaction.committed_position(), owned=True)
            if self._stores.rewrite_logs(self._transaction.transactional_id):
                self._transaction.open_producer()
            stores, shared = measured(self._stores.logged(self._context), self._latencies), self._shared.global_stores
            views, view_kinds = ({}, {}) if shared is None else (shared.views(), shared.kinds)
            self._context._show(stores, self._kinds, views, view_kinds)
            self._transaction.begin()
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        return reports

    def rebuild(self) -> list[RestoreReport]:
        """Bring the stores to their changelogs' end while another instance owns the task, and close them.

        For ``upgrade.mode=roll_over``: the new instance has a state directory of its own, and calls this any number of
        times while the old instance works. Each call restores the commits since the call before. Once the old instance
        has stopped, ``open`` restores the rest. Return a report per store.

        Raises: as ``open``. Source: KIP-258, first draft, "Roll-over Upgrade".
        """
        self._check_may_open()
        copy = self.standby()
        copy.open()
        try:
            # The position comes with ``open``: the other instance may have a commit that cannot be read yet.
            reports = self._stores.restore({}, owned=False)
        except BaseException:
            with suppress(Exception):
                copy.close(clean=False)
            raise
        copy.close()
        return reports

    def standby(self) -> StandbyTask:
        """Return the standby copy of the task, which follows the changelogs in this state directory.

        Use it while another instance owns the task. Close it before ``open``, which restores the rest, or hand it over.
        """
        return StandbyTask(self._transaction, self._resources)

    def process(self, partition: TopicPartition, record: Record) -> None:
        """Give the function one record of an input partition; may commit.

        If the function raises, everything since the last commit is rolled back, and ``input_offsets`` returns where to
        continue. Tasks that share its memory may commit as well. If one of them fails, its own next call raises the
        error.

        Raises: ValueError for a partition that is no input and for a record that was processed before; the exceptions
        of the function; as ``commit``.
        """
        if self._context._active:
            raise still_processing(self.task_id, "process another one")
        if not self._lifecycle.ready:
            self._transaction.resume()
        if record.offset < self._next.get(partition, sys.maxsize):
            raise unexpected_record(self.task_id, self._next, partition, record)
        context = self._context
        context.partition, context.record, context._active = partition, record, True
        context._written.num_bytes = 0
        timing = self._timing
        time = timing.stream_time
        try:
            if record.timestamp_ms > time.ms:
                time.ms, time.partition = record.timestamp_ms, partition
            self._function(record, context)
            if context._failure is not None:
                raise context._failure
            if context._reports:
                context._call_reports()
            if time.ms >= timing.punctuation.stream_due_ms:
                self._bounds.fire_stream()
            self._stores.advance(partition, record.offset)
        except BaseException as error:
            # Not while a punctuator runs: it has no record.
            if context.record is record:
                error.add_note(origin_note(self.task_id, partition, record))
            self._transaction.roll_back(error)
            raise
        finally:
            context._active = False
        self._next[partition] = record.offset + 1
        transaction, num_records = self._transaction, self._num_records
        transaction.processed += num_records
        memory, stores, written_bytes = self._memory, self._stores, context._written.num_bytes
        memory.bytes_at_most += written_bytes
        stores.log_room -= written_bytes
        step_bytes = written_bytes // num_records
        if memory.bytes_at_most > memory.check_above or step_bytes > memory.step_bytes:
            memory.check(self._resources, step_bytes)
        if stores.log_room < memory.step_bytes:
            self._bounds.keep_to_replay_bound()
        if transaction.processed >= self._commit_every:
            self.commit()
        elif context._commit_requested:
            self._bounds.commit_early(EarlyCommitCause.REQUESTED)
        if timing.now_ns() >= timing.due_ns:
            self._bounds.keep_time()

    def process_all(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Give the function some records of an input partition, in order; may commit between them.

        A function of batches gets as many at once as the bounds of the task allow. Raises: as ``process``, after which
        ``input_offsets`` returns where to continue.
        """
        batches = self._batches
        if batches is None:
            for record in records:
                self.process(partition, record)
            return
        if self._context._active:
            raise still_processing(self.task_id, "process more")
        first = 0
        while ahead := records[first : first + batches.max_records]:
            if not self._lifecycle.ready:
                self._transaction.resume()
            if ahead[0].offset < self._next.get(partition, sys.maxsize):
                raise unexpected_record(self.task_id, self._next, partition, ahead[0])
            self._num_records = count = batches.of_next(ahead)
            try:
                self.process(partition, place_of(Batch(partition, ahead[:count])))
            finally:
                self._num_records = 1
            first += count

    def run(
        self, max_records: int | None = None, *, commit: bool = False, wait_s: float = 0.0, only_arrived: bool = False
    ) -> int:
        """Process up to ``max_records`` records of the input topics, from ``input_offsets`` on.

        Return the number of records by which it has advanced. It ends when there was no input for ``wait_s``; meanwhile
        it commits at each interval and punctuates. With ``commit`` it commits the rest at the end. If the changelog
        does not answer in time, it continues from the last commit by itself, until it has made no progress for
        ``task_timeout_s``.

        With ``only_arrived`` it takes what has arrived in this process: a record that was committed a moment ago may
        come with a later call. Kafka is then asked for the end of an idle input each second, and not at each call.

        Raises: as ``process``; ChangelogTimeoutError after ``task_timeout_s``; OffsetOutOfRangeError if the input no
        longer has the next record of the task, unless ``auto_offset_reset``; TypeError, ValueError for a bad number of
        records or seconds. Source: KIP-572.
        """
        if max_records is not None and not (type(max_records) is int and max_records >= 0):
            raise ValueError(f"max_records is 0 or more, or None, not {max_records!r}")
        check_seconds("wait_s", wait_s)
        if self._context._active:
            raise still_processing(self.task_id, "run")
        return self._input_loop.run(
            max_records,
            int(wait_s * 1_000_000_000),
            self._settings.task_timeout_s,
            commit=commit,
            only_arrived=only_arrived,
        )

    def input_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to process of each input partition."""
        if not self._lifecycle.ready:
            self._transaction.resume()
        return dict(self._next)

    def commit(self) -> None:
        """Commit outputs, changelogs and input offsets, then the stores; do nothing if nothing was processed.

        If the changelog refuses the commit, everything since the last commit is rolled back. No store that isolates its
        writes is wiped for that. If the changelog does not answer to the rollback in time, the next call tries again.
        If a store fails after the changelog took the commit, the store replays the changelog's tail, and the commit
        succeeds.

        The task's own function requests a commit with ``TaskContext.commit``. A commit in the middle of a record would
        separate its writes from its input offset, so this method refuses that and changes nothing.

        Raises: StoreError while a record is processed or a punctuator runs; ChangelogTimeoutError, after which
        ``input_offsets`` returns where to continue; ProducerFencedError if another instance owns the task now, and this
        one has closed; ChangelogError; a store's error if the store can't continue: close the task and open it again.
        """
        if self._context._active:
            raise still_processing(self.task_id, "commit")
        if not self._lifecycle.ready:
            self._transaction.resume()
        if self._transaction.is_empty:
            return
        with self._counters.commits:
            self._transaction.commit()

    def close(self, clean: bool = True) -> None:
        """Close the stores: with ``clean`` after a commit and with a checkpoint, otherwise discarding staged writes.

        A task that has failed is never closed cleanly; nor is a task that its own function closes. May be called more
        than once. Raises the first error, after everything is closed.
        """
        clean = clean and self._lifecycle.commits_on_close and not self._context._active
        try:
            if clean:
                self.commit()
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        self._close_all(clean=clean)

    def _check_may_open(self) -> None:
        self._lifecycle.check(Call.OPEN)
        if self._context._active:
            # Its function has closed it, and the current record would count as processed without its writes.
            raise still_processing(self.task_id, "be opened again")

    def _make_schedules(self) -> None:
        if self._init is not None:
            self._context.partition, self._context.record = NO_PARTITION, NO_RECORD
            self._init(self._context)

    def _close_all(self, *, clean: bool = False) -> None:
        self._lifecycle.close()
        self._resources.close(clean=clean, processes=True)
