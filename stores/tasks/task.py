"""A task: a function over records, with stores that follow their changelogs through any crash."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Self

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.errors import ChangelogError, ChangelogTimeoutError, TransactionAbortedError
from stores.files.store_directory import checked_path
from stores.interface import IsolationLevel, PositionBound, ProcessingGuarantee, TopicPartition
from stores.metrics import EarlyCommitCause, TaskMetrics
from stores.tasks.arguments import (
    check_changelog,
    check_clock,
    check_configurations,
    check_flags,
    check_function,
    check_memory,
    check_task_id,
    check_transaction,
    checked_inputs,
    unexpected_record,
)
from stores.tasks.common_settings import common_guarantee, lowest_uncommitted_max_bytes
from stores.tasks.context import (
    NO_PARTITION,
    NO_RECORD,
    InitFunction,
    ProcessFunction,
    TaskContext,
    still_processing,
)
from stores.tasks.directory.directory_layout import read_layout
from stores.tasks.directory.names import check_application, check_inputs, check_stores
from stores.tasks.directory.origin_file import Origin
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.task_files import TaskFiles
from stores.tasks.directory.task_folder import TaskFolder
from stores.tasks.early_commits import EarlyCommits
from stores.tasks.global_stores import GlobalStores, check_global_stores
from stores.tasks.guarded_function import GuardedFunction
from stores.tasks.identifier import TaskId
from stores.tasks.input_loop import InputLoop
from stores.tasks.memory_budget import BudgetShare, MemoryBudget
from stores.tasks.on_error import DeadLetterTopic, OnError, checked_on_error, origin_note
from stores.tasks.record_undo import RecordUndo
from stores.tasks.standby import StandbyTask
from stores.tasks.stores.restore import AFTER_WRITE, BEFORE_WRITE, OnRestore, RestoreReport
from stores.tasks.stores.store_group import (
    AFTER_CHECKPOINT,
    AFTER_LOG_COMMIT,
    AFTER_STORE_COMMIT,
    BETWEEN_STORES,
    StoreGroup,
)
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task_counters import TaskCounters
from stores.tasks.task_resources import TaskResources
from stores.tasks.task_state import Call, TaskLifecycle
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT, TaskTransaction
from stores.tasks.thread_transaction import ThreadTransaction
from stores.tasks.timing.clock import Clock, SystemClock
from stores.tasks.timing.commit_interval import check_commit_every, checked_commit_interval_ms
from stores.tasks.timing.punctuation import Punctuator
from stores.tasks.timing.task_timeout import TASK_TIMEOUT_S, TaskTimeout, checked_task_timeout_s, checked_wait_ns
from stores.tasks.timing.timing import Timing
from stores.tasks.topology import Topology, check_relocation

FAILPOINTS = (
    BEFORE_LOG_COMMIT,
    AFTER_LOG_COMMIT,
    BETWEEN_STORES,
    AFTER_STORE_COMMIT,
    AFTER_CHECKPOINT,
    BEFORE_WRITE,
    AFTER_WRITE,
)
"""Failpoints of a task's commits and restores, in order, besides those of its changelog and stores."""


class StreamTask:
    """A function over input partitions, with stores. Open it, give it records, commit, close it. For one thread.

    A ``with`` block opens the task, and closes it: with a commit, unless an exception leaves the block.

    A store is in ``state_dir/TASK/ENGINE/NAME``, and ``state_dir/TASK`` is locked while the task is open. In a
    directory of the layout ``store-partition`` a store is in ``state_dir/NAME/PARTITION/ENGINE`` (``change_layout``).
    ``open`` moves stores of an earlier release there from ``state_dir/TASK/NAME``. A store follows the changelog topic
    ``APPLICATION-NAME-changelog``, partition ``task_id.partition``, which is created if it does not exist. Input
    offsets are committed for the group ``application_id``.

    A task commits after ``commit_every_records`` records, when ``commit_interval_ms`` is over, when the function asks
    for it, at ``commit``, and before its stores together exceed their limit on memory. The limit is the lowest
    ``uncommitted_max_bytes`` among them, or ``memory``, which the tasks of one thread share (``MemoryBudget``). In that
    case all tasks of the thread commit.

    ``commit_interval_ms`` is 100 under exactly once and 30,000 else, unless it is given; ``NO_INTERVAL`` (-1) for none.
    The clock is checked after each record and by ``run``; without calls of ``process`` or ``run`` nothing is committed.

    ``init`` is called at ``open`` with the context that ``process`` gets, and creates the schedules of punctuators
    (``TaskContext.schedule``). Both may be methods of one object of yours.

    ``on_error`` says what happens if the function raises for a record. "raise", the default, rolls back to the last
    commit and raises the exception. "skip" undoes the record alone, counts it (``skipped_total``) and continues with
    the next one. ``DeadLetterTopic(topic)`` also sends the record there, in the same transaction. Undone are its writes
    to all stores, its outputs and its request for a commit; the position and the stream time advance. This costs a
    lookup for each key that a record writes, and memory for the record's old values, outputs and changelog records.
    Errors of the library, and exceptions of punctuators, are always raised.

    ``guarantee`` is by default that of the stores' configurations (``processing.guarantee``), else exactly once.

    ``verify_stores`` verifies each store when the task is opened (``StateStore.verify``). A store with corrupt files is
    wiped and restored. It takes the time of a few scans of all data.

    ``task_timeout_s`` is the time for which ``run`` retries if the changelog does not answer in time; 0 for no retry.

    ``transaction`` is that of all tasks of a thread, which then commit and roll back together (``ThreadTransaction``).
    It needs exactly once. An error in one task rolls back the others: ``run`` continues by itself, and other calls
    raise TransactionAbortedError once.

    ``global_stores`` are open. The function gets a view of each by ``context.store``, which cannot write.

    ``topology`` is that of the whole application. At ``open``, stores in the folder of another sub-topology are moved
    to their tasks, without a replay (``stores.tasks.directory.relocation``). With
    ``automatic_state_relocation=False`` they are refused. All tasks that are open in the directory have the same
    topology.

    ``wipe_unclean=False`` shows exactly once without the wipe, for tests only. Do not use it in production.

    Source: KIP-129 (exactly once), KIP-844 ("StateStore changes", steps 1 to 5), KIP-892 ("Atomic Checkpointing"),
    KIP-1033 and KIP-1034 (``on_error``), KIP-447 (``transaction``).
    """

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        *,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Mapping[str, StoreConfig],
        process: ProcessFunction,
        inputs: Sequence[TopicPartition],
        init: InitFunction | None = None,
        on_error: OnError | DeadLetterTopic | str = OnError.RAISE,
        guarantee: ProcessingGuarantee | None = None,
        commit_interval_ms: int | None = None,
        commit_every_records: int | None = None,
        memory: BudgetShare | None = None,
        on_restore: OnRestore | None = None,
        verify_stores: bool = False,
        task_timeout_s: float = TASK_TIMEOUT_S,
        wipe_unclean: bool = True,
        topology: Topology | None = None,
        automatic_state_relocation: bool = True,
        clock: Clock | None = None,
        transaction: ThreadTransaction | None = None,
        global_stores: GlobalStores | None = None,
    ) -> None:
        check_configurations(stores)
        check_task_id(task_id)
        check_changelog(changelog)
        check_memory(memory)
        check_clock(clock)
        check_flags(verify_stores=verify_stores, wipe_unclean=wipe_unclean)
        check_function("process", process, "the record", "the context")
        if init is not None:
            check_function("init", init, "the context")
        if on_restore is not None:
            check_function("on_restore", on_restore, "the progress")
        input_partitions = checked_inputs(inputs)
        check_inputs(input_partitions)
        self._on_error = checked_on_error(on_error, input_partitions)
        check_application(application_id)
        check_stores(stores)
        check_global_stores(global_stores, stores)
        check_relocation(topology, automatic_state_relocation)
        if topology is not None:
            topology.check_task(task_id.subtopology, stores, [topic for topic, _ in input_partitions])
        if commit_every_records is not None:
            check_commit_every(commit_every_records)
        self.application_id = application_id
        self.task_id = task_id
        self.guarantee = common_guarantee(guarantee, stores.values())
        exactly_once = self.guarantee is ProcessingGuarantee.EXACTLY_ONCE
        check_transaction(transaction, self.guarantee)
        self._changelog = changelog
        self._function: ProcessFunction = process
        self._init = init
        self._global_stores = global_stores
        state = StateDirectory(checked_path(state_dir))
        layout = read_layout(state.path)
        files = TaskFiles(application_id, task_id, state, layout, stores)
        folder = TaskFolder(
            application_id, state, layout, task_id, files.kept, topology, automatic=automatic_state_relocation
        )
        members = [
            TaskStore(
                name,
                files.paths[name],
                # The default isolation level of readers depends on the task's guarantee.
                replace(config, processing_guarantee=self.guarantee),
                files.partitions[name],
                changelog,
                files.store_checkpoints[name],
                exactly_once=exactly_once,
                wipe_unclean=wipe_unclean,
                verify=verify_stores,
            )
            for name, config in stores.items()
        ]
        self._stores = StoreGroup(members, files.checkpoint, files.origins, on_restore, exactly_once=exactly_once)
        self._commit_every = sys.maxsize if commit_every_records is None else commit_every_records
        interval_ms = checked_commit_interval_ms(commit_interval_ms, self.guarantee)
        own_memory = MemoryBudget(lowest_uncommitted_max_bytes(stores.values()))
        self._timing = Timing(application_id, interval_ms, SystemClock() if clock is None else clock)
        self._context = TaskContext(task_id, changelog, self._timing.punctuation, self._timing.stream_time)
        self._task_timeout_s = checked_task_timeout_s(task_timeout_s)
        self._memory = own_memory.share() if memory is None else memory
        self._resources = TaskResources(
            task_id, input_partitions, changelog, folder, self._memory, self._stores, self._context, files.checkpoint
        )
        self._lifecycle = TaskLifecycle(task_id)
        self._counters = TaskCounters()
        if self._on_error is not OnError.RAISE:
            self._context.undo = undo = RecordUndo()
            self._function = GuardedFunction(process, self._on_error, undo, self._counters)
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
            shared=transaction,
        )
        self._budgeted = EarlyCommits(
            task_id, self.uncommitted_memory_bytes, self._commit_early, self._context, self._lifecycle
        )
        self._next = self._transaction.next_offsets
        self._input_loop = InputLoop(
            input_partitions,
            changelog,
            self._transaction,
            self._timing,
            process=self.process,
            keep_time=self._keep_time,
            idle=self._stores.idle,
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

    def open(self) -> list[RestoreReport]:
        """Recover each store from its own files, and restore the tail of its changelog. Return a report per store.

        This aborts an open transaction of another instance of the task, and fences that instance. A store that can't
        be trusted is wiped and restored whole; ``reason`` in its report says why.

        Raises: StoreLockedError if another instance has the task's folder, or tasks with another topology are open in
        the directory; ChangelogError over Kafka if an input partition does not exist; StoreMisplacedError unless
        ``automatic_state_relocation``; ChangelogLostError if the changelog is empty but a store was filled from it;
        StoreError inside of the task's own function; as ``open_store``.
        """
        self._check_may_open()
        self._lifecycle.open()
        try:
            self._check_dead_letter_topic()
            self._resources.open_stores(self._budgeted, processes=True)
            self._transaction.open_producer()
            reports = self._stores.restore(self._transaction.committed_position())
            self._stores.rewrite_logs(f"{self.application_id}-{self.task_id}")
            self._context.stores = self._stores.logged(self._context)
            if self._global_stores is not None:
                self._context.stores = {**self._context.stores, **self._global_stores.views()}
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
        self._lifecycle.rebuild()
        offsets, origins = None, None
        try:
            self._resources.open_stores(self._budgeted, processes=False)
            reports = self._stores.restore(self._transaction.committed_position())
            offsets = self._stores.checkpointable_offsets(running=False)
            origins = self._stores.origins(running=False)
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        self._close_all(offsets, origins)
        return reports

    def standby(self) -> StandbyTask:
        """Return the standby copy of the task, which follows the changelogs in this state directory.

        Use it while another instance owns the task, and close it before ``open``, which restores the rest.
        """
        return StandbyTask(self._lifecycle, self._resources, self._stores, self._budgeted)

    def process(self, partition: TopicPartition, record: Record) -> None:
        """Give the function one record of an input partition; may commit.

        If the function raises, everything since the last commit is rolled back, and ``input_offsets`` returns where to
        continue. Tasks that share its memory may commit as well. If one of them fails, its own next call raises the
        error.

        Raises: ValueError for a partition that is no input and for a record that was processed before; the exceptions
        of the function; as ``commit``.
        """
        if self._context.active:
            raise still_processing(self.task_id, "process another one")
        if not self._lifecycle.ready:
            self._transaction.resume()
        if record.offset < self._next.get(partition, sys.maxsize):
            raise unexpected_record(self.task_id, self._next, partition, record)
        context = self._context
        context.partition, context.record, context.active = partition, record, True
        context.written.num_bytes = 0
        timing = self._timing
        time = timing.stream_time
        try:
            if record.timestamp_ms > time.ms:
                time.ms, time.partition = record.timestamp_ms, partition
            self._function(record, context)
            if context.failure is not None:
                raise context.failure
            if time.ms >= timing.punctuation.stream_due_ms:
                timing.punctuation.fire_stream(time.ms, self._punctuate)
            self._stores.advance(partition, record.offset)
        except BaseException as error:
            # Not while a punctuator runs: it has no record.
            if context.record is record:
                error.add_note(origin_note(self.task_id, partition, record))
            self._transaction.roll_back(error)
            raise
        finally:
            context.active = False
        self._next[partition] = record.offset + 1
        transaction = self._transaction
        transaction.processed += 1
        memory, stores, written_bytes = self._memory, self._stores, context.written.num_bytes
        memory.bytes_at_most += written_bytes
        stores.log_room -= written_bytes
        if memory.bytes_at_most > memory.check_above or written_bytes > memory.step_bytes:
            memory.check(self._budgeted, written_bytes)
        if stores.log_room < memory.step_bytes:
            self._keep_to_replay_bound()
        if transaction.processed >= self._commit_every:
            self.commit()
        elif context.commit_requested:
            self._commit_early(EarlyCommitCause.REQUESTED)
        if timing.now_ns() >= timing.due_ns:
            self._keep_time()

    def _keep_to_replay_bound(self) -> None:
        """Commit if the next step could exceed the bound of a changelog, assuming the largest recent step."""
        memory, stores = self._memory, self._stores
        if stores.check_logs(memory.step_bytes) < memory.step_bytes:
            memory.forget_step()
            self._commit_early(EarlyCommitCause.REPLAY)

    def _punctuate(self, punctuator: Punctuator, timestamp_ms: int) -> None:
        context = self._context
        context.partition, context.record = NO_PARTITION, NO_RECORD._replace(timestamp_ms=timestamp_ms)
        self._transaction.punctuated = True
        punctuator(timestamp_ms)
        if context.failure is not None:
            raise context.failure
        self._counters.punctuate_total += 1

    def _keep_time(self) -> None:
        """Call the punctuators that are due by wall clock, and commit if the interval is over."""
        context, timing = self._context, self._timing
        if timing.now_ns() >= timing.punctuation.wall_due_ns:
            context.active = True
            context.written.num_bytes = 0
            try:
                timing.punctuation.fire_wall(self._punctuate)
            except BaseException as error:
                self._transaction.roll_back(error)
                raise
            finally:
                context.active = False
            self._memory.bytes_at_most += context.written.num_bytes
            self._stores.log_room -= context.written.num_bytes
            self._memory.check(self._budgeted, context.written.num_bytes)
            self._keep_to_replay_bound()
            if context.commit_requested:
                self._commit_early(EarlyCommitCause.REQUESTED)
        if timing.interval.is_up():
            self.commit()
            timing.begin_interval()
        timing.plan()

    def run(self, max_records: int | None = None, *, commit: bool = False, wait_s: float = 0.0) -> int:
        """Process up to ``max_records`` records of the input topics, from ``input_offsets`` on.

        Return the number of records by which it has advanced. It ends when there was no input for ``wait_s``; meanwhile
        it commits at each interval and punctuates. With ``commit`` it commits the rest at the end. If the changelog
        does not answer in time, it continues from the last commit by itself, until it has made no progress for
        ``task_timeout_s``.

        Raises: as ``process``; ChangelogTimeoutError after ``task_timeout_s``; OffsetOutOfRangeError if the input no
        longer has the next record of the task; TypeError, ValueError for a bad number of records or seconds.
        Source: KIP-572.
        """
        if max_records is not None and not (type(max_records) is int and max_records >= 0):
            raise ValueError(f"max_records is 0 or more, or None, not {max_records!r}")
        wait_ns = checked_wait_ns(wait_s)
        if self._context.active:
            raise still_processing(self.task_id, "run")
        timeout = TaskTimeout(str(self.task_id), self._task_timeout_s)
        began = -1
        while True:
            try:
                if not self._lifecycle.ready:
                    self._transaction.resume()
                if began < 0:
                    began = self._transaction.done
                self._input_loop.run(sys.maxsize if max_records is None else began + max_records, wait_ns)
                done = self._transaction.done
                if commit:
                    self.commit()
                return done - began
            except TransactionAbortedError:
                continue  # Another task of the transaction has failed: from the last commit on.
            except ChangelogTimeoutError as error:
                timeout.failed(error, self._transaction.done)

    def input_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to process of each input partition."""
        if not self._lifecycle.ready:
            self._transaction.resume()
        return dict(self._next)

    def restore_reports(self) -> list[RestoreReport]:
        """Return the report of each store's last restore, on opening or after a later rollback."""
        return self._stores.reports

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offset of each store's committed state, None if unknown. No file is read."""
        self._lifecycle.check(Call.READ)
        return self._stores.offsets()

    def store(
        self, name: str, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> Any:
        """Return a view of a store of the task, for use outside its function: see ``KeyValueStore.read_only``.

        The default isolation level is that of the store's configuration, or READ_COMMITTED under exactly once. The view
        is a ``KeyValueView`` of bytes, or the typed view of the ``records`` in the configuration.

        The view stays valid if the task reopens or replaces the store. It answers while the task is open. During a
        restore of the store it raises StoreRestoringError.

        Raises: ConfigError if the task has no such store; ValueError for an unknown level; StoreClosedError;
        StoreRestoringError; the error that the task has failed with.
        """
        self._lifecycle.check(Call.READ)
        self._context.store(name)
        return self._stores.view(name, isolation_level, bound)

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
        if self._context.active:
            raise still_processing(self.task_id, "commit")
        if not self._lifecycle.ready:
            self._transaction.resume()
        if self._transaction.is_empty:
            return
        with self._counters.commits:
            self._transaction.commit()

    def _commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, and count the commit if the interval is not over yet."""
        early = not self._timing.interval.is_up()
        self.commit()
        if early:
            self._counters.committed_early(cause)

    def uncommitted_bytes(self) -> int:
        """Return the bytes of keys and values that the task's stores have staged; 0 if the task is not open."""
        return self._stores.uncommitted_bytes() if self._lifecycle.ready else 0

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the open transaction that counts towards the limit; 0 if the task is not open.

        This is ``uncommitted_bytes``, the cost of each staged entry, and that of each record held for the changelog.
        """
        return self._stores.uncommitted_memory_bytes() if self._lifecycle.ready else 0

    @property
    def metrics(self) -> TaskMetrics:
        """The counts of the task and its stores since the task was created, and their present state. A copy.

        On any thread, at any time. Source: KIP-892, "Metrics"; KIP-869.
        """
        return TaskMetrics(
            application=self.application_id,
            task=str(self.task_id),
            stores=self._stores.metrics(),
            process_total=self._transaction.committed,
            standby_lag=self._stores.standby_lag,
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, Mapping[str, int]]:
        """Return the figures of each open store's engine, by the store's name: see ``StateStore.engine_metrics``."""
        return self._stores.engine_metrics()

    def close(self, clean: bool = True) -> None:
        """Close the stores: with ``clean`` after a commit and with a checkpoint, otherwise discarding staged writes.

        A task that has failed is never closed cleanly; nor is a task that its own function closes. May be called more
        than once. Raises the first error, after everything is closed.
        """
        offsets, origins = None, None
        try:
            if clean and self._lifecycle.commits_on_close and not self._context.active:
                self.commit()
                offsets = self._stores.checkpointable_offsets(running=False)
                origins = self._stores.origins(running=False)
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        self._close_all(offsets, origins)

    def _check_may_open(self) -> None:
        self._lifecycle.check(Call.OPEN)
        if self._context.active:
            # Its function has closed it, and the current record would count as processed without its writes.
            raise still_processing(self.task_id, "be opened again")

    def _check_dead_letter_topic(self) -> None:
        if isinstance(self._on_error, DeadLetterTopic) and self._on_error.topic not in self._changelog.topics():
            raise ChangelogError(
                f"the dead-letter topic {self._on_error.topic!r} of task {self.task_id} does not exist: create it "
                "with create_topic()"
            )

    def _make_schedules(self) -> None:
        if self._init is not None:
            self._context.partition, self._context.record = NO_PARTITION, NO_RECORD
            self._init(self._context)

    def _close_all(
        self,
        offsets: Mapping[TopicPartition, int | None] | None = None,
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        self._lifecycle.close()
        self._resources.close(self._budgeted, offsets, origins, close_producer=self._transaction.close_producer)
