"""The transaction of a task over its changelog and its stores: its commit order, and the rollback after an error.

Source: KIP-129 (exactly once), KIP-844 ("StateStore changes", steps 1 to 5), KIP-892 ("Error Handling").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

from stores.changelog.interface import Changelog, Producer
from stores.errors import ChangelogTimeoutError, ProducerFencedError
from stores.failpoints import Part, declare, reach
from stores.interface import Position, TopicPartition
from stores.tasks.context import TaskContext
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
from stores.tasks.task_counters import TaskCounters
from stores.tasks.task_state import Call, Event, TaskLifecycle, TaskState
from stores.tasks.thread_transaction import ThreadTransaction
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
        self._changelog, self._stores = changelog, stores
        self._context, self._timing = context, timing
        self._lifecycle, self._counters = lifecycle, counters
        self._exactly_once = exactly_once
        self._make_schedules, self._close = make_schedules, close

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not self.processed and not self.punctuated and not self.moved

    @property
    def done(self) -> int:
        """The number of records processed since the task was created, without those that were rolled back."""
        return self.committed + (self.processed if self._lifecycle.ready else 0)

    @property
    def changelogs(self) -> Sequence[TopicPartition]:
        """The changelog partitions of the task's stores."""
        return self._stores.partitions

    @property
    def is_running(self) -> bool:
        """True unless the task is opening, rolling back, failed or closed."""
        return self._lifecycle.state is TaskState.RUNNING

    @property
    def is_processing(self) -> bool:
        """True while the function or a punctuator runs."""
        return self._context.active

    @property
    def commits(self) -> AbstractContextManager[None]:
        """The timer of the task's commits."""
        return self._counters.commits

    def open_producer(self) -> None:
        """Open the changelog's producer.

        Under exactly once, this aborts an open transaction of another instance, and fences that instance.
        """
        if self._shared is not None:
            self._shared.join(self)
        else:
            self._open_own_producer()

    def _open_own_producer(self) -> None:
        self.take(self._changelog.producer(self.transactional_id if self._exactly_once else None))

    def take(self, producer: Producer) -> None:
        """Write to this producer from now on."""
        self._context.producer = producer

    def close_producer(self) -> None:
        """Release the producer, without a commit. Raises: as ``Producer.close``."""
        if self._shared is not None:
            self._shared.leave(self)
        elif hasattr(self._context, "producer"):
            self._context.producer.close()

    def begin(self) -> None:
        """Begin at the last commit of the changelog: input offsets, stream time and schedules. Then the task runs."""
        committed = self._changelog.committed_offsets(self.group, self.inputs)
        topics = self._changelog.topics()
        for partition in self.inputs:
            offset = committed.get(partition)
            known = offset is not None or partition.topic in topics
            self.next_offsets[partition] = self._starts.start(partition, offset) if known else 0
        self._begin_next()
        self.moved = self._starts.has_chosen
        timing = self._timing
        committed_ms = self._changelog.committed_offsets(timing.stream_time.group, self.inputs)
        timing.begin(committed_ms, self.inputs, self._make_schedules)
        self._lifecycle.run()

    def move(self, partition: TopicPartition) -> None:
        """Continue an input, which does not have its next offset, by ``auto.offset.reset``.

        Raises: OffsetOutOfRangeError.
        """
        self.next_offsets[partition] = self._starts.after(partition, self.next_offsets[partition])
        self.moved = True

    def _begin_next(self) -> None:
        self._stores.begin()
        if self._shared is not None:
            self._shared.begin(self)
        elif self._exactly_once:
            self._context.producer.begin()
        self._context.commit_requested = False
        self._context.failure = None
        self.processed, self.punctuated, self.moved = 0, False, False
        self._timing.begin_interval()

    def committed_position(self) -> Position:
        """Return a position that the changelogs reflect: they are committed with the input offsets, or before them."""
        committed = self._changelog.committed_offsets(self.group, self.inputs)
        return _reached({partition: committed.get(partition, 0) for partition in self.inputs})

    def commit(self) -> None:
        """Commit the changelog, then the stores; roll back if the changelog refuses. Raises: as the task's commit."""
        if self._shared is not None:
            self._shared.commit(self)
            return
        producer = self._context.producer
        try:
            self.prepare()
            offsets = producer.commit() if self._exactly_once else producer.flush()
        except BaseException as error:
            self.roll_back(error, in_doubt=True)
            raise
        self.apply(offsets)

    def prepare(self) -> None:
        """Send all that belongs to the transaction. Under exactly once, its input offsets are in it, too."""
        context = self._context
        context.active = True
        self._stores.before_commit()
        context.active = False
        self._stores.finish_logs()
        reach(BEFORE_LOG_COMMIT)
        if self._exactly_once:
            self._send_offsets()

    def apply(self, offsets: Mapping[TopicPartition, int], reached: str = "") -> None:
        """Commit the stores with the offsets of the changelog's commit, and begin the next transaction.

        It passes the failpoint ``reached`` before. Raises: as the task's commit.
        """
        processed = self.processed
        try:
            if reached:
                reach(reached)
            self._stores.commit(offsets, _reached(self.next_offsets))
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
        self._stores.compact_logs()
        self._stores.upgrade_step()
        try:
            self._stores.swap_upgraded(_reached(self.next_offsets))
        except BaseException as error:
            self._fail(error)
            raise
        self.committed += processed

    def _send_offsets(self) -> None:
        # At least once these are two commits, in this order: after a crash a punctuator may run twice, but is never
        # skipped.
        self._context.producer.send_offsets(self.group, self.next_offsets)
        stream_time = self._timing.stream_time
        times = stream_time.uncommitted()
        if times:
            self._context.producer.send_offsets(stream_time.group, times)
        self._stores.send_stream_times(self._context.producer)

    def roll_back(self, error: BaseException, *, in_doubt: bool = False) -> None:
        """Roll back to the last commit after ``error``. ``in_doubt``: the changelog may have taken one more commit.

        Errors of the rollback itself are not raised here: they change the task's state.
        """
        self._context.active = False
        if not self._lifecycle.allows(Event.ROLL_BACK):
            return  # The function itself has closed the task, or has called a commit that failed.
        if self._shared is not None:
            self._shared.roll_back(self, error)
        else:
            self.return_to_commit(error, in_doubt=in_doubt)

    def return_to_commit(
        self, error: BaseException, *, in_doubt: bool = False, end_error: BaseException | None = None
    ) -> None:
        """Roll back this task alone, as ``roll_back`` does.

        A shared transaction has been ended in the changelog before; ``end_error`` is the error of that.
        """
        self._context.active = False
        if not self._lifecycle.allows(Event.ROLL_BACK):
            return
        self._lifecycle.roll_back()
        # Not the error's text: it may contain values.
        _log.info(
            "task %s rolls back %d records to its last commit, after %s",
            self.task_id,
            self.processed,
            type(error).__name__,
        )
        processed, reached = self.processed, dict(self.next_offsets)
        asked = False
        try:
            if isinstance(error, ProducerFencedError):
                self._counters.rolled_back(processed)
                with suppress(Exception):
                    self._stores.rollback()  # Even if a close fails, readers must not see staged writes any more.
                self._fail(error)
                return
            if end_error is not None:
                raise end_error
            if self._shared is None:
                self._end_own(error, in_doubt=in_doubt)
            asked = True
            self._stores.return_to_commit(error, self.committed_position())
            self.begin()
            # Counted only now, when it is known whether the changelog has taken the records.
            if processed and self.next_offsets == reached:
                self.committed += processed
            else:
                self._counters.rolled_back(processed)
        except ChangelogTimeoutError:
            self._lifecycle.time_out(error, in_doubt=in_doubt)
            with suppress(Exception):
                self._stores.rollback()  # Now, so that nobody reads staged writes until the changelog answers again.
        except BaseException as failure:
            self._counters.rolled_back(processed)
            if not asked:
                with suppress(Exception):
                    self._stores.rollback()  # The producer has failed before the stores were asked to roll back.
            self._fail(failure)
            error.add_note(f"Then task {self.task_id} could not return to its last commit: {failure}")

    def _end_own(self, error: BaseException, *, in_doubt: bool) -> None:
        """End the open transaction in the changelog. A commit that timed out is not in the changelog."""
        if in_doubt and self._exactly_once and not isinstance(error, ChangelogTimeoutError):
            # Opening a producer with the same ID decides it. The restore then writes what the changelog has.
            self._open_own_producer()
        else:
            self._context.producer.abort()

    def resume(self) -> None:
        """Try a pending rollback again; then raise the error of the task's state unless it is running."""
        pending = self._lifecycle.pending_rollback
        if pending is not None:
            error, in_doubt = pending
            if self._shared is not None:
                self._shared.resume(self, error, in_doubt=in_doubt)
            else:
                self.return_to_commit(error, in_doubt=in_doubt)
        self._lifecycle.check(Call.WORK)

    def tell(self, error: Exception) -> None:
        """Let the task's next call raise ``error``: another task has made this one roll back."""
        self._lifecycle.defer(error)

    def _fail(self, error: BaseException) -> None:
        self._lifecycle.fail(error)
        if self._lifecycle.state is TaskState.FENCED:
            # Another instance owns the task, and may need its folder.
            try:
                self._close()
            except Exception as failure:
                error.add_note(f"Then task {self.task_id} could not be closed: {failure}")


def _reached(next_offsets: Mapping[TopicPartition, int]) -> Position:
    """The position of a task that continues with ``next_offsets``."""
    return {partition: offset - 1 for partition, offset in next_offsets.items() if offset > 0}
