"""A task: a function over records, with stores that follow their changelogs, and a commit order that survives."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from os import PathLike
from typing import Any

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.counters import TaskCounters
from stores.directory import checked_path
from stores.errors import (
    ChangelogTimeoutError,
    ProducerFencedError,
    StoreClosedError,
    StoreError,
    StoreRestoringError,
)
from stores.failpoints import declare, reach
from stores.interface import (
    IsolationLevel,
    Position,
    PositionBound,
    ProcessingGuarantee,
    TopicPartition,
)
from stores.metrics import EarlyCommitCause, TaskMetrics
from stores.registry import backend_named
from stores.tasks.attempts import Attempts
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.clock import Clock, SystemClock
from stores.tasks.commit_interval import check_commit_every, checked_commit_interval_ms
from stores.tasks.common_settings import common_guarantee, lowest_uncommitted_max_bytes
from stores.tasks.context import NO_PARTITION, NO_RECORD, InitFunction, ProcessFunction, TaskContext
from stores.tasks.directory_layout import DirectoryLayout, read_layout
from stores.tasks.entrance import Entrance
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import BudgetShare, MemoryBudget
from stores.tasks.names import check_application, check_inputs, check_stores
from stores.tasks.origin_file import Origin, OriginFile
from stores.tasks.punctuation import Punctuator
from stores.tasks.restore import AFTER_WRITE, BEFORE_WRITE, OnRestore, RestoreReport
from stores.tasks.split_files import SplitCheckpoint, SplitOrigins
from stores.tasks.state_directory import CHECKPOINT_FILE, ORIGIN_FILE, StateDirectory
from stores.tasks.store_group import AFTER_CHECKPOINT, AFTER_LOG_COMMIT, AFTER_STORE_COMMIT, BETWEEN_STORES, StoreGroup
from stores.tasks.task_store import TaskStore
from stores.tasks.task_timeout import TASK_TIMEOUT_S, TaskTimeout, checked_task_timeout_s, checked_wait_ns
from stores.tasks.timing import Timing
from stores.tasks.topology import Topology, check_relocation

BEFORE_LOG_COMMIT = declare("task.before_log_commit", "everything is staged, nothing of it is committed anywhere")
FAILPOINTS = (
    BEFORE_LOG_COMMIT,
    AFTER_LOG_COMMIT,
    BETWEEN_STORES,
    AFTER_STORE_COMMIT,
    AFTER_CHECKPOINT,
    BEFORE_WRITE,
    AFTER_WRITE,
)
"""What a task's commits and restores reach, in this order, beside those of its changelog and stores."""

_POLL_NS = 20_000_000
"""How often ``run`` looks for new input while it waits."""
_RUN_RECORDS = 10_000
"""Input is read in stretches: a read pins the log's past for as long as it lasts."""


class StreamTask:
    """A function over input partitions, with stores; open it, give it records, commit, close it. For one thread.

    Each of ``stores`` lies in ``state_dir/TASK/ENGINE/NAME``, and ``state_dir/TASK`` is locked while the task is open.
    One that an earlier release has left in ``state_dir/TASK/NAME`` is moved there at ``open``. In a directory of the
    layout ``store-partition`` it lies in ``state_dir/NAME/PARTITION/ENGINE`` (``change_layout``). A store follows the
    changelog topic ``APPLICATION-NAME-changelog``, partition ``task_id.partition``, made where there is none. Input
    offsets are committed for the group ``application_id``. Commits come after ``commit_every_records`` records, when
    ``commit_interval_ms`` is over, when the function asks for one, at ``commit``, and before the stores together take
    more memory for it than they may: the lowest ``uncommitted_max_bytes`` among them, or ``memory``, which the tasks of
    one thread share (``MemoryBudget``), and then all of these commit.

    ``commit_interval_ms`` is 100 under exactly once and 30,000 else, unless it is given; ``NO_INTERVAL`` (-1) for none.
    The clock is checked after each record and by ``run``; without calls of ``process`` or ``run`` nothing is committed.

    ``init`` is called at ``open`` with the context that ``process`` is given, and makes the schedules of punctuators
    (``TaskContext.schedule``). Both may be methods of one object of yours.

    ``guarantee`` is what the stores' configurations say (``processing.guarantee``) unless it is given, and exactly once
    where nobody says anything.

    ``verify_stores`` reads each store whole when the task is opened (``StateStore.verify``): one with damaged files is
    wiped and restored, as where damage shows at once. It takes the time of some scans of all there is.

    ``task_timeout_s`` is how long ``run`` tries again where the changelog does not answer in time; 0 for not at all.

    ``topology`` is that of the whole application: at ``open`` stores of any task that lie under another sub-topology's
    number are moved to their tasks, without a replay (``stores.tasks.relocation``), or, with
    ``automatic_state_relocation=False``, refused. All tasks that are open in the directory have the same.

    ``wipe_unclean=False`` is for showing what exactly-once would be worth without the wipe; never use it in earnest.

    Source: KIP-129 (exactly once), KIP-844 ("StateStore changes", steps 1 to 5), KIP-892 ("Atomic Checkpointing").
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
    ) -> None:
        for name, config in stores.items():
            if not isinstance(config, StoreConfig):
                raise TypeError(f"store {name!r} needs a StoreConfig, not {type(config).__name__}")
        if not isinstance(task_id, TaskId):
            raise TypeError(f"a task's id is a TaskId, not {type(task_id).__name__}")
        check_application(application_id)
        check_stores(stores)
        check_relocation(topology, automatic_state_relocation)
        if topology is not None:
            topology.check_task(task_id.subtopology, stores, [topic for topic, _ in inputs])
        if commit_every_records is not None:
            check_commit_every(commit_every_records)
        self.application_id = application_id
        self.task_id = task_id
        self.guarantee = common_guarantee(guarantee, stores.values())
        self._exactly_once = self.guarantee is ProcessingGuarantee.EXACTLY_ONCE
        self._transactional_id = f"{application_id}-{task_id}" if self._exactly_once else None
        self._changelog = changelog
        self._function, self._init = process, init
        self._inputs = tuple(TopicPartition(*partition) for partition in inputs)
        check_inputs(self._inputs)
        self._state = StateDirectory(checked_path(state_dir))
        folder = self._state.folder(task_id)
        layout = read_layout(self._state.path)
        paths = {
            name: self._state.store_folder(task_id, config.backend, name, layout) for name, config in stores.items()
        }
        partitions = {name: TopicPartition(f"{application_id}-{name}-changelog", task_id.partition) for name in stores}
        homes = {name: self._state.home(task_id, name, layout) for name in stores}
        checkpoints = {name: CheckpointFile(home / CHECKPOINT_FILE) for name, home in homes.items()}
        self._checkpoint: CheckpointFile | SplitCheckpoint = CheckpointFile(folder / CHECKPOINT_FILE)
        origins: OriginFile | SplitOrigins = OriginFile(folder / ORIGIN_FILE)
        if layout is DirectoryLayout.STORE_PARTITION:
            files = {partitions[name]: file for name, file in checkpoints.items()}
            self._checkpoint = SplitCheckpoint(self._checkpoint.path, files)
            origins = SplitOrigins({name: OriginFile(home / ORIGIN_FILE) for name, home in homes.items()})
        kept = {name: paths[name] for name, config in stores.items() if backend_named(config.backend).persistent}
        self._entrance = Entrance(
            application_id, self._state, layout, task_id, kept, topology, automatic=automatic_state_relocation
        )
        members = [
            TaskStore(
                name,
                paths[name],
                # The level of readers that don't ask for one goes by what the task promises.
                replace(config, processing_guarantee=self.guarantee),
                partitions[name],
                changelog,
                checkpoints[name],
                exactly_once=self._exactly_once,
                wipe_unclean=wipe_unclean,
                verify=verify_stores,
            )
            for name, config in stores.items()
        ]
        self._stores = StoreGroup(members, self._checkpoint, origins, on_restore, exactly_once=self._exactly_once)
        self._commit_every = sys.maxsize if commit_every_records is None else commit_every_records
        interval_ms = checked_commit_interval_ms(commit_interval_ms, self.guarantee)
        own_memory = MemoryBudget(lowest_uncommitted_max_bytes(stores.values()))
        self._timing = Timing(application_id, interval_ms, SystemClock() if clock is None else clock)
        self._context = TaskContext(task_id, changelog, self._timing.punctuation, self._timing.stream_time)
        self._task_timeout_s = checked_task_timeout_s(task_timeout_s)
        self._memory = own_memory.share() if memory is None else memory
        self._ready = False
        self._failure: BaseException | None = None
        self._unsettled: tuple[BaseException, bool] | None = None
        self._owed: Exception | None = None
        """What went wrong while another task's caller was served; this one's is told at the next call."""
        self._next: dict[TopicPartition, int] = {}
        self._processed = self._committed = 0
        self._punctuated = False
        """Whether a punctuator ran since the last commit, which then has something to commit without any record."""
        self._counters = TaskCounters()

    def open(self) -> list[RestoreReport]:
        """Recover each store from its own files, and restore the tail of its changelog; one report per store.

        Aborts what another instance of this task has left open, and fences that instance. Where a store can't be
        trusted (see the report's ``reason``), it is wiped and restored whole.

        Raises: StoreLockedError where another instance has the task's folder, or the directory with another topology;
        StoreMisplacedError unless ``automatic_state_relocation``; ChangelogLostError where the changelog is
        not what its stores were filled from, and as ``open_store``.
        """
        if self._entrance.is_entered:
            raise StoreError(f"task {self.task_id} is open already")
        self._failure = self._unsettled = self._owed = None
        self._entrance.enter(self)
        try:
            self._memory.add(self)
            self._create_topics()
            self._stores.open()
            self._context.producer = self._changelog.producer(self._transactional_id)
            reports = self._stores.restore(self._committed_position())
            self._context.register(self._stores.logged(self._context))
            self._begin()
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        return reports

    def rebuild(self) -> list[RestoreReport]:
        """Bring the stores to their changelogs' end while another instance owns the task, and close them.

        For ``upgrade.mode=roll_over``: the new instance has a state directory of its own, and calls this as often as it
        likes while the old instance works. Each call restores what was committed since the one before. Once the old
        instance has stopped, ``open`` restores the rest. One report per store.

        Raises: as ``open``. Source: KIP-258, first draft, "Roll-over Upgrade".
        """
        if self._entrance.is_entered:
            raise StoreError(f"task {self.task_id} is open already")
        self._entrance.enter(self)
        offsets, origins = None, None
        try:
            self._create_topics()
            self._stores.open()
            reports = self._stores.restore(self._committed_position())
            offsets = self._stores.vouched_offsets(running=False)
            origins = self._stores.origins(running=False)
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        self._close_all(offsets, origins)
        return reports

    def process(self, partition: TopicPartition, record: Record) -> None:
        """Give the function one record of an input partition; may commit.

        Where the function raises, everything since the last commit is undone, and ``input_offsets`` tells where to
        go on from. Raises: ValueError for a partition that is no input and for a record that was processed before,
        what the function raises, and as ``commit``. Tasks that share its memory may commit as well; what one of them
        fails with, its own next call raises.
        """
        if not self._ready:
            self._settle()
        if record.offset < self._next.get(partition, sys.maxsize):
            raise self._unexpected(partition, record)
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
            self._fall_back(error)
            raise
        finally:
            context.active = False
        self._next[partition] = record.offset + 1
        self._processed += 1
        memory, stores, written_bytes = self._memory, self._stores, context.written.num_bytes
        memory.bytes_at_most += written_bytes
        stores.log_room -= written_bytes
        if memory.bytes_at_most > memory.look_above or written_bytes > memory.step_bytes:
            memory.look(self, written_bytes)
        if stores.log_room < memory.step_bytes:
            self._keep_to_replay_bound()
        if self._processed >= self._commit_every:
            self.commit()
        elif context.commit_requested:
            self._commit_early(EarlyCommitCause.REQUESTED)
        if timing.now_ns() >= timing.due_ns:
            self._keep_time()

    def _keep_to_replay_bound(self) -> None:
        """Commit if one more step like the largest of the recent ones could take a changelog beyond its bound."""
        memory, stores = self._memory, self._stores
        if stores.look_at_logs(memory.step_bytes) < memory.step_bytes:
            memory.forget_step()
            self._commit_early(EarlyCommitCause.REPLAY)

    def _punctuate(self, punctuator: Punctuator, timestamp_ms: int) -> None:
        context = self._context
        context.partition, context.record = NO_PARTITION, NO_RECORD._replace(timestamp_ms=timestamp_ms)
        self._punctuated = True
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
                self._fall_back(error)
                raise
            finally:
                context.active = False
            self._memory.bytes_at_most += context.written.num_bytes
            self._stores.log_room -= context.written.num_bytes
            self._memory.look(self, context.written.num_bytes)
            self._keep_to_replay_bound()
            if context.commit_requested:
                self._commit_early(EarlyCommitCause.REQUESTED)
        if timing.interval.is_up():
            self.commit()
            timing.begin_interval()
        timing.plan()

    def run(self, max_records: int | None = None, *, commit: bool = False, wait_s: float = 0.0) -> int:
        """Process what the input topics of the changelog have beyond ``input_offsets``, up to ``max_records``.

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
        timeout = TaskTimeout(str(self.task_id), self._task_timeout_s)
        began = -1
        while True:
            try:
                if not self._ready:
                    self._settle()
                if began < 0:
                    began = self._done()
                self._run(sys.maxsize if max_records is None else began + max_records, wait_ns)
                done = self._done()
                if commit:
                    self.commit()
                return done - began
            except ChangelogTimeoutError as error:
                timeout.failed(error, self._done())

    def _run(self, done_at_most: int, wait_ns: int) -> None:
        """Process input until ``done_at_most`` records are done, or there was no input for ``wait_ns``."""
        timing = self._timing
        ends_ns = -1
        while True:
            got_on = self._go_over_inputs(done_at_most)
            now_ns = timing.now_ns()
            if now_ns >= timing.due_ns:
                self._keep_time()
            if got_on or ends_ns < 0:
                ends_ns = now_ns + wait_ns
            if self._done() >= done_at_most or (not got_on and now_ns >= ends_ns):
                return
            if not got_on:
                timing.clock.sleep(max(0, min(_POLL_NS, ends_ns - now_ns, timing.due_ns - now_ns)) / 1_000_000_000)

    def _go_over_inputs(self, done_at_most: int) -> bool:
        """Process some records of each input; return whether there were any."""
        got_on = False
        for partition in self._inputs:
            left = min(done_at_most - self._done(), _RUN_RECORDS)
            for record in list(islice(self._changelog.read(partition, self._next[partition]), left)):
                self.process(partition, record)
                got_on = True
        return got_on

    def _done(self) -> int:
        """How many records the task has processed since it was made, without those whose effects were undone."""
        return self._committed + (self._processed if self._ready else 0)

    def input_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to process of each input partition."""
        if not self._ready:
            self._settle()
        return dict(self._next)

    def restore_reports(self) -> list[RestoreReport]:
        """What the last restore of each store did: that of opening, or of a later return to the last commit."""
        return self._stores.reports

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """The offset that each store's committed state is at, None if unknown; read from no file."""
        if not self._stands:
            raise self._unready()
        return self._stores.offsets()

    def store(
        self, name: str, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> Any:
        """A store of the task, to look into from outside its function, as ``KeyValueStore.read_only``: at the level
        that the store's configuration says, READ_COMMITTED under exactly once unless it is set, or at another one. A
        ``KeyValueView`` of bytes, or the typed view of the ``records`` in its configuration.

        It outlasts whatever the task does to the store, and is answered while the task is open; StoreRestoringError is
        raised while the store is brought back to its changelog's end.

        Raises: ConfigError where the task has no store of that name, ValueError for a level that does not exist,
        StoreClosedError, StoreRestoringError; what the task has failed with.
        """
        if not self._stands:
            raise self._unready()
        self._context.store(name)
        return self._stores.view(name, isolation_level, bound)

    def commit(self) -> None:
        """Commit outputs, changelogs and input offsets, then the stores; do nothing if nothing was processed.

        Where the changelog refuses, everything since the last commit is undone, and no store that keeps its writes
        apart is wiped for that; where it does not even answer to that in time, the next call tries again. Where a
        store fails after the changelog took the commit, its tail is replayed, and the commit is none the worse.

        Raises: ChangelogTimeoutError, after which ``input_offsets`` tells where to go on from; ProducerFencedError
        where another instance owns the task now, and this one has closed; ChangelogError; a store's error where it
        can't go on: close the task and open it again.
        """
        if not self._ready:
            self._settle()
        processed = self._processed
        if not processed and not self._punctuated:
            return
        with self._counters.commits:
            self._commit()
        self._committed += processed

    def _commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, and count the commit if the interval is not over yet."""
        early = not self._timing.interval.is_up()
        self.commit()
        if early:
            self._counters.committed_early(cause)

    def _commit(self) -> None:
        context = self._context
        producer = context.producer
        try:
            context.active = True
            self._stores.before_commit()
            context.active = False
            self._stores.finish_logs()
            reach(BEFORE_LOG_COMMIT)
            if self._exactly_once:
                self._send_offsets()
                offsets = producer.commit()
            else:
                offsets = producer.flush()
        except BaseException as error:
            self._fall_back(error, in_doubt=True)
            raise
        try:
            self._stores.commit(offsets, _reached(self._next))
            if not self._exactly_once:
                self._send_offsets()
        except ChangelogTimeoutError as error:
            self._fall_back(error)
            raise
        except BaseException as error:
            self._give_up(error)
            raise
        self._begin_transaction()
        self._stores.compact_logs()
        self._stores.upgrade_step()

    def _send_offsets(self) -> None:
        # At least once these are two commits, in this order: after a crash a punctuator may run twice, but is never
        # skipped.
        self._context.producer.send_offsets(self.application_id, self._next)
        stream_time = self._timing.stream_time
        times = stream_time.uncommitted()
        if times:
            self._context.producer.send_offsets(stream_time.group, times)

    def commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit for the sake of the memory that tasks share, unless a record is being processed."""
        if not self._context.active:
            self._commit_early(cause)

    def commit_beside(self, cause: EarlyCommitCause) -> None:
        """As ``commit_early``, while another task is given a record: what goes wrong is raised by this one's next call.

        Not here, where it would reach who has nothing to do with it; and told it must be, or whoever gives this task
        its records would go on after those that were undone.
        """
        try:
            self.commit_early(cause)
        except Exception as error:
            error.add_note(f"Task {self.task_id} was committing early, for the memory that its worker's tasks share.")
            self._owed, self._ready = error, False

    def uncommitted_bytes(self) -> int:
        """Bytes of keys and values that the task's stores have staged; 0 where it is not open."""
        return self._stores.uncommitted_bytes() if self._ready else 0

    def uncommitted_memory_bytes(self) -> int:
        """What the open transaction counts towards the limit: ``uncommitted_bytes``, what each staged entry takes of
        memory beside them, and each record that is held for the changelog; 0 where the task is not open."""
        return self._stores.uncommitted_memory_bytes() if self._ready else 0

    @property
    def metrics(self) -> TaskMetrics:
        """What the task and its stores have counted since the task was made, and what they hold now. A copy.

        On any thread, at any time. Source: KIP-892, "Metrics"; KIP-869.
        """
        return TaskMetrics(
            application=self.application_id,
            task=str(self.task_id),
            stores=self._stores.metrics(),
            process_total=self._committed,
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, Mapping[str, int]]:
        """Figures of the engine of each open store, by the store's name: see ``StateStore.engine_metrics``."""
        return self._stores.engine_metrics()

    def close(self, clean: bool = True) -> None:
        """Close the stores: after a commit and with a checkpoint, or, unless ``clean``, dropping what is staged.

        A task that has failed is never closed cleanly. May be called more than once. Raises the first error, after
        everything is closed.
        """
        offsets, origins = None, None
        try:
            if clean and (self._ready or self._owed is not None):
                self.commit()
                offsets = self._stores.vouched_offsets(running=False)
                origins = self._stores.origins(running=False)
        except BaseException:
            with suppress(Exception):
                self._close_all()
            raise
        self._close_all(offsets, origins)

    def _create_topics(self) -> None:
        existing = self._changelog.topics()
        # As many partitions as the inputs have, so that the tasks of all of them find theirs. Source: Kafka Streams,
        # changelog topics get the largest number of partitions of their sub-topology's inputs.
        count = max([self.task_id.partition + 1, *(existing.get(partition.topic, 0) for partition in self._inputs)])
        for partition in self._stores.partitions:
            if partition.topic not in existing:
                self._changelog.create_topic(partition.topic, count)

    def _begin(self) -> None:
        committed = self._changelog.committed_offsets(self.application_id)
        topics = self._changelog.topics()
        for partition in self._inputs:
            default = self._changelog.start_offset(partition) if partition.topic in topics else 0
            self._next[partition] = committed.get(partition, default)
        self._begin_transaction()
        timing = self._timing
        committed_ms = self._changelog.committed_offsets(timing.stream_time.group)
        timing.begin(committed_ms, self._inputs, self._make_schedules)
        self._ready = True

    def _make_schedules(self) -> None:
        if self._init is not None:
            self._context.partition, self._context.record = NO_PARTITION, NO_RECORD
            self._init(self._context)

    def _committed_position(self) -> Position:
        """What the changelogs reflect at least: they are committed together with the input's offsets, or before."""
        committed = self._changelog.committed_offsets(self.application_id)
        return _reached({partition: committed.get(partition, 0) for partition in self._inputs})

    def _begin_transaction(self) -> None:
        self._stores.begin()
        if self._exactly_once:
            self._context.producer.begin()
        self._context.commit_requested = False
        self._context.failure = None
        self._processed, self._punctuated = 0, False
        self._timing.begin_interval()

    def _fall_back(self, error: BaseException, *, in_doubt: bool = False) -> None:
        """Return everything to the last commit; ``in_doubt`` where the changelog may or may not have taken another."""
        self._ready = False
        self._context.active = False
        self._unsettled = None
        processed, reached = self._processed, dict(self._next)
        try:
            if isinstance(error, ProducerFencedError):
                self._counters.rolled_back(processed)
                with suppress(Exception):
                    self._stores.rollback()  # Where one can't even be closed, its readers see no more of it.
                self._give_up(error)
                return
            # What has timed out is not in the changelog.
            if in_doubt and self._exactly_once and not isinstance(error, ChangelogTimeoutError):
                # Opening a producer of the same id settles it; what the changelog has then, the restore brings.
                self._context.producer = self._changelog.producer(self._transactional_id)
            else:
                self._context.producer.abort()
            self._stores.fall_back(error, self._committed_position())
            self._begin()
            # Counted once it is settled whether the changelog has taken them.
            if processed and self._next == reached:
                self._committed += processed
            else:
                self._counters.rolled_back(processed)
        except ChangelogTimeoutError:
            self._unsettled = error, in_doubt
            with suppress(Exception):
                self._stores.rollback()  # Now, so that nobody reads what is undone while the changelog is away.
        except BaseException as failure:
            self._counters.rolled_back(processed)
            self._give_up(failure)
            error.add_note(f"Then task {self.task_id} could not return to its last commit: {failure}")

    def _settle(self) -> None:
        """Try again to return to the last commit, where the changelog did not answer in time; else say what is up."""
        if self._unsettled is not None:
            self._fall_back(self._unsettled[0], in_doubt=self._unsettled[1])
        if self._owed is not None and self._unsettled is None:
            self._ready = self._stands
            error, self._owed = self._owed, None
            raise error
        if not self._ready:
            raise self._unready()

    @property
    def _stands(self) -> bool:
        """Whether the task is at a commit from which it can go on, though it may owe its caller an error."""
        return self._ready or (self._owed is not None and self._unsettled is None and self._failure is None)

    def _give_up(self, error: BaseException) -> None:
        self._ready = False
        self._failure, self._unsettled = error, None
        if isinstance(error, ProducerFencedError):
            # Nothing here is the task's any more, and its folder may be wanted.
            try:
                self._close_all()
            except Exception as failure:
                error.add_note(f"Then task {self.task_id} could not be closed: {failure}")

    def _close_all(
        self,
        offsets: Mapping[TopicPartition, int | None] | None = None,
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        """Close everything, even after errors; then raise the first error.

        Without an error write ``offsets``, and after them ``origins``: a store may only be called clean if it has a
        checkpoint.
        """
        self._ready = False
        self._context.record = NO_RECORD
        self._memory.discard(self)
        self._unsettled = self._owed = None
        attempts = Attempts()
        try:
            with attempts.one():
                self._stores.close()
            with attempts.one():
                if hasattr(self._context, "producer"):
                    self._context.producer.close()
            if offsets is not None and not attempts.failed:
                with attempts.one():
                    self._checkpoint.write(offsets)
            if origins is not None and not attempts.failed:
                with attempts.one():
                    self._stores.note(origins)
        finally:
            self._entrance.leave()
        attempts.end()

    def _unready(self) -> StoreError:
        if self._unsettled is not None:
            late = ChangelogTimeoutError(
                f"the changelog does not answer, and task {self.task_id} can't return to its last commit: try again"
            )
            late.__cause__ = self._unsettled[0]
            return late
        if isinstance(self._failure, ProducerFencedError):
            return ProducerFencedError(f"task {self.task_id} is owned by another instance now; this one is closed")
        if self._failure is not None:
            error = StoreError(f"task {self.task_id} has failed ({self._failure}): close it and open it again")
            error.__cause__ = self._failure
            return error
        if self._entrance.is_entered:
            return StoreRestoringError(f"task {self.task_id} is returning to its last commit: ask again later")
        return StoreClosedError(f"task {self.task_id} is not open: open() it first")

    def _unexpected(self, partition: TopicPartition, record: Record) -> ValueError:
        if partition not in self._next:
            return ValueError(
                f"{partition} is no input of task {self.task_id}; it has: {', '.join(map(str, self._inputs))}"
            )
        return ValueError(
            f"record {record.offset} of {partition} was processed before: the next one is {self._next[partition]}"
        )


def _reached(next_offsets: Mapping[TopicPartition, int]) -> Position:
    """The position of who goes on with ``next_offsets``."""
    return {partition: offset - 1 for partition, offset in next_offsets.items() if offset > 0}
