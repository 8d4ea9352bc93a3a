"""The reading side of a task: views of its stores, their offsets and restores, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from stores.interface import IsolationLevel, PositionBound, TopicPartition
from stores.metrics import TaskMetrics
from stores.records.handles import ViewHandle
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.stores.log_follower import RestoreReport
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.stores.store_metrics import LatencyHistograms, with_latencies
from stores.tasks.task_resources import TaskResources
from stores.tasks.task_state import Call, TaskCounters, TaskLifecycle
from stores.tasks.task_transaction import TaskTransaction

View = TypeVar("View")


class ReadableTask:
    """The part of a ``StreamTask`` that changes nothing. The task sets its attributes."""

    application_id: str
    task_id: TaskId
    _stores: StoreGroup
    _latencies: Mapping[str, LatencyHistograms]
    _context: TaskContext
    _lifecycle: TaskLifecycle
    _counters: TaskCounters
    _transaction: TaskTransaction
    _resources: TaskResources

    def restore_reports(self) -> list[RestoreReport]:
        """Return the report of each store's last restore, on opening or after a later rollback."""
        return self._stores.reports

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offset of each store's committed state, None if unknown. No file is read."""
        self._lifecycle.check(Call.READ)
        return self._stores.offsets()

    @overload
    def store(
        self,
        store: ViewHandle[View],
        isolation_level: IsolationLevel | None = None,
        bound: PositionBound | None = None,
    ) -> View: ...

    @overload
    def store(
        self, store: str, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> Any: ...

    def store(
        self, store: object, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> Any:
        """Return a view of a store of the task, for use outside its function: see ``KeyValueStore.read_only``.

        ``store`` is the description that the store was declared with, which has the store's name, or the name. The
        default isolation level is that of the store's configuration, or READ_COMMITTED under exactly once. The view is
        a ``KeyValueView`` of bytes, or the typed view of the ``records`` in the configuration.

        The view stays valid if the task reopens or replaces the store. It answers while the task is open. During a
        restore of the store it raises StoreRestoringError.

        Raises: ConfigError if the task has no such store; ValueError for an unknown level; StoreClosedError;
        StoreRestoringError; the error that the task has failed with; TypeError.
        """
        self._lifecycle.check(Call.READ)
        return self._stores.view(self._context._stores.name_of(store), isolation_level, bound)

    def uncommitted_bytes(self) -> int:
        """Return the bytes of keys and values that the task's stores have staged; 0 if the task is not open."""
        return self._stores.uncommitted_bytes() if self._lifecycle.ready else 0

    def uncommitted_memory_bytes(self) -> int:
        """Return the memory of the open transaction that counts towards the limit; 0 if the task is not open.

        This is ``uncommitted_bytes``, the cost of each staged entry, and that of each record held for the changelog.
        """
        return self._resources.uncommitted_memory_bytes()

    @property
    def metrics(self) -> TaskMetrics:
        """The counts of the task and its stores since the task was created, and their present state. A copy.

        On any thread, at any time. Source: KIP-892, "Metrics"; KIP-869.
        """
        return TaskMetrics(
            application=self.application_id,
            task=str(self.task_id),
            stores=with_latencies(self._stores.metrics(), self._latencies),
            process_total=self._transaction.committed,
            standby_lag=self._stores.standby_lag,
            **self._counters.read(),
        )

    def engine_metrics(self) -> Mapping[str, Mapping[str, int]]:
        """Return the figures of each open store's engine, by the store's name: see ``StateStore.engine_metrics``."""
        return self._stores.engine_metrics()
