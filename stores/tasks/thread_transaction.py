"""One transaction of a changelog over all tasks of a thread: they commit together, and roll back together.

A commit prepares all tasks, then commits the changelog once, then the stores of each task. An error before the end of
the changelog's commit rolls back all tasks: their records are in one transaction.

Source: KIP-447; KIP-844, "StateStore changes", for the order.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from stores.changelog.interface import Changelog, Producer, SharedProducer
from stores.errors import ChangelogTimeoutError, ProducerFencedError, TransactionAbortedError
from stores.failpoints import Part, declare
from stores.interface import TopicPartition
from stores.tasks.context import still_processing
from stores.tasks.identifier import TaskId

_log = logging.getLogger(__name__)

BETWEEN_TASKS = declare(
    "task.between_tasks",
    "the changelog has the commit of several tasks; the stores of some have it, those of others not",
    part=Part.CHANGE,
)


class SharedPart(Protocol):
    """The part of one task in the transaction (``TaskTransaction``). Raises: as the methods there."""

    task_id: TaskId
    transactional_id: str
    group: str
    """The consumer group of its input offsets."""
    inputs: Sequence[TopicPartition]
    in_log: bool
    """True while the open transaction may have records of the task."""

    @property
    def changelogs(self) -> Sequence[TopicPartition]:
        """The changelog partitions of its stores."""

    @property
    def is_empty(self) -> bool:
        """True if it has nothing to commit."""

    @property
    def is_running(self) -> bool:
        """True unless it is opening, rolling back, failed or closed."""

    @property
    def is_processing(self) -> bool:
        """True while its function or a punctuator runs."""

    @property
    def commits(self) -> AbstractContextManager[None]:
        """The timer of its commits."""

    def take(self, producer: Producer) -> None:
        """Write to this producer from now on."""

    def prepare(self) -> None:
        """Send the last records and the input offsets of the transaction."""

    def apply(self, offsets: Mapping[TopicPartition, int], reached: str) -> None:
        """Commit the stores with the offsets of the changelog's commit; pass the failpoint ``reached`` before."""

    def return_to_commit(self, error: BaseException, *, in_doubt: bool, end_error: BaseException | None) -> None:
        """Roll back the stores after ``error``; ``end_error`` is that of the changelog to end it."""

    def tell(self, error: Exception) -> None:
        """Let the task's next call raise ``error``."""


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
        self._parts: dict[str, SharedPart] = {}
        self._unsettled: tuple[BaseException, bool] | None = None
        """The error for which the changelog's transaction is still to be ended, and if its commit is in doubt."""
        self._rolling_back = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id!r} of {len(self._parts)} tasks>"

    def join(self, part: SharedPart) -> None:
        """Add a task that is about to be restored, once nothing of its older instances is open.

        The others commit before: a restore may take longer than a transaction may. Raises: as ``commit``.
        """
        self._settle()
        self.commit(None)
        if self._producer is None:
            self._producer = self._changelog.shared_producer(self._id, self._timeout_s)
        self._producer.join(part.transactional_id, part.group, part.inputs, part.changelogs)
        self._parts[part.transactional_id] = part
        part.take(self._producer.of(part.transactional_id))

    def leave(self, part: SharedPart) -> None:
        """Remove a task that is closed. If it has records that are not committed, all tasks roll back.

        Raises: as ``SharedProducer.close``.
        """
        joined = self._parts.get(part.transactional_id) is part
        if joined:
            del self._parts[part.transactional_id]
            uncommitted = part.in_log and (part.is_processing or not part.is_empty)
            if uncommitted and not self._rolling_back and self._unsettled is None:
                reason = f"task {part.task_id} was closed without a commit"
                self._roll_back(TransactionAbortedError(f"the transaction is rolled back: {reason}"), None, False)
        producer = self._producer
        if producer is None:
            return
        try:
            if joined:
                producer.leave(part.transactional_id)
        finally:
            if not self._parts:
                # The next producer of the ID decides what is still open.
                self._producer = self._unsettled = None
                producer.close()

    def begin(self, part: SharedPart) -> None:
        """Let a task be part of the open transaction; open it if none is."""
        assert self._producer is not None
        self._producer.begin()
        part.in_log = True

    def commit(self, first: SharedPart | None) -> None:
        """Commit all tasks that have something to commit: their changelogs as one, then the stores of each.

        The call is that of task ``first``. Another task whose stores can't commit raises its error in its own next
        call. Raises: as ``StreamTask.commit``; TransactionAbortedError if another task made this one roll back.
        """
        parts = [part for part in self._parts.values() if part.is_running and not part.is_empty]
        for part in self._parts.values():
            if part.is_processing:
                raise still_processing(part.task_id, "commit")
        if not parts:
            return
        assert self._producer is not None
        own_failure: BaseException | None = None
        with ExitStack() as timed:
            for part in parts:
                if part is not first:
                    timed.enter_context(part.commits)
            try:
                for part in parts:
                    part.prepare()
                offsets = self._producer.commit()
            except BaseException as error:
                self._roll_back(error, first, True)
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

    def roll_back(self, first: SharedPart, error: BaseException) -> None:
        """Roll back all tasks after an error of ``first`` outside of a commit.

        Each other task that loses records raises TransactionAbortedError in its next call.
        """
        self._roll_back(error, first, False)

    def resume(self, part: SharedPart, error: BaseException, *, in_doubt: bool) -> None:
        """Try the pending rollback of a task again."""
        part.return_to_commit(error, in_doubt=in_doubt, end_error=self._try_to_settle())

    def _roll_back(self, error: BaseException, first: SharedPart | None, in_doubt: bool) -> None:
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
                    part.tell(aborted)
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
            part.take(self._producer.of(transactional_id))

    def _is_fenced(self, part: SharedPart, error: BaseException) -> bool:
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
