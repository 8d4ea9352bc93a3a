"""The stores of a task as a group: opening, restore, commit in order, close, and their common checkpoint file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from stores.changelog.interface import Producer
from stores.errors import ChangelogError, StoreCorruptedError, StoreError
from stores.failpoints import Part, declare, reach
from stores.interface import IsolationLevel, Position, PositionBound, TopicPartition
from stores.metrics import TaskStoreMetrics
from stores.tasks.context import TaskContext
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile, SplitCheckpoint, SplitOrigins
from stores.tasks.first_error import FirstError
from stores.tasks.stores.log_follower import OnRestore, RestoreReport
from stores.tasks.stores.task_store import TaskStore
from stores.tasks.stores.view import snapshot_of, viewed

_log = logging.getLogger(__name__)

AFTER_LOG_COMMIT = declare("task.after_log_commit", "the changelog has the commit, no store has it", part=Part.TASK)
BETWEEN_STORES = declare(
    "task.between_stores", "the changelog and some of the stores have the commit, others not", part=Part.TASK
)
AFTER_STORE_COMMIT = declare("task.after_store_commit", "the changelog and all stores have the commit", part=Part.TASK)
AFTER_CHECKPOINT = declare(
    "task.after_checkpoint", "the commit is complete, also in the checkpoint file where one is due", part=Part.TASK
)


class StoreGroup:
    """All stores of one task, in the order in which it names them. For one thread."""

    def __init__(
        self,
        stores: Sequence[TaskStore],
        checkpoint: CheckpointFile | SplitCheckpoint,
        origins: OriginFile | SplitOrigins,
        on_restore: OnRestore | None,
        *,
        exactly_once: bool,
    ) -> None:
        self._stores = stores
        self._checkpoint = checkpoint
        self._origins = origins
        self._written_origins: Mapping[str, Origin] = {}
        self._on_restore = on_restore
        self._exactly_once = exactly_once
        self._opened: list[TaskStore] = []
        self.standby_lag: int | None = None
        """The lag of the last ``follow``; None before the first, and once the stores are closed."""
        self.log_room = 0
        """The bytes by which each changelog may at least grow in this transaction.

        Each step subtracts what it wrote. If too little is left, ``check_logs`` is due.
        """

    @property
    def partitions(self) -> list[TopicPartition]:
        """The changelog partitions of the stores."""
        return [store.partition for store in self._stores]

    def create_topics(self, partitions: int) -> None:
        """Create the changelog topics that do not exist. Raises: as ``Changelog.create_store_topic``."""
        for store in self._stores:
            store.create_topic(partitions)

    def open(self, copies: dict[str, TaskStore]) -> None:
        """Open each store, or take its open copy out of ``copies`` and continue with that.

        A damaged checkpoint file has no offset for any. Raises: as ``open_store``.
        """
        try:
            offsets = self._checkpoint.read()
        except StoreCorruptedError:
            offsets = {}
        self._written_origins = self._origins.read([store.name for store in self._stores])
        for store in self._stores:
            try:
                origin, copy = self._written_origins.get(store.name), copies.get(store.name)
                store.open(offsets.get(store.partition), origin, copy)
            except BaseException:
                # Its engine may have been opened before the failure.
                with suppress(StoreError):
                    store.close()
                raise
            copies.pop(store.name, None)
            self._opened.append(store)
        self._warn_of_a_mixture()

    def _warn_of_a_mixture(self) -> None:
        """Warn of a task with transactional and other stores. Source: KIP-844, whose prototype has this warning."""
        mixing = [store.name for store in self._stores if not store.store.transactional]
        if mixing and len(mixing) < len(self._stores):
            _log.warning(
                "the task in %s has stores of two kinds, and does not isolate uncommitted writes in %s. After a "
                "rollback or a crash these stores contain such writes. Under exactly once they are then wiped and "
                "restored whole",
                self._checkpoint.path.parent,
                ", ".join(mixing),
            )

    def restore(self, position: Position, *, owned: bool) -> list[RestoreReport]:
        """Bring each store to its changelog's end, as of the input's ``position``, and write the checkpoint file.

        ``owned`` is as in ``TaskStore.restore``.
        """
        reports = [store.restore(position, self._on_restore, owned=owned) for store in self._stores]
        # Durable before the task's first write, and not earlier: a restore that fails has only written changelog
        # records, beyond the offset that the checkpoint file still has.
        self.write_origins(self.origins(running=True))
        self._checkpoint.write(self.checkpointable_offsets(running=True))
        return reports

    def follow(self, max_records: int) -> int:
        """Write up to ``max_records`` further records into each persistent store; return the sum of their lags."""
        self.standby_lag = sum(store.follow(max_records) for store in self._stores if store.store.persistent)
        if not self.standby_lag:
            self.idle()
        return self.standby_lag

    def idle(self) -> None:
        """Let stores with a long replay after a kill begin to flush: there is no input at the moment."""
        for store in self._stores:
            store.bound.idle()

    def rewrite_logs(self, transactional_id: str) -> bool:
        """Rewrite changelogs after a restore, if an upgrade asks for that; return whether one was. Raises: StoreError.

        The producers have the ID of the task, so its own one is fenced then.
        """
        rewritten = [store.rewrite_log(transactional_id) for store in self._stores]
        if any(rewritten):
            self._checkpoint.write(self.checkpointable_offsets(running=True))
        return any(rewritten)

    @property
    def reports(self) -> list[RestoreReport]:
        """The report of the last restore of each store."""
        return [store.report for store in self._stores if store.report is not None]

    def logged(self, context: TaskContext) -> dict[str, Any]:
        """Return the stores by name, as the task's function sees them."""
        return {store.name: store.logged(context) for store in self._stores}

    def begin(self) -> None:
        """Begin a transaction of the changelogs."""
        for store in self._stores:
            store.begin()
        self.check_logs(0)

    def room(self, wanted_bytes: int) -> int:
        """Return the bytes by which each changelog may grow; exact if fewer than ``wanted_bytes``."""
        return self.log_room if self.log_room >= wanted_bytes else self.check_logs(wanted_bytes)

    def check_logs(self, wanted_bytes: int) -> int:
        """Set ``log_room`` to the smallest room of the stores' changelogs, and return it."""
        self.log_room = min((store.log_room(wanted_bytes) for store in self._stores), default=sys.maxsize)
        return self.log_room

    def before_commit(self) -> None:
        """Let each typed store make a bounded step of expiry. It is part of the transaction."""
        for store in self._stores:
            store.before_commit()

    def send_stream_times(self, producer: Producer) -> None:
        """Add the stream times that do not follow from the changelogs to the open transaction."""
        for store in self._stores:
            store.send_stream_time(producer)

    def finish_logs(self) -> None:
        """Send the held records before the changelogs are committed. Raises: as ``Producer.send``."""
        for store in self._stores:
            store.finish_log()

    def compact_logs(self) -> None:
        """Make one step of compacting each changelog, if due. After an error the next commit tries again."""
        for store in self._stores:
            with suppress(ChangelogError):
                store.compact_log()

    def upgrade_step(self) -> None:
        """Make a bounded step of each online upgrade."""
        for store in self._stores:
            store.format.step()

    def swap_upgraded(self, position: Position) -> None:
        """Swap in each new store of an online upgrade that is due. Raises: as ``open``."""
        for store in self._stores:
            store.swap_upgraded(position)

    def take_snapshots(self) -> None:
        """Begin the snapshots by files that are due, of the last commit."""
        for store in self._stores:
            store.take_snapshot()

    def uncommitted_bytes(self) -> int:
        """Return the bytes of keys and values that all stores have staged."""
        return sum(store.store.approximate_num_uncommitted_bytes() for store in self._opened)

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the open transactions of all stores, as it counts towards the limit."""
        return sum(store.uncommitted_memory_bytes() for store in self._opened)

    def advance(self, partition: TopicPartition, offset: int) -> None:
        """Advance the staged position of all stores to a processed record. Source: KIP-892, KIP-796."""
        for store in self._stores:
            store.store.advance_position(partition, offset)

    def view(self, name: str, level: IsolationLevel | None, bound: PositionBound | None) -> Any:
        """Return a view of the store ``name`` for other threads, typed by its configuration. Raises: KeyError."""
        return viewed({store.name: store for store in self._stores}[name], level, bound)

    def snapshots(self) -> dict[str, Any]:
        """Return a snapshot of each persistent store by name, as of its last restored record: see ``snapshot_of``."""
        with ExitStack() as opened:
            snapshots = {
                store.name: opened.enter_context(snapshot_of(store)) for store in self._stores if store.store.persistent
            }
            opened.pop_all()
        return snapshots

    def commit(self, offsets: Mapping[TopicPartition, int], position: Position) -> None:
        """Commit each store with its offset in the changelog's commit, which reflects ``position``.

        A store that fails replays the commit from the changelog, once all others have committed. If that fails too, the
        first such error is raised at the end.
        """
        reach(AFTER_LOG_COMMIT)
        failures = []
        errors = FirstError()
        for number, store in enumerate(self._stores):
            if number:
                reach(BETWEEN_STORES)
            with errors.step():
                error = store.commit(offsets.get(store.partition))
                if error is not None:
                    failures.append((store, error))
        for store, error in failures:
            with errors.step():
                store.catch_up(error, position, self._on_restore)
        errors.reraise()
        reach(AFTER_STORE_COMMIT)
        if not self._exactly_once and any(store.checkpointed for store in self._stores):
            self._checkpoint.write(self.checkpointable_offsets(running=True))
        reach(AFTER_CHECKPOINT)

    def position(self) -> Position:
        """Return the highest input offset that the committed state of a store reflects, by partition."""
        reached: dict[TopicPartition, int] = {}
        for store in self._stores:
            for partition, offset in store.store.position(IsolationLevel.READ_COMMITTED).items():
                reached[partition] = max(offset, reached.get(partition, 0))
        return reached

    def offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offset of each store's committed state; None if it is unknown."""
        return {store.partition: store.offset for store in self._stores}

    def checkpointable_offsets(self, *, running: bool) -> dict[TopicPartition, int | None]:
        """Return the checkpointable offsets of the persistent stores, after persisting the data up to them.

        While an exactly-once task is running, this leaves out stores whose offset is in the checkpoint file alone: they
        mix uncommitted writes with committed ones (KIP-844, step 4).
        """
        offsets: dict[TopicPartition, int | None] = {}
        for store in self._stores:
            if store.checkpointed:
                if running and self._exactly_once:
                    continue
                store.store.persist()
            if store.store.persistent:
                offsets[store.partition] = store.offset
        return offsets

    def origins(self, *, running: bool) -> dict[str, Origin]:
        """Return the entries of the origin file for a running task or after a clean close."""
        origins = {store.name: store.origin(running=running) for store in self._stores}
        return {name: origin for name, origin in origins.items() if origin is not None}

    def write_origins(self, origins: Mapping[str, Origin]) -> None:
        """Write the origins of the stores to their file, if they have changed. Raises: StoreUnavailableError."""
        if origins != self._written_origins:
            self._origins.write(origins)
            self._written_origins = origins

    def rollback(self) -> None:
        """Roll back every store, even after errors; then raise the first error."""
        errors = FirstError()
        for store in self._stores:
            with errors.step():
                store.store.rollback()
        errors.reraise()

    def return_to_commit(self, cause: BaseException, position: Position) -> None:
        """Return each store to its changelog's end after ``cause``, even after errors; then raise the first error."""
        errors = FirstError()
        for store in self._stores:
            with errors.step():
                store.return_to_commit(cause, position, self._on_restore)
        errors.reraise()

    def metrics(self) -> dict[str, TaskStoreMetrics]:
        """Return the metrics of each store that was ever open, by name."""
        read = {store.name: store.counters.read() for store in self._stores}
        return {name: metrics for name, metrics in read.items() if metrics is not None}

    def engine_metrics(self) -> dict[str, Mapping[str, int]]:
        """Return the figures of the engines of the open stores, by name; none of a store that fails to report."""
        figures = {}
        for store in list(self._opened):
            with suppress(StoreError):
                figures[store.name] = store.store.engine_metrics()
        return figures

    def hand_over(self) -> list[TaskStore]:
        """Return the persistent stores, which are open, and do not close them; none unless all can be handed over."""
        persistent = [store for store in self._opened if store.store.persistent]
        if not all(store.can_be_handed_over for store in persistent):
            return []
        self._opened = [store for store in self._opened if store not in persistent]
        return persistent

    def close(self) -> None:
        """Close every store, even after errors; then raise the first error."""
        self.standby_lag = None
        errors = FirstError()
        for store in self._opened:
            with errors.step():
                store.close()
        self._opened = []
        errors.reraise()
