"""A user's function whose exceptions leave out the record instead of rolling back the transaction."""

from __future__ import annotations

import logging

from stores.changelog.interface import Record
from stores.errors import StoreError
from stores.tasks.context import ProcessFunction, TaskContext
from stores.tasks.on_error import DeadLetterTopic, OnError, dead_letter_headers, origin_note
from stores.tasks.record_undo import RecordUndo
from stores.tasks.task_counters import TaskCounters

_log = logging.getLogger(__name__)


class GuardedFunction:
    """``function``, with ``on_error`` applied. An exception that it does not raise has left nothing of the record.

    Errors of the library (``StoreError``) are always raised: a store, the changelog or a name is wrong, and so it is
    for the next records. So are exceptions that are no ``Exception``, such as KeyboardInterrupt.
    """

    def __init__(
        self,
        function: ProcessFunction,
        on_error: OnError | DeadLetterTopic,
        undo: RecordUndo,
        counters: TaskCounters,
    ) -> None:
        self._function, self._on_error, self._undo, self._counters = function, on_error, undo, counters

    def __call__(self, record: Record, context: TaskContext) -> None:
        undo, requested = self._undo, context.commit_requested
        undo.begin()
        try:
            self._function(record, context)
        except BaseException as error:
            fatal = not isinstance(error, Exception) or isinstance(error, StoreError)
            # After a failed write, or in a task that its function has closed, there is nothing to continue with.
            if fatal or context.failure is not None or context.record is not record:
                undo.drop()
                raise
            error.add_note(origin_note(context.task_id, context.partition, record))
            undo.undo()
            context.commit_requested = requested
            self._leave_out(record, context, error)
            return
        undo.keep()

    def _leave_out(self, record: Record, context: TaskContext, error: BaseException) -> None:
        topic, number = context.partition
        if isinstance(self._on_error, DeadLetterTopic):
            headers = dead_letter_headers(error, context.partition, record)
            context.forward(self._on_error.topic, record.key, record.value, record.timestamp_ms, headers)
            self._counters.dead_letter_total += 1
        self._counters.skipped_total += 1
        # Not the error's text: it may contain values.
        _log.warning(
            "task %s left out offset %d of %s-%d: its function raised %s",
            context.task_id,
            record.offset,
            topic,
            number,
            type(error).__qualname__,
        )
