"""The transaction of a task over its changelog and its stores: its commit order, and the rollback after an error.

All tasks of a thread may share one transaction of the changelog. A commit then prepares all tasks, commits the
changelog once, and then the stores of each task. An error before the end of the changelog's commit rolls back all.

Source: KIP-129 (exactly once), KIP-844 ("StateStore changes", steps 1 to 5), KIP-892 ("Error Handling"), KIP-447.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from stores.changelog.interface import Changelog, Producer, SharedProducer
from stores.errors import ChangelogTimeoutError, ProducerFencedError, TransactionAbortedError
from stores.failpoints import Part, declare, reach
from stores.interface import Position, TopicPartition
from stores.tasks.context import TaskContext, still_processing
from stores.tasks.identifier import TaskId
from stores.tasks.offset_reset import InputStarts
from stores.tasks.stores.log_follower import AFTER_WRITE, BEFORE_WRITE
from stores.tasks.stores.store_group import (
    AFTER_CHECKPOINT,
    AFTER_LOG_COMMIT,
    AFTER_STORE_COMMIT,
    BETWEEN_STORES,
    StoreGroup,
)
from stores.tasks.task_state import Call, TaskCounters, TaskEvent, TaskLifecycle, TaskState
from stores.tasks.timing import Timing

_log = logging.getLogger(__name__)

BEFORE_LOG_COMMIT = declare(
    "task.before_log_commit", "everything is staged, nothing of it is committed anywhere", part=Part.TASK
)
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
BETWEEN_TASKS = declare(
    "task.between_tasks",
    "the changelog has the commit of several tasks; the stores of some have it, those of others not",
    part=Part.CHANGE,
)


RENEWAL_S = 3_600.0
"""The time after which a task without input commits its offsets again: brokers forget those of a group without members
after their ``offsets.retention.minutes``, 7 days by default."""


class TaskTransaction:
    """The open transaction of one task; a commit or a rollback ends it and begins the next. For one thread.

    ``starts`` says where inputs begin. ``make_schedules`` is called at each beginning from a commit. ``close`` closes
    the task once it is fenced. With ``shared``, all tasks of the thread commit and roll back together.
    """

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        inputs: Sequence[TopicPartition],
        changelog: Changelog,
        stores: StoreGroup,
        context: TaskContext,
        timing: Timing,
        lifecycle: TaskLifecycle,
        counters: TaskCounters,
        *,
        exactly_once: bool,
        make_schedules: Callable[[], None],
        close: Callable[[], None],
        starts: InputStarts,
        shared: ThreadTransaction | None = None,
    ) -> None:
        self.next_offsets: dict[TopicPartition, int] = {}
        """The next offset to process of each input partition."""
        self.processed = 0
        """The records processed in this transaction."""
        self.committed = 0
        """The records committed since the task was created."""
        self.punctuated = False
        """True if a punctuator ran since the last commit: then there is something to commit without any record."""
        self.moved = False
        """True if an input continues elsewhere since the last commit. That is committed without any record, too."""
        self.in_log = False
        """True while the shared transaction may have records of this task."""
        self.task_id, self.group, self.inputs = task_id, application_id, inputs
        self.transactional_id = f"{application_id}-{task_id}"
        self._shared, self._starts = shared, starts
        self.stores, self.context, self.lifecycle, self.counters = stores, context, lifecycle, counters
        self.changelog, self.timing = changelog, timing
        self._exactly_once = exactly_once
        self._renewal_at_s = 0.0
        """The time of the monotonic clock from which on the input offsets are committed again."""
        self._own_producer: Producer | None = None
        self._make_schedules, self._close = make_schedules, close

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        is_idle = not self.processed and not self.punctuated and not self.moved
        return is_idle and (not self.inputs or time.monotonic() < self._renewal_at_s)

    @property
    def done(self) -> int:
        """The number of records processed since the task was created, without those that were rolled back."""
        return self.committed + (self.processed if self.lifecycle.ready else 0)

    @property
    def is_running(self) -> bool:
        """True unless the task is opening, rolling back, failed or closed."""
        return self.lifecycle.state is TaskState.RUNNING

    def open_producer(self) -> None:
        """Open the producer: exactly once, it aborts what another instance has open, and fences that instance."""
        if self._shared is not None:
            self._shared.join(self)
            return
        log = self.changelog
        if not self._exactly_once and any(log.end_offset(at) < log.written_end(at) for at in self.stores.partitions):
            # It may be the transaction of an instance that was exactly once: the next producer of its ID aborts it.
            log.producer(self.transactional_id).close()
        self._open_own_producer()

    def _open_own_producer(self) -> None:
        self._own_producer = self.changelog.producer(self.transactional_id if self._exactly_once else None)
        self.context._producer = self._own_producer

    def close_producer(self) -> None:
        """Release the producer, without a commit. Raises: as ``Producer.close``."""
        if self._shared is not None:
            self._shared.leave(self)
        elif self._own_producer is not None:
            self._own_producer.close()

    def begin(self) -> None:
        """Begin at the last commit of the changelog: input offsets, stream time and schedules. Then the task runs."""
        committed, times_ms = self.changelog.committed(self.group, self.inputs)
        topics = self.changelog.topics()
        # At least once a kill may leave a store with input whose offset is not committed yet.
        lacks_offsets = self._exactly_once and len(committed) < len(self.inputs)
        processed = self.stores.position() if lacks_offsets else {}
        for partition in self.inputs:
            offset = committed.get(partition)
            has_start = offset is not None or partition.topic in topics
            start = self._starts.start(partition, offset, processed.get(partition)) if has_start else 0
            self.next_offsets[partition] = start
        self._begin_next()
        self.moved = self._starts.has_chosen
        timing = self.timing
        timing.begin(times_ms, self.inputs, self._make_schedules)
        self.lifecycle.run()

    def move(self, partition: TopicPartition) -> None:
        """Continue an input that lacks its next offset by ``auto.offset.reset``. Raises: OffsetOutOfRangeError."""
        self.next_offsets[partition] = self._starts.after(partition, self.next_offsets[partition])
        self.moved = True

    def _begin_next(self) -> None:
        self.stores.begin()
        if self._shared is not None:
            self._shared.begin(self)
        elif self._exactly_once:
            self.context._producer.begin()
        self.context._commit_requested = False
        self.context._failure = None
        self.processed, self.punctuated, self.moved = 0, False, False
        self._renewal_at_s = time.monotonic() + RENEWAL_S
        self.timing.begin_interval()

    def committed_position(self) -> Position:
        """Return a position that the changelogs reflect: they are committed with the input offsets, or before them.

        While another instance owns the task, the changelogs may show the records of its last commit a moment later.
        """
        committed = self.changelog.committed_offsets(self.group, self.inputs)
        return _reached({partition: committed.get(partition, 0) for partition in self.inputs})

    def commit(self) -> None:
        """Commit the changelog, then the stores; roll back if the changelog refuses. Raises: as the task's commit."""
        if self._shared is not None:
            self._shared.commit(self)
            return
        producer = self.context._producer
        try:
            self.prepare()
            offsets = producer.commit() if self._exactly_once else producer.flush()
        except BaseException as error:
            self.roll_back(error, in_doubt=True)
            raise
        self.apply(offsets)

    def prepare(self) -> None:
        """Send all that belongs to the transaction. Under exactly once, its input offsets are in it, too."""
        context = self.context
        context._active = True
        self.stores.before_commit()
        context._active = False
        self.stores.finish_logs()
        reach(BEFORE_LOG_COMMIT)
        if self._exactly_once:
            self._send_offsets()

    def apply(self, offsets: Mapping[TopicPartition, int], reached: str = "") -> None:
        """Commit the stores with the changelog's ``offsets``, after the failpoint ``reached``, and begin again."""
        processed = self.processed
        try:
            if reached:
                reach(reached)
            self.stores.commit(offsets, _reached(self.next_offsets))
            if not self._exactly_once:
                self._send_offsets()
        except ChangelogTimeoutError as error:
            self.return_to_commit(error)
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._starts.committed(self.next_offsets)
        self._begin_next()
        self.stores.compact_logs()
        self.stores.upgrade_step()
        try:
            self.stores.swap_upgraded(_reached(self.next_offsets))
        except BaseException as error:
            self._fail(error)
            raise
        self.stores.take_snapshots()
        self.committed += processed

    def _send_offsets(self) -> None:
        self.context._producer.send_offsets(self.group, self.next_offsets, self.timing.stream_time.times_ms())
        self.stores.send_stream_times(self.context._producer)

    def roll_back(self, error: BaseException, *, in_doubt: bool = False) -> None:
        """Roll back to the last commit after ``error``. ``in_doubt``: the changelog may have taken one more commit.

        Errors of the rollback itself are not raised here: they change the task's state.
        """
        if self._shared is None or not self.lifecycle.allows(TaskEvent.ROLL_BACK):
            self.return_to_commit(error, in_doubt=in_doubt)
        else:
            self.context._active = False
            self._shared.roll_back(error, self)

    def return_to_commit(
        self, error: BaseException, *, in_doubt: bool = False, end_error: BaseException | None = None
    ) -> None:
        """Roll back this task alone. ``end_error`` is that of ending a shared transaction in the changelog before."""
        self.context._active = False
        self.context._reports.clear()
        if not self.lifecycle.allows(TaskEvent.ROLL_BACK):
            return  # The function itself has closed the task, or has called a commit that failed.
        self.lifecycle.roll_back()
        # Not the error's text: it may contain values.
        _log.info(
            "task %s rolls back %d records to its last commit, after %s",
            self.task_id,
            self.processed,
            type(error).__name__,
        )
        processed, reached = self.processed, dict(self.next_offsets)
        reached_stores = False
        try:
            if isinstance(error, ProducerFencedError):
                self.counters.rolled_back(processed)
                with suppress(Exception):
                    self.stores.rollback()  # Even if a close fails, readers must not see staged writes any more.
                self._fail(error)
                return
            if end_error is not None:
                raise end_error
            if self._shared is None:
                self._end_own(error, in_doubt=in_doubt)
            reached_stores = True
            self.stores.return_to_commit(error, self.committed_position())
            self.begin()
            # Counted only now, when it is known whether the changelog has taken the records.
            if processed and self.next_offsets == reached:
                self.committed += processed
            else:
                self.counters.rolled_back(processed)
        except ChangelogTimeoutError:
            self.lifecycle.time_out(error, in_doubt=in_doubt)
            with suppress(Exception):
                self.stores.rollback()  # Now, so that nobody reads staged writes until the changelog answers again.
        except BaseException as failure:
            self.counters.rolled_back(processed)
            if not reached_stores:
                with suppress(Exception):
                    self.stores.rollback()  # The producer has failed before the stores were asked to roll back.
            self._fail(failure)
            error.add_note(f"Then task {self.task_id} could not return to its last commit: {failure}")

    def _end_own(self, error: BaseException, *, in_doubt: bool) -> None:
        """End the open transaction in the changelog. A commit that timed out is not in the changelog."""
        if in_doubt and self._exactly_once and not isinstance(error, ChangelogTimeoutError):
            # Opening a producer with the same ID decides it. The restore then writes what the changelog has.
            self._open_own_producer()
        else:
            self.context._producer.abort()

    def resume(self) -> None:
        """Try a pending rollback again; then raise the error of the task's state unless it is running."""
        pending = self.lifecycle.pending_rollback
        if pending is not None:
            error, in_doubt = pending
            if self._shared is not None:
                self._shared.resume(self, error, in_doubt=in_doubt)
            else:
                self.return_to_commit(error, in_doubt=in_doubt)
        self.lifecycle.check(Call.WORK)

    def _fail(self, error: BaseException) -> None:
        self.lifecycle.fail(error)
        if self.lifecycle.state is TaskState.FENCED:
            # Another instance owns the task, and may need its folder.
            try:
                self._close()
            except Exception as failure:
                error.add_note(f"Then task {self.task_id} could not be closed: {failure}")


class ThreadTransaction:
    """The transaction of all tasks of one thread. Give it to each ``StreamTask`` of the thread. For that thread only.

    ``transactional_id`` must be unique among the threads and processes that run at the same time. In Kafka it is the ID
    of the thread's producer, and the process must be a member of the tasks' group (``Changelog.join_group`` with
    ``fencing``). Kafka aborts a transaction that is open for longer than ``timeout_s``; None for the client's setting.
    Closing the last task closes the producer.
    """

    def __init__(self, changelog: Changelog, transactional_id: str, *, timeout_s: float | None = None) -> None:
        self._changelog, self._id, self._timeout_s = changelog, transactional_id, timeout_s
        self._producer: SharedProducer | None = None
        self._parts: dict[str, TaskTransaction] = {}
        self._unsettled: tuple[BaseException, bool] | None = None
        """The error for which the changelog's transaction is still to be ended, and if its commit is in doubt."""
        self._rolling_back = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id!r} of {len(self._parts)} tasks>"

    def join(self, part: TaskTransaction) -> None:
        """Add a task that is about to be restored, once nothing of its older instances is open.

        The others commit before: a restore may take longer than a transaction may. Raises: as ``commit``.
        """
        self._settle()
        self.commit(None)
        if self._producer is None:
            self._producer = self._changelog.shared_producer(self._id, self._timeout_s)
        self._producer.join(part.transactional_id, part.group, part.inputs)
        self._parts[part.transactional_id] = part
        part.context._producer = self._producer.of(part.transactional_id)

    def leave(self, part: TaskTransaction) -> None:
        """Remove a task that is closed. If it has records that are not committed, all tasks roll back.

        Raises: as ``SharedProducer.close``.
        """
        is_member = self._parts.get(part.transactional_id) is part
        if is_member:
            del self._parts[part.transactional_id]
            uncommitted = part.in_log and (part.context._active or not part.is_empty)
            if uncommitted and not self._rolling_back and self._unsettled is None:
                reason = f"task {part.task_id} was closed without a commit"
                self.roll_back(TransactionAbortedError(f"the transaction is rolled back: {reason}"), None)
        producer = self._producer
        if producer is None:
            return
        try:
            if is_member:
                producer.leave(part.transactional_id)
        finally:
            if not self._parts:
                # The next producer of the ID decides what is still open.
                self._producer = self._unsettled = None
                producer.close()

    def begin(self, part: TaskTransaction) -> None:
        """Let a task be part of the open transaction; open it if none is."""
        assert self._producer is not None
        self._producer.begin()
        part.in_log = True

    def commit(self, first: TaskTransaction | None) -> None:
        """Commit all tasks that have something to commit: their changelogs as one, then the stores of each.

        The call is that of task ``first``. Another task whose stores can't commit raises its error in its own next
        call. Raises: as ``StreamTask.commit``; TransactionAbortedError if another task made this one roll back.
        """
        parts = [part for part in self._parts.values() if part.is_running and not part.is_empty]
        for part in self._parts.values():
            if part.context._active:
                raise still_processing(part.task_id, "commit")
        if not parts:
            return
        assert self._producer is not None
        own_failure: BaseException | None = None
        with ExitStack() as timed:
            for part in parts:
                if part is not first:
                    timed.enter_context(part.counters.commits)
            try:
                for part in parts:
                    part.prepare()
                offsets = self._producer.commit()
            except BaseException as error:
                self.roll_back(error, first, in_doubt=True)
                if isinstance(error, ProducerFencedError) and first is not None and not self._is_fenced(first, error):
                    raise self._aborted(error) from error
                raise
            for part in parts:
                part.in_log = False
            for number, part in enumerate(parts):
                try:
                    part.apply(offsets, BETWEEN_TASKS if number else "")
                except BaseException as error:
                    # Another task is in the state of its error, and raises it by itself.
                    if part is first or not isinstance(error, Exception):
                        own_failure = own_failure or error
        if own_failure is not None:
            raise own_failure

    def resume(self, part: TaskTransaction, error: BaseException, *, in_doubt: bool) -> None:
        """Try the pending rollback of a task again."""
        part.return_to_commit(error, in_doubt=in_doubt, end_error=self._try_to_settle())

    def roll_back(self, error: BaseException, first: TaskTransaction | None, *, in_doubt: bool = False) -> None:
        """Roll back all tasks after an error of ``first``. Others that lose records raise it in their next call."""
        parts = [part for part in self._parts.values() if part.is_running or part is first]
        _log.info("%d tasks of one transaction roll back, after %s", len(parts), type(error).__name__)
        self._unsettled = error, in_doubt
        self._rolling_back = True
        try:
            failure = self._try_to_settle()
            for part in parts:
                fenced = isinstance(error, ProducerFencedError)
                if self._is_fenced(part, error) if fenced else part is first:
                    part.return_to_commit(error, in_doubt=in_doubt, end_error=failure)
                    continue
                aborted, has_lost = self._aborted(error), not part.is_empty
                part.return_to_commit(aborted, in_doubt=in_doubt, end_error=failure)
                if has_lost and part is not first:
                    part.lifecycle.defer(aborted)
        finally:
            self._rolling_back = False

    def _try_to_settle(self) -> BaseException | None:
        """End the transaction in the changelog; return the error if that fails. It stays to be done then."""
        try:
            self._settle()
        except BaseException as failure:
            return failure
        return None

    def _settle(self) -> None:
        if self._unsettled is None or self._producer is None:
            return
        error, in_doubt = self._unsettled
        # A commit that timed out is not in the changelog, nor is that of a fenced producer.
        if in_doubt and not isinstance(error, ChangelogTimeoutError | ProducerFencedError):
            self._producer.renew()
        else:
            self._producer.abort()
        self._unsettled = None
        for transactional_id, part in self._parts.items():
            part.in_log = False
            part.context._producer = self._producer.of(transactional_id)

    def _is_fenced(self, part: TaskTransaction, error: BaseException) -> bool:
        assert isinstance(error, ProducerFencedError)
        # A log that names no ID has one producer for all.
        return error.transactional_id in ("", self._id, part.transactional_id)

    def _aborted(self, error: BaseException) -> TransactionAbortedError:
        aborted = TransactionAbortedError(
            "the transaction of the tasks of this thread is rolled back, after the error of another one "
            f"({type(error).__name__}): continue from input_offsets()"
        )
        aborted.__cause__ = error
        return aborted


def _reached(next_offsets: Mapping[TopicPartition, int]) -> Position:
    """The position of a task that continues with ``next_offsets``."""
    return {partition: offset - 1 for partition, offset in next_offsets.items() if offset > 0}
