"""How much the tasks of a process may have staged together, and who commits when it is nearly used up.

A process has one ``MemoryBudget``. Each of its workers (threads that run tasks) has a ``BudgetShare``, and gives it to
its tasks. Workers with open tasks get an equal part each; it changes when one comes or goes.

The accounting costs a record one addition and two comparisons: its task adds up what the record wrote, which is never
less than what it staged, and asks the stores themselves only where that sum might be too much.

The estimate: the next step (a record and what its function writes) stages as much as the largest one so far. That is
halved at each early commit, so that a single large step is soon forgotten. No part of it is in Kafka, which commits
once the limit is passed.

Source: KIP-892, "In-memory Transaction Buffers".
"""

from __future__ import annotations

import logging
import sys
from threading import Lock, get_ident
from typing import Protocol

from stores.config import UNCOMMITTED_MAX_BYTES, checked_uncommitted_max_bytes
from stores.errors import StoreError
from stores.metrics import EarlyCommitCause

_log = logging.getLogger(__name__)


class WrittenBytes:
    """Bytes of memory that what one step has written so far may take, overwritten entries too."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0


class BudgetedTask(Protocol):
    """What a share has to know of a task."""

    def uncommitted_memory_bytes(self) -> int:
        """What its stores have staged together, and what the entries of that take of memory."""

    def commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, unless a record is being processed. Raises as the task's ``commit``."""

    def commit_beside(self, cause: EarlyCommitCause) -> None:
        """As ``commit_early``, for another task's sake; keeps what goes wrong for its own next call."""


class MemoryBudget:
    """The most bytes of memory that a process's tasks may take for staged writes; -1 for no limit. For any thread.

    Keys and values count, some 92 bytes for each entry beside them, and 128 for each record that is held for the
    changelog (``changelog_coalescing``). An engine may need the size of a transaction again while it is committed.

    A step that stages more than may be staged is no error: each store spills what is beyond the limit
    (``StoreConfig.uncommitted_max_bytes``) to disk, if it has one. ``lmdb-native`` leaves that to LMDB, which keeps
    512 MiB of changed pages in memory, and more where values are larger than some 2 KB.

    Raises: TypeError, ConfigError for what is no limit. Source: KIP-892, ``statestore.uncommitted.max.bytes``.
    """

    def __init__(self, uncommitted_max_bytes: int = UNCOMMITTED_MAX_BYTES) -> None:
        self.uncommitted_max_bytes = checked_uncommitted_max_bytes(uncommitted_max_bytes)
        self.lock = Lock()
        """Held while shares are resized, and by whoever reckons with the size of one."""
        self._in_use: list[BudgetShare] = []

    def share(self) -> BudgetShare:
        """A new worker's part of the budget; it counts while the worker has open tasks."""
        return BudgetShare(self)

    def join(self, share: BudgetShare) -> None:
        """Count a worker in, and give each its part."""
        with self.lock:
            self._in_use.append(share)
            self._divide()

    def leave(self, share: BudgetShare) -> None:
        """Count a worker out, and give the others its part."""
        with self.lock:
            self._in_use.remove(share)
            self._divide()

    def _divide(self) -> None:
        for share in self._in_use:
            share.resize(_part(self.uncommitted_max_bytes, len(self._in_use)))


class BudgetShare:
    """One worker's part of a ``MemoryBudget``, for all its tasks together, which one thread opens and runs."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.max_bytes = _part(budget.uncommitted_max_bytes, 1)
        """What the worker's tasks may have staged at present; never reached where there is no limit."""
        self.step_bytes = 0
        """What the next step is expected to stage."""
        self.bytes_at_most = 0
        """What the worker's tasks have staged, or more. A task adds what a step has written."""
        self.look_above = -1
        """Where ``bytes_at_most`` passes this, ``look`` is due."""
        self.largest_step_bytes = 0
        """What the largest step staged that was by itself larger than ``max_bytes``; 0 where there was none."""
        self._budget = budget
        self._tasks: list[BudgetedTask] = []
        self._thread = 0

    def add(self, task: BudgetedTask) -> None:
        """Count a task in, which is about to open. Raises: StoreError where the tasks here are another thread's."""
        if self._tasks and self._thread != get_ident():
            raise StoreError("a share of a memory budget is one worker's: let each thread have its own, from share()")
        self._thread = get_ident()
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._budget.join(self)

    def discard(self, task: BudgetedTask) -> None:
        """Count a task out, which may be out already."""
        if task in self._tasks:
            self._tasks.remove(task)
            if not self._tasks:
                self._budget.leave(self)

    def resize(self, max_bytes: int) -> None:
        """Allow so much from the next record on, from any thread. The caller holds the budget's lock."""
        self.max_bytes = max_bytes
        self.look_above = -1

    def look(self, task: BudgetedTask, written_bytes: int) -> None:
        """Count what is staged, after a step of ``task`` that wrote so much; let all tasks commit where that is due.

        Every task that has staged something gets its try, ``task`` first, whose error is raised at the end.
        """
        staged = self.bytes_at_most = sum(each.uncommitted_memory_bytes() for each in self._tasks)
        # Where a step overwrote what it wrote, the sum is too large; what all steps have left is no less than its own.
        step_bytes = min(written_bytes, staged)
        max_bytes = self._expect(step_bytes)
        if step_bytes > max(max_bytes, self.largest_step_bytes):
            self.largest_step_bytes = step_bytes
            _log.warning(
                "one step staged %d bytes, entries included, of %d for all tasks of this worker together: it stays one "
                "transaction, of which a store on disk has spilled what is beyond its bound, and one in memory nothing",
                step_bytes,
                max_bytes,
            )
        if staged and staged + self.step_bytes > max_bytes:
            self._commit(task, EarlyCommitCause.EXCEEDED if staged > max_bytes else EarlyCommitCause.PREDICTED)

    def forget_step(self) -> None:
        """Expect smaller steps, as after each early commit: a single large one is soon forgotten."""
        self.step_bytes //= 2
        self._expect(0)

    def _commit(self, first: BudgetedTask, cause: EarlyCommitCause) -> None:
        self.step_bytes //= 2
        others = [task for task in self._tasks if task is not first]
        try:
            if first.uncommitted_memory_bytes():
                first.commit_early(cause)
        finally:
            for task in others:
                if task.uncommitted_memory_bytes():
                    task.commit_beside(cause)
            self.bytes_at_most = sum(each.uncommitted_memory_bytes() for each in self._tasks)
            self._expect(0)

    def _expect(self, step_bytes: int) -> int:
        """Expect steps that stage as much, or more; returns ``max_bytes`` as that was used in it."""
        with self._budget.lock:
            self.step_bytes = max(self.step_bytes, min(step_bytes, self.max_bytes))
            self.look_above = self.max_bytes - self.step_bytes
            return self.max_bytes


def _part(uncommitted_max_bytes: int, workers: int) -> int:
    return sys.maxsize if uncommitted_max_bytes == -1 else uncommitted_max_bytes // workers
