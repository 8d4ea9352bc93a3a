"""The bounds of a task: commits and punctuators that are due between two steps, and the size of its next batch.

A step is a record, or a batch of several, with all that the function does. The bounds hold for steps as they are made:
the size of a batch follows from what a record has taken so far, in time and in memory. So a batch ends before a bound,
as far as that can be known: the first batch is one record, and none has more than eight times as many as any before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import lt
from typing import Any

from stores.changelog.interface import Record
from stores.metrics import EarlyCommitCause
from stores.tasks.column_records import column_of
from stores.tasks.context import ProcessFunction, TaskContext
from stores.tasks.memory_budget import BudgetedTask, BudgetShare
from stores.tasks.record_batch import Batch, within_bytes
from stores.tasks.settings import TaskSettings
from stores.tasks.task_transaction import TaskTransaction
from stores.tasks.timing import NEVER_MS, Punctuator

_GROWTH = 8
"""The most by which a batch may be larger than all before it: their records may say little about many more."""


class TaskBounds:
    """The bounds of one task: time, memory, replay and punctuation. For one thread."""

    def __init__(
        self,
        transaction: TaskTransaction,
        task: BudgetedTask,
        memory: BudgetShare,
        commit: Callable[[], None],
    ) -> None:
        self._transaction, self._task, self._memory, self._commit = transaction, task, memory, commit
        self._context, self._timing, self._stores = transaction.context, transaction.timing, transaction.stores
        self._counters = transaction.counters

    def commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, and count the commit if the interval is not over yet."""
        early = not self._timing.interval.is_up()
        self._commit()
        if early:
            self._counters.committed_early(cause)

    def keep_to_replay_bound(self) -> None:
        """Commit if the next step could exceed the bound of a changelog, assuming the largest recent step."""
        memory, stores = self._memory, self._stores
        if stores.check_logs(memory.step_bytes) < memory.step_bytes:
            memory.forget_step()
            self.commit_early(EarlyCommitCause.REPLAY)

    def fire_stream(self) -> None:
        """Call the punctuators that are due by stream time."""
        self._timing.punctuation.fire_stream(self._timing.stream_time.ms, self._punctuate)

    def _punctuate(self, punctuator: Punctuator, timestamp_ms: int) -> None:
        self._transaction.punctuated = True
        self._context._call(timestamp_ms, partial(punctuator, timestamp_ms))
        self._counters.punctuate_total += 1
        self._context._call_reports()

    def keep_time(self) -> None:
        """Call the punctuators that are due by wall clock, and commit if the interval is over."""
        context, timing = self._context, self._timing
        if timing.now_ns() >= timing.punctuation.wall_due_ns:
            context._active = True
            context._written.num_bytes = 0
            try:
                timing.punctuation.fire_wall(self._punctuate)
            except BaseException as error:
                self._transaction.roll_back(error)
                raise
            finally:
                context._active = False
            self._memory.bytes_at_most += context._written.num_bytes
            self._stores.log_room -= context._written.num_bytes
            self._memory.check(self._task, context._written.num_bytes)
            self.keep_to_replay_bound()
            if context._commit_requested:
                self.commit_early(EarlyCommitCause.REQUESTED)
        if timing.interval.is_up():
            self._commit()
            timing.begin_interval()
        timing.plan()


class BatchSize:
    """The size of the next batch of a task, by what the records so far have taken. For one thread."""

    def __init__(
        self,
        transaction: TaskTransaction,
        memory: BudgetShare,
        settings: TaskSettings,
    ) -> None:
        self.max_records, self.max_bytes = settings.batch_max_records, settings.batch_max_bytes
        """The most records of a batch, and the most bytes of their keys and values."""
        self._commit_every = settings.commit_every_records or sys.maxsize
        self._transaction, self._memory = transaction, memory
        self._timing, self._stores = transaction.timing, transaction.stores
        self._most = 1
        self._record_ns = self._record_bytes = 0
        """The time of a record in the function, and the bytes that it writes: of late, rather more than less."""

    def of_next(self, records: Sequence[Record]) -> int:
        """Return how many of ``records``, from the first on, are the next batch: 1 or more."""
        count = min(len(records), self.max_records, self._most, self._commit_every - self._transaction.processed)
        count = min(count, self._within_time(count))
        count = max(1, min(count, self._within_memory(count)))
        return self._before_punctuator(records, _rising(records, within_bytes(records, count, self.max_bytes)))

    def measured(self, function: ProcessFunction) -> ProcessFunction:
        """Return ``function``, with what its records take noted."""
        now_ns = self._timing.now_ns

        def measured(record: Record[Any, Any], context: TaskContext) -> None:
            began_ns = now_ns()
            function(record, context)
            count = len(record.value) if isinstance(record.value, Batch) else 1
            self._most = max(self._most, _GROWTH * count)
            self._record_ns = max((now_ns() - began_ns) // count, self._record_ns * 7 // 8)
            self._record_bytes = max(context._written.num_bytes // count, self._record_bytes * 7 // 8)

        return measured

    def _within_time(self, count: int) -> int:
        """The number of records until the next commit or punctuator by wall clock."""
        left_ns = self._timing.due_ns - self._timing.now_ns()
        return count if self._record_ns * count <= left_ns else left_ns // max(1, self._record_ns)

    def _within_memory(self, count: int) -> int:
        """The number of records whose writes neither exceed the limit on memory nor a changelog's replay bound."""
        wanted_bytes = self._record_bytes * count
        if not wanted_bytes:
            return count
        room_bytes = min(self._memory.room(wanted_bytes), self._stores.room(wanted_bytes))
        return count if wanted_bytes <= room_bytes else room_bytes // self._record_bytes

    def _before_punctuator(self, records: Sequence[Record], count: int) -> int:
        """The number of records up to the first one that makes a punctuator by stream time due."""
        due_ms = self._timing.punctuation.stream_due_ms
        if due_ms == NEVER_MS:
            return count
        times = enumerate(column_of(records[:count], "timestamp_ms"), 1)
        return next((number for number, time_ms in times if time_ms >= due_ms), count)


def _rising(records: Sequence[Record], count: int) -> int:
    """Return the number of records whose offsets rise, up to ``count``: the one after them was processed before."""
    offsets = column_of(records[:count], "offset")
    if all(map(lt, offsets, offsets[1:])):
        return count
    return next(number for number in range(1, count) if offsets[number] <= offsets[number - 1])
