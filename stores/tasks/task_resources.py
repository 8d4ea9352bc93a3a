"""The resources of an open task: its folder, its share of memory, its stores and its producer; and its standby copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from stores.errors import ChangelogError
from stores.interface import Closeable, Position, TopicPartition
from stores.metrics import EarlyCommitCause
from stores.tasks.bounds import TaskBounds
from stores.tasks.context import NO_RECORD
from stores.tasks.directory.entry_files import CheckpointFile, Origin, SplitCheckpoint
from stores.tasks.directory.relocation import TopologyLock
from stores.tasks.directory.task_files import TaskFolder
from stores.tasks.directory.task_lock import TaskLock
from stores.tasks.first_error import FirstError
from stores.tasks.memory_budget import BudgetedTask, BudgetShare
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.task_state import Call
from stores.tasks.task_transaction import TaskTransaction


class TaskResources(BudgetedTask):
    """The resources of an open task, which is, to its share of a ``MemoryBudget``, this object."""

    def __init__(
        self,
        transaction: TaskTransaction,
        folder: TaskFolder,
        memory: BudgetShare,
        checkpoint: CheckpointFile | SplitCheckpoint,
        commit: Callable[[], None],
    ) -> None:
        self._transaction, self._folder, self._memory = transaction, folder, memory
        self._checkpoint = checkpoint
        self.bounds = TaskBounds(transaction, self, memory, commit)

    def uncommitted_memory_bytes(self) -> int:
        transaction = self._transaction
        return transaction.stores.uncommitted_memory_bytes() if transaction.lifecycle.ready else 0

    def commit_early(self, cause: EarlyCommitCause) -> None:
        if not self._transaction.context._active:
            self.bounds.commit_early(cause)

    def commit_beside(self, cause: EarlyCommitCause) -> None:
        """Commit like ``commit_early``, while another task is given a record.

        The call of the other must not raise an error of this commit. This task's next call must: its caller would skip
        the records that were rolled back.
        """
        try:
            self.commit_early(cause)
        except Exception as error:
            error.add_note(
                f"Task {self._transaction.task_id} was committing early to free the memory that the tasks of its "
                "thread share."
            )
            self._transaction.lifecycle.defer(error)

    def open_stores(self, *, processes: bool, copy: OpenCopy | None = None) -> None:
        """Check the inputs, lock the folder, create the changelog topics that do not exist, and open the stores.

        The task gets a share of the memory only if it ``processes`` records. It continues with the stores and the lock
        of ``copy``. Raises: as ``StreamTask.open``.
        """
        transaction = self._transaction
        existing = transaction.changelog.topics()
        self._check_inputs(existing)
        if copy is not None:
            copy.let_lock(self)
        self._folder.acquire(self)
        if processes:
            self._memory.add(self)
        # As many partitions as the largest input topic has, so that each task has its own. Source: Kafka Streams, which
        # takes the largest number of partitions among the inputs of the sub-topology.
        count = max([transaction.task_id.partition + 1, *(existing.get(topic, 0) for topic, _ in transaction.inputs)])
        transaction.stores.create_topics(count)
        transaction.stores.open({} if copy is None else copy.stores)

    def hand_over(self) -> OpenCopy | None:
        """Close all but the persistent stores and the locks, and return these; None if they can't be handed over.

        Raises: StoreError, after everything is closed.
        """
        stores = self._transaction.stores.hand_over()
        if not stores:
            return None
        copy = OpenCopy(stores, self._folder.hand_over())
        try:
            self.close()
        except BaseException:
            with suppress(Exception):
                copy.close()
            raise
        return copy

    def close(self, *, clean: bool = False, processes: bool = False) -> None:
        """Close everything, even after errors; then raise the first error.

        If ``clean``, write the checkpoint file and then the origins: only a store with a checkpoint may be clean.
        """
        transaction, stores = self._transaction, self._transaction.stores
        transaction.context.record = NO_RECORD
        self._memory.discard(self)
        errors = FirstError()
        offsets: Mapping[TopicPartition, int | None] = {}
        origins: Mapping[str, Origin] = {}
        try:
            if clean:
                with errors.step():
                    offsets = stores.checkpointable_offsets(running=False)
                    origins = stores.origins(running=False)
            with errors.step():
                stores.close()
            if processes:
                with errors.step():
                    transaction.close_producer()
            if clean and not errors.failed:
                with errors.step():
                    self._checkpoint.write(offsets)
                    stores.write_origins(origins)
        finally:
            self._folder.release()
        errors.reraise()

    def _check_inputs(self, existing: Mapping[str, int]) -> None:
        """Check that the changelog can commit the offsets of each input. Raises: ChangelogError."""
        transaction = self._transaction
        if transaction.changelog.takes_inputs_elsewhere:
            return
        for topic, number in transaction.inputs:
            count = existing.get(topic, 0)
            if not count:
                raise ChangelogError(
                    f"the input topic {topic!r} of task {transaction.task_id} does not exist: create it, or correct "
                    "the name"
                )
            if number >= count:
                raise ChangelogError(
                    f"the input topic {topic!r} has the partitions 0 to {count - 1}, and task {transaction.task_id} "
                    f"needs partition {number}"
                )


class OpenCopy(Closeable):
    """The open stores of a standby copy, and the locks on its folder, for the task that is opened next.

    That task takes the stores, on its own thread. ``close`` closes those that it has not taken. For one thread at a
    time.
    """

    def __init__(self, stores: Iterable[TaskStore], locks: list[TaskLock | TopologyLock]) -> None:
        self.stores = {store.name: store for store in stores}
        """The stores that no task has taken, by name."""
        self._locks = locks

    def let_lock(self, owner: object) -> None:
        """Let ``owner`` take the locks, which nobody else can take in between."""
        for lock in self._locks:
            if isinstance(lock, TaskLock):
                lock.give(owner)

    def close(self) -> None:
        errors = FirstError()
        while self.stores:
            with errors.step():
                self.stores.popitem()[1].close()
        while self._locks:
            self._locks.pop().release()
        errors.reraise()


class StandbyTask:
    """The standby copy of one task, in the task's folder, which is locked while the copy is open. For one thread.

    A standby is a restore that does not end: its stores follow their changelogs while another instance owns the task.
    It writes committed records only, with their offsets, and no more than that: nothing to the changelog, and no
    producer that would fence the owner. Killed at any time it continues from its offsets.

    It has the persistent stores of the task: a store in memory would be lost when its owner opens it.

    Source: KIP-441; KIP-892, "Offsets for Consumer Rebalances".
    """

    def __init__(self, transaction: TaskTransaction, resources: TaskResources) -> None:
        self._transaction, self._resources = transaction, resources
        self._lifecycle, self._stores = transaction.lifecycle, transaction.stores
        self._open = False
        self._hidden: tuple[Position, Mapping[TopicPartition, int]] | None = None
        """A position that was committed, and the ends that the changelogs had by then."""

    def open(self) -> None:
        """Lock the folder and open the stores. A store that can't be trusted, or is damaged, is wiped.

        Raises: as ``StreamTask.open``, but for fencing; StoreLockedError if another instance has the folder.
        """
        self._lifecycle.check(Call.OPEN)
        self._lifecycle.rebuild()
        try:
            self._resources.open_stores(processes=False)
        except BaseException:
            with suppress(Exception):
                self._close()
            raise
        self._open, self._hidden = True, None

    def follow(self, max_records: int) -> int:
        """Write up to ``max_records`` further committed records into each store; return the offsets that are left.

        0 is the end of the changelogs, as of this call. Raises: ChangelogTimeoutError, after which it can be called
        again; after other errors close the copy; ChangelogLostError if a changelog is empty and the store is not.
        """
        return self._stores.follow(max_records)

    def committed_position(self) -> Position | None:
        """Return a position that the stores have once they are at the ends of their changelogs.

        Return None if some records of the last commit cannot be read yet: a later call returns this position. Kafka
        makes the offsets and the records of one commit visible one after another. Raises: as
        ``Changelog.committed_offsets``.
        """
        changelog = self._transaction.changelog
        if self._hidden is None:
            position = self._transaction.committed_position()
            self._hidden = position, {each: changelog.written_end(each) for each in self._stores.partitions}
        position, ends = self._hidden
        if any(changelog.end_offset(partition) < end for partition, end in ends.items()):
            return None
        self._hidden = None
        return position

    def snapshots(self) -> dict[str, Any]:
        """Return a snapshot of each persistent store by name, typed and for any thread. Close them.

        They show commits whole if the last ``follow`` has returned 0. Raises: as ``KeyValueView.snapshot``.
        """
        return self._stores.snapshots()

    def offsets(self) -> dict[TopicPartition, int | None]:
        """Return the changelog offset that each store has, None if unknown. No file is read. For any thread."""
        return self._stores.offsets()

    def hand_over(self) -> OpenCopy | None:
        """End the copy, and return its open stores for ``StreamTask.open``, which another thread may call.

        Snapshots of them stay open. Return None if a store can't be handed over: the copy is open then, as before.
        Such are stores that do not isolate uncommitted writes or do not manage their offsets, and those with an
        upgrade. Raises: StoreError, after which the copy is closed.
        """
        if not self._open:
            return None
        try:
            copy = self._resources.hand_over()
        except BaseException:
            self._open = False
            self._lifecycle.close()
            raise
        if copy is not None:
            self._open = False
            self._lifecycle.close()
        return copy

    def close(self, *, clean: bool = True) -> None:
        """Close the stores: if ``clean``, with a checkpoint. May be called more than once. Raises: the first error."""
        if self._open:
            self._close(clean=clean)

    def _close(self, *, clean: bool = False) -> None:
        self._open = False
        self._lifecycle.close()
        self._resources.close(clean=clean)
