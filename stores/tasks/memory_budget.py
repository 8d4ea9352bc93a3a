"""A limit on the memory of the staged writes of all tasks of a process.

A process has one ``MemoryBudget``. Each of its workers (threads that run tasks) has a ``BudgetShare``, and gives it to
its tasks. Workers with open tasks get an equal part each; it changes when one comes or goes.

The accounting costs a record one addition and two comparisons. Its task adds up the bytes that the record wrote, which
are never less than the bytes that it staged. It asks the stores themselves only if that sum might exceed the limit.

The estimate: the next step (a record and the writes of its function) stages as much as the largest one so far. The
estimate is halved at each early commit, so that a single large step is soon forgotten. Kafka has no estimate: it
commits once the limit is exceeded.

Source: KIP-892, "In-memory Transaction Buffers".
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from threading import Lock, get_ident
from typing import Protocol

from stores.config import UNCOMMITTED_MAX_BYTES, check_limit
from stores.errors import StoreError
from stores.metrics import EarlyCommitCause

_log = logging.getLogger(__name__)


class WrittenBytes:
    """The memory of the writes of one step so far, in bytes, including overwritten entries."""

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0


class BudgetedTask(Protocol):
    """The part of a task that a share uses."""

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the staged writes of all its stores, including the cost of each entry."""

    def commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, unless a record is being processed. Raises: as the task's ``commit``."""

    def commit_beside(self, cause: EarlyCommitCause) -> None:
        """Commit like ``commit_early``, for another task's sake. An error is raised by this task's next call."""


class MemoryBudget:
    """The limit on the memory of staged writes of a process's tasks, in bytes; -1 for no limit. For any thread.

    Keys and values count, also some 92 bytes for each entry, and 128 for each record that is held for the changelog
    (``changelog_coalescing``). An engine may need the size of a transaction again while it is committed.

    A step that stages more is no error: each persistent store spills the part beyond its own limit
    (``StoreConfig.uncommitted_max_bytes``) to disk. With ``lmdb-native`` LMDB spills: it keeps 512 MiB of changed pages
    in memory, and more if values are larger than some 2 KB.

    Raises: TypeError, ConfigError for an invalid limit. Source: KIP-892, ``statestore.uncommitted.max.bytes``.
    """

    def __init__(self, uncommitted_max_bytes: int = UNCOMMITTED_MAX_BYTES) -> None:
        check_limit("uncommitted_max_bytes", uncommitted_max_bytes)
        self.uncommitted_max_bytes = uncommitted_max_bytes
        self.lock = Lock()
        """The lock to hold while shares are resized, and while the size of one is used."""
        self._in_use: list[BudgetShare] = []

    @classmethod
    def of_stores(cls, limits_bytes: Iterable[int]) -> MemoryBudget:
        """Return the budget of a task by itself: the lowest limit of its stores, none (-1) if no store has one."""
        return cls(min((limit_bytes for limit_bytes in limits_bytes if limit_bytes != -1), default=-1))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.uncommitted_max_bytes:,} bytes, {len(self._in_use)} shares in use>"

    def share(self) -> BudgetShare:
        """Return the share of a new worker. It counts while the worker has open tasks."""
        return BudgetShare(self)

    def join(self, share: BudgetShare) -> None:
        """Add a worker, and resize all shares."""
        with self.lock:
            self._in_use.append(share)
            self._divide()

    def leave(self, share: BudgetShare) -> None:
        """Remove a worker, and give its part to the others."""
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
        """The bytes that the worker's tasks may have staged at present; never reached if there is no limit."""
        self.step_bytes = 0
        """The bytes that the next step is expected to stage."""
        self.bytes_at_most = 0
        """The bytes that the worker's tasks have staged, or more. A task adds the bytes that a step has written."""
        self.check_above = -1
        """If ``bytes_at_most`` exceeds this, ``check`` is due."""
        self.largest_step_bytes = 0
        """The bytes of the largest step that alone exceeded ``max_bytes``; 0 if there was none."""
        self._budget = budget
        self._tasks: list[BudgetedTask] = []
        self._thread = 0

    def add(self, task: BudgetedTask) -> None:
        """Add a task that is about to open. Raises: StoreError if the tasks here belong to another thread."""
        if self._tasks and self._thread != get_ident():
            raise StoreError(
                "a share of a memory budget belongs to one thread: call MemoryBudget.share() for each thread"
            )
        self._thread = get_ident()
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._budget.join(self)

    def discard(self, task: BudgetedTask) -> None:
        """Remove a task. It may have been removed before."""
        if task in self._tasks:
            self._tasks.remove(task)
            if not self._tasks:
                self._budget.leave(self)

    def resize(self, max_bytes: int) -> None:
        """Set the limit from the next record on. May be called on any thread that holds the budget's lock."""
        self.max_bytes = max_bytes
        self.check_above = -1

    def check(self, task: BudgetedTask, written_bytes: int) -> None:
        """Count the staged bytes after a step of ``task``; commit all tasks if due, and raise its error at the end."""
        staged = self.bytes_at_most = sum(each.uncommitted_memory_bytes() for each in self._tasks)
        # If a step overwrote its own writes, ``written_bytes`` is too large. All staged bytes are an upper bound too.
        step_bytes = min(written_bytes, staged)
        max_bytes = self._expect(step_bytes)
        if step_bytes > max(max_bytes, self.largest_step_bytes):
            self.largest_step_bytes = step_bytes
            _log.warning(
                "one step staged %d bytes, entries included, more than the %d for all tasks of this worker. It stays "
                "one transaction. A store on disk has spilled the part beyond its limit, a store in memory has not",
                step_bytes,
                max_bytes,
            )
        if staged and staged + self.step_bytes > max_bytes:
            self._commit(task, EarlyCommitCause.EXCEEDED if staged > max_bytes else EarlyCommitCause.PREDICTED)

    def room(self, wanted_bytes: int) -> int:
        """Return how many more bytes the tasks may stage; exact if fewer than ``wanted_bytes``."""
        if self.max_bytes - self.bytes_at_most < wanted_bytes:
            self.bytes_at_most = sum(each.uncommitted_memory_bytes() for each in self._tasks)
        return self.max_bytes - self.bytes_at_most

    def forget_step(self) -> None:
        """Halve the expected size of a step, as after each early commit: a single large one is soon forgotten."""
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
        """Expect steps of at least ``step_bytes``; return the ``max_bytes`` that was used for it."""
        with self._budget.lock:
            self.step_bytes = max(self.step_bytes, min(step_bytes, self.max_bytes))
            self.check_above = self.max_bytes - self.step_bytes
            return self.max_bytes


def _part(uncommitted_max_bytes: int, workers: int) -> int:
    return sys.maxsize if uncommitted_max_bytes == -1 else uncommitted_max_bytes // workers
