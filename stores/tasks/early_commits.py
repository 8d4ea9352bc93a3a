"""The commits that a task makes for the sake of the memory that the tasks of its thread share."""

from __future__ import annotations

from collections.abc import Callable

from stores.metrics import EarlyCommitCause
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import BudgetedTask
from stores.tasks.task_state import TaskLifecycle


class EarlyCommits(BudgetedTask):
    """A task as its share of a ``MemoryBudget`` sees it."""

    def __init__(
        self,
        task_id: TaskId,
        staged_bytes: Callable[[], int],
        commit: Callable[[EarlyCommitCause], None],
        context: TaskContext,
        lifecycle: TaskLifecycle,
    ) -> None:
        self._task_id, self._staged_bytes, self._commit = task_id, staged_bytes, commit
        self._context, self._lifecycle = context, lifecycle

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the staged writes of all its stores, including the cost of each entry."""
        return self._staged_bytes()

    def commit_early(self, cause: EarlyCommitCause) -> None:
        """Commit, unless a record is being processed."""
        if not self._context.active:
            self._commit(cause)

    def commit_beside(self, cause: EarlyCommitCause) -> None:
        """Commit like ``commit_early``, while another task is given a record. This task's next call raises an error.

        It must not be raised in the other task's call. It must be raised in this task's next call, or its caller would
        skip the records that were rolled back.
        """
        try:
            self.commit_early(cause)
        except Exception as error:
            error.add_note(
                f"Task {self._task_id} was committing early to free the memory that the tasks of its thread share."
            )
            self._lifecycle.defer(error)
