"""The resources of an open task: its folder, its share of memory, its stores and its producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stores.changelog.interface import Changelog
from stores.errors import ChangelogError
from stores.interface import TopicPartition
from stores.metrics import EarlyCommitCause
from stores.tasks.context import NO_RECORD, TaskContext
from stores.tasks.directory.checkpoint_file import CheckpointFile, SplitCheckpoint
from stores.tasks.directory.origin_file import Origin
from stores.tasks.directory.task_folder import TaskFolder
from stores.tasks.first_error import FirstError
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import BudgetedTask, BudgetShare
from stores.tasks.stores.store_group import StoreGroup
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


class TaskResources:
    """The resources that a task takes when it opens, and gives back when it closes."""

    def __init__(
        self,
        task_id: TaskId,
        inputs: Sequence[TopicPartition],
        changelog: Changelog,
        folder: TaskFolder,
        memory: BudgetShare,
        stores: StoreGroup,
        context: TaskContext,
        checkpoint: CheckpointFile | SplitCheckpoint,
    ) -> None:
        self._task_id, self._inputs, self._changelog = task_id, inputs, changelog
        self._folder, self._memory, self._stores = folder, memory, stores
        self._context, self._checkpoint = context, checkpoint

    def open_stores(self, task: BudgetedTask, *, processes: bool) -> None:
        """Check the inputs, lock the folder, create the changelog topics that do not exist, and open the stores.

        The task gets a share of the memory only if it ``processes`` records. Raises: as ``StreamTask.open``.
        """
        existing = self._changelog.topics()
        self._check_inputs(existing)
        self._folder.acquire(task)
        if processes:
            self._memory.add(task)
        # As many partitions as the largest input topic has, so that each task has its own. Source: Kafka Streams, which
        # takes the largest number of partitions among the inputs of the sub-topology.
        count = max([self._task_id.partition + 1, *(existing.get(partition.topic, 0) for partition in self._inputs)])
        self._stores.create_topics(self._changelog, count)
        self._stores.open()

    def close(
        self, task: BudgetedTask, *, clean: bool = False, close_producer: Callable[[], None] | None = None
    ) -> None:
        """Close everything, even after errors; then raise the first error.

        If ``clean``, and without an error, write the checkpoint file, and after it the origins: a store may only be
        called clean if it has a checkpoint.
        """
        self._context.record = NO_RECORD
        self._memory.discard(task)
        errors = FirstError()
        offsets: Mapping[TopicPartition, int | None] = {}
        origins: Mapping[str, Origin] = {}
        try:
            if clean:
                with errors.step():
                    offsets = self._stores.checkpointable_offsets(running=False)
                    origins = self._stores.origins(running=False)
            with errors.step():
                self._stores.close()
            if close_producer is not None:
                with errors.step():
                    close_producer()
            if clean and not errors.failed:
                with errors.step():
                    self._checkpoint.write(offsets)
                    self._stores.write_origins(origins)
        finally:
            self._folder.release()
        errors.reraise()

    def _check_inputs(self, existing: Mapping[str, int]) -> None:
        """Check that the changelog can commit the offsets of each input. Raises: ChangelogError."""
        if self._changelog.takes_inputs_elsewhere:
            return
        for topic, number in self._inputs:
            count = existing.get(topic, 0)
            if not count:
                raise ChangelogError(
                    f"the input topic {topic!r} of task {self._task_id} does not exist: create it, or correct the name"
                )
            if number >= count:
                raise ChangelogError(
                    f"the input topic {topic!r} has the partitions 0 to {count - 1}, and task {self._task_id} needs "
                    f"partition {number}"
                )
