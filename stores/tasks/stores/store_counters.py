"""The counters of one store of a task. They continue when the task wipes the store or opens it again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from threading import Lock

from stores.errors import StoreError
from stores.interface import KeyValueStore
from stores.metrics import StoreMetrics, TaskStoreMetrics
from stores.records.record_kind import TypedStore
from stores.settings import UpgradeProgress
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tasks.stores.store_log import StoreLog


class TaskStoreCounters:
    """The sum of the metrics of the stores that were opened one after the other under one name. Read on any thread."""

    def __init__(self, bound: ReplayBound) -> None:
        self._bound = bound
        self._store: KeyValueStore | None = None
        self._log: StoreLog | None = None
        self._typed: TypedStore | None = None
        self._before: StoreMetrics | None = None
        # Without the lock a reader could count a replaced store twice: by itself, and in the sum of earlier stores.
        self._lock = Lock()
        self.replay_total = 0
        self.wipe_total = 0
        self.recovery_seconds_total = 0.0
        self._upgrade: UpgradeProgress | None = None
        self._upgrade_total = self._upgrade_records_total = 0

    def follow(self, store: KeyValueStore) -> None:
        """Continue with ``store``. The one before is closed."""
        with self._lock:
            self._before = self._counted()
            self._store = store

    def follow_log(self, log: StoreLog) -> None:
        """Count the records of the store's open transaction that ``log`` holds."""
        self._log = log

    def follow_typed(self, typed: TypedStore) -> None:
        """Count the records that ``typed`` drops. It stays when the store below it is replaced."""
        self._typed = typed

    def upgraded(self, progress: UpgradeProgress) -> None:
        """Note the progress of an upgrade."""
        before = self._upgrade
        counted = before.records if before is not None and before.records <= progress.records else 0
        self._upgrade_records_total += progress.records - counted
        self._upgrade = progress
        self._upgrade_total += progress.swapped

    def read(self) -> TaskStoreMetrics | None:
        """Return all counts; None before the first store."""
        with self._lock:
            counted = self._counted()
        if counted is None:
            return None
        unpersisted_bytes, upgrade = 0, self._upgrade
        with suppress(StoreError):
            unpersisted_bytes = self._bound.num_bytes
        return TaskStoreMetrics(
            **{entry.name: getattr(counted, entry.name) for entry in fields(counted) if entry.name != "late_total"},
            late_total=0 if self._typed is None else self._typed.late_total,
            replay_total=self.replay_total,
            wipe_total=self.wipe_total,
            recovery_seconds_total=self.recovery_seconds_total,
            persist_total=self._bound.persist_total,
            unpersisted_bytes=unpersisted_bytes,
            upgrade_total=self._upgrade_total,
            upgrade_records_total=self._upgrade_records_total,
            upgrade_remaining_offsets=None if upgrade is None else max(0, upgrade.to_offset - 1 - upgrade.offset),
        )

    def _counted(self) -> StoreMetrics | None:
        if self._store is None:
            return None
        metrics = self._store.metrics
        if self._log is not None and self._store.is_open:
            held = metrics.uncommitted_memory_bytes + self._log.memory_bytes()
            metrics = replace(metrics, uncommitted_memory_bytes=held)
        return metrics if self._before is None else metrics.after(self._before)
