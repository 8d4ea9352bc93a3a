"""The stores of a task together: opened, restored, committed in order, closed, and the checkpoint file they share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from stores.errors import ChangelogError, StoreCorruptedError, StoreError
from stores.failpoints import declare, reach
from stores.interface import IsolationLevel, Position, PositionBound, TopicPartition
from stores.metrics import TaskStoreMetrics
from stores.tasks.attempts import Attempts
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.context import TaskContext
from stores.tasks.origin_file import Origin, OriginFile
from stores.tasks.restore import OnRestore, RestoreReport
from stores.tasks.split_files import SplitCheckpoint, SplitOrigins
from stores.tasks.task_store import TaskStore
from stores.tasks.view import TaskView

_log = logging.getLogger(__name__)

AFTER_LOG_COMMIT = declare("task.after_log_commit", "the changelog has the commit, no store has it")
BETWEEN_STORES = declare("task.between_stores", "the changelog and some of the stores have the commit, others not")
AFTER_STORE_COMMIT = declare("task.after_store_commit", "the changelog and all stores have the commit")
AFTER_CHECKPOINT = declare(
    "task.after_checkpoint", "the commit is complete, also in the checkpoint file where one is due"
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
        self._noted: Mapping[str, Origin] = {}
        self._on_restore = on_restore
        self._exactly_once = exactly_once
        self._opened: list[TaskStore] = []
        self.log_room = 0
        """By how many bytes at least each changelog may grow in this transaction. A step takes what it wrote from it;
        where that leaves too little, ``look_at_logs`` is due."""

    @property
    def partitions(self) -> list[TopicPartition]:
        """Their changelog partitions."""
        return [store.partition for store in self._stores]

    def open(self) -> None:
        """Open each store; where the checkpoint file can't be read, it vouches for none. Raises as ``open_store``."""
        try:
            offsets = self._checkpoint.read()
        except StoreCorruptedError:
            offsets = {}
        self._noted = self._origins.read([store.name for store in self._stores])
        for store in self._stores:
            try:
                store.open(offsets.get(store.partition), self._noted.get(store.name))
            except BaseException:
                # It may have failed when it was open already.
                with suppress(StoreError):
                    store.close()
                raise
            self._opened.append(store)
        self._warn_of_a_mixture()

    def _warn_of_a_mixture(self) -> None:
        """Source: KIP-844, whose prototype warns of stores of both kinds in one task."""
        mixing = [store.name for store in self._stores if not store.store.transactional]
        if mixing and len(mixing) < len(self._stores):
            _log.warning(
                "the task in %s has stores of two kinds, and keeps no uncommitted writes apart in %s: after a rollback "
                "or a crash these have such writes in them, and exactly once they are wiped for it and restored whole",
                self._checkpoint.path.parent,
                ", ".join(mixing),
            )

    def restore(self, position: Position) -> list[RestoreReport]:
        """Bring each store to its changelog's end, and write the checkpoint file (KIP-892, written on opening).

        ``position`` is that of the input whose effects the changelogs have.
        """
        reports = [store.restore(position, self._on_restore) for store in self._stores]
        # Durable before the task's first write, and not earlier: a restore that fails has only written what the
        # changelog has, beyond an offset that the checkpoint file still tells.
        self.note(self.origins(running=True))
        self._checkpoint.write(self.vouched_offsets(running=True))
        return reports

    @property
    def reports(self) -> list[RestoreReport]:
        """What the last restore of each store did."""
        return [store.report for store in self._stores if store.report is not None]

    def logged(self, context: TaskContext) -> dict[str, Any]:
        """The stores by name, as the task's function sees them."""
        return {store.name: store.logged(context) for store in self._stores}

    def begin(self) -> None:
        """Begin a transaction of the changelogs."""
        for store in self._stores:
            store.begin()
        self.look_at_logs(0)

    def look_at_logs(self, wanted_bytes: int) -> int:
        """Set ``log_room`` from the changelogs themselves, and return it: the smallest of the stores' own."""
        self.log_room = min((store.log_room(wanted_bytes) for store in self._stores), default=sys.maxsize)
        return self.log_room

    def before_commit(self) -> None:
        """Let the typed stores make their bounded steps of expiry, which are part of the transaction."""
        for store in self._stores:
            store.before_commit()

    def finish_logs(self) -> None:
        """Send the held records before the changelogs are committed. Raises as ``Producer.send``."""
        for store in self._stores:
            store.finish_log()

    def compact_logs(self) -> None:
        """Make one step of compacting each changelog, if due. After an error the next commit tries again."""
        for store in self._stores:
            with suppress(ChangelogError):
                store.compact_log()

    def upgrade_step(self) -> None:
        """Go on with each online upgrade, by a bounded step."""
        for store in self._stores:
            store.format.step()

    def uncommitted_bytes(self) -> int:
        """Bytes of keys and values that they have staged together."""
        return sum(store.store.approximate_num_uncommitted_bytes() for store in self._opened)

    def uncommitted_memory_bytes(self) -> int:
        """What their open transactions count towards the limit together."""
        return sum(store.uncommitted_memory_bytes() for store in self._opened)

    def advance(self, partition: TopicPartition, offset: int) -> None:
        """Note that a record of the input is processed: what is staged reflects it. Source: KIP-892, "Interactive Query
        .position Offsets"; KIP-796."""
        for store in self._stores:
            store.store.advance_position(partition, offset)

    def view(self, name: str, level: IsolationLevel | None, bound: PositionBound | None) -> Any:
        """The store of that name for other threads, typed as its configuration says. Raises: KeyError."""
        store = {store.name: store for store in self._stores}[name]
        view = TaskView(store, level, bound)
        return store.format.shown(view if store.format.records is None else store.format.records.view(view))

    def commit(self, offsets: Mapping[TopicPartition, int], position: Position) -> None:
        """Commit each store with the offset that the changelog's commit gave it; ``position`` is what that reflects.

        A store that fails does not keep the others from theirs; it then replays the commit from the changelog. Where
        one fails in that, too, or in a way that nobody knows, the others still commit or catch up; then its error is
        raised, of several the first.
        """
        reach(AFTER_LOG_COMMIT)
        failed = []
        attempts = Attempts()
        for number, store in enumerate(self._stores):
            if number:
                reach(BETWEEN_STORES)
            with attempts.one():
                error = store.commit(offsets.get(store.partition))
                if error is not None:
                    failed.append((store, error))
        for store, error in failed:
            with attempts.one():
                store.catch_up(error, position, self._on_restore)
        attempts.end()
        reach(AFTER_STORE_COMMIT)
        if not self._exactly_once and any(store.checkpointed for store in self._stores):
            self._checkpoint.write(self.vouched_offsets(running=True))
        reach(AFTER_CHECKPOINT)

    def offsets(self) -> dict[TopicPartition, int | None]:
        """The offset of each store's committed state; None where it is not known."""
        return {store.partition: store.offset for store in self._stores}

    def vouched_offsets(self, *, running: bool) -> dict[TopicPartition, int | None]:
        """What the checkpoint file may say of the persistent stores, after making that true.

        While the task is running exactly once, it says nothing of stores that it alone would vouch for: they mix
        uncommitted writes with committed ones (KIP-844, step 4).
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
        """The entries of the file of origins, while the task is open or after a clean close."""
        found = {store.name: store.origin(running=running) for store in self._stores}
        return {name: origin for name, origin in found.items() if origin is not None}

    def note(self, origins: Mapping[str, Origin]) -> None:
        """Write the origins of the stores to their file, if they have changed. Raises: StoreUnavailableError."""
        if origins != self._noted:
            self._origins.write(origins)
            self._noted = origins

    def rollback(self) -> None:
        """Discard what is staged, in every store, whatever goes wrong; then raise the first error."""
        attempts = Attempts()
        for store in self._stores:
            with attempts.one():
                store.store.rollback()
        attempts.end()

    def fall_back(self, cause: BaseException, position: Position) -> None:
        """Undo what was staged before ``cause`` was raised, and bring each store to its changelog's end.

        Every store, whatever goes wrong; then raises the first error.
        """
        attempts = Attempts()
        for store in self._stores:
            with attempts.one():
                store.fall_back(cause, position, self._on_restore)
        attempts.end()

    def metrics(self) -> dict[str, TaskStoreMetrics]:
        """What was counted of each that was ever open, by name."""
        read = {store.name: store.counters.read() for store in self._stores}
        return {name: metrics for name, metrics in read.items() if metrics is not None}

    def engine_metrics(self) -> dict[str, Mapping[str, int]]:
        """Figures of the engines of those that are open and can tell, by name."""
        figures = {}
        for store in list(self._opened):
            with suppress(StoreError):
                figures[store.name] = store.store.engine_metrics()
        return figures

    def close(self) -> None:
        """Close every store, whatever goes wrong; then raise the first error."""
        attempts = Attempts()
        for store in self._opened:
            with attempts.one():
                store.close()
        self._opened = []
        attempts.end()
