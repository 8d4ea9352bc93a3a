"""The metrics of one store of a task: its counters, and the times of its calls.

The counters continue when the task wipes the store or opens it again. The times are recorded in histograms, only with
``metrics.recording.level=DEBUG``: then the task's function gets its stores behind a ``MeasuredStore``. Otherwise it
gets the stores themselves, so that nothing of this is on the way of a lookup.

Source: KIP-444 (latencies of stores are recorded at DEBUG: ``put-latency``, ``get-latency``, ``range-latency``) and
KIP-892 (``commit-latency``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from threading import Lock
from time import perf_counter
from typing import Any, Self

from stores.contract.levels import Level
from stores.errors import StoreError
from stores.interface import KeyValueStore
from stores.metrics import LATENCY_BOUNDS_S, LatencyHistogram, StoreMetrics, TaskStoreMetrics
from stores.records.record_kind import TypedStore
from stores.registry import member
from stores.settings import UpgradeProgress
from stores.snapshots.taking import SnapshotFigures
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tasks.stores.store_log import StoreLog


class TaskStoreCounters:
    """The sum of the metrics of the stores that were opened one after the other under one name. Read on any thread."""

    def __init__(self, bound: ReplayBound, snapshots: SnapshotFigures) -> None:
        self._bound, self._snapshots = bound, snapshots
        self._store: KeyValueStore | None = None
        self.log: StoreLog | None = None
        """The held records of the store's open transaction, which count."""
        self.typed: TypedStore | None = None
        """Its dropped records count. It stays when the store below it is replaced."""
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

    def upgraded(self, progress: UpgradeProgress) -> None:
        """Note the progress of an upgrade."""
        before = self._upgrade
        earlier = before.records if before is not None and before.records <= progress.records else 0
        self._upgrade_records_total += progress.records - earlier
        self._upgrade = progress
        self._upgrade_total += progress.swapped

    def read(self) -> TaskStoreMetrics | None:
        """Return all counts; None before the first store."""
        with self._lock:
            metrics = self._counted()
        if metrics is None:
            return None
        unpersisted_bytes, upgrade, snapshots = 0, self._upgrade, self._snapshots
        with suppress(StoreError):
            unpersisted_bytes = self._bound.num_bytes
        return TaskStoreMetrics(
            **{entry.name: getattr(metrics, entry.name) for entry in fields(metrics) if entry.name != "late_total"},
            late_total=0 if self.typed is None else self.typed._late_kept_total,
            replay_total=self.replay_total,
            wipe_total=self.wipe_total,
            recovery_seconds_total=self.recovery_seconds_total,
            persist_total=self._bound.persist_total,
            unpersisted_bytes=unpersisted_bytes,
            upgrade_total=self._upgrade_total,
            upgrade_records_total=self._upgrade_records_total,
            snapshot_total=snapshots.total,
            snapshot_failed_total=snapshots.failed_total,
            snapshot_sent_bytes_total=snapshots.bytes_total,
            snapshot_sent_objects_total=snapshots.objects_total,
            snapshot_restore_total=snapshots.restore_total,
            snapshot_offset=snapshots.offset,
            upgrade_remaining_offsets=None if upgrade is None else max(0, upgrade.to_offset - 1 - upgrade.offset),
        )

    def _counted(self) -> StoreMetrics | None:
        if self._store is None:
            return None
        metrics = self._store.metrics
        if self.log is not None and self._store.is_open:
            memory_bytes = metrics.uncommitted_memory_bytes + self.log.memory_bytes()
            metrics = replace(metrics, uncommitted_memory_bytes=memory_bytes)
        return metrics if self._before is None else metrics.after(self._before)


GET, PUT, SCAN, COMMIT = "get", "put", "scan", "commit"
_CALLS: Mapping[str, str] = {
    GET: "get get_many fetch_one fetch_session fetch_many find_sessions_many",
    PUT: "put put_all put_many put_if_absent update merge delete delete_many delete_range remove",
    SCAN: (
        "range reverse_range range_many all reverse_all prefix_scan reverse_prefix_scan fetch fetch_range fetch_all "
        "find_sessions backward_fetch backward_fetch_range backward_fetch_all backward_all backward_find_sessions "
        "get_versions"
    ),
}
"""The calls of stores of all kinds, by operation."""


class RecordingLevel(Level):
    """The metrics that a task records. Source: Kafka, ``metrics.recording.level``."""

    INFO = "INFO"
    """Those that cost nothing per record."""
    DEBUG = "DEBUG"
    """The latencies of its stores as well."""
    TRACE = "TRACE"
    """As DEBUG."""


class LatencyHistograms:
    """The histograms of one store, by operation. Written by the task's thread, read on any."""

    def __init__(self) -> None:
        self._counts = {name: [0] * (len(LATENCY_BOUNDS_S) + 1) for name in (GET, PUT, SCAN, COMMIT)}
        self._seconds = dict.fromkeys(self._counts, 0.0)

    def record(self, operation: str, seconds: float) -> None:
        """Count one call."""
        self._counts[operation][bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self._seconds[operation] += seconds

    def timed(self, operation: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with its time recorded, also if it raises."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.record(operation, perf_counter() - began)

        return timed

    def timed_scan(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, whose iterators record the time from the call to their end."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = perf_counter()
            result = call(*arguments, **named)
            if isinstance(result, list):
                return [MeasuredIterator(each, began, self) for each in result]
            return MeasuredIterator(result, began, self)

        return timed

    def read(self) -> dict[str, LatencyHistogram]:
        """Return a copy of the histograms, by operation."""
        return {name: LatencyHistogram(tuple(counts), self._seconds[name]) for name, counts in self._counts.items()}


class MeasuredStore:
    """A store of any kind whose calls are timed. It has all attributes of the store itself."""

    def __init__(self, store: Any, latencies: LatencyHistograms) -> None:
        self._measured = store
        for operation, names in _CALLS.items():
            for name in names.split():
                call = getattr(store, name, None)
                if call is not None:
                    timed = latencies.timed_scan(call) if operation == SCAN else latencies.timed(operation, call)
                    setattr(self, name, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._measured, name)

    def __repr__(self) -> str:
        return repr(self._measured)


class MeasuredIterator:
    """An iterator of a store that records its whole time once: when it is used up or closed."""

    def __init__(self, iterator: Any, began: float, latencies: LatencyHistograms) -> None:
        self._iterator, self._began, self._latencies = iterator, began, latencies
        self._recorded = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except BaseException:
            self._record()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def close(self) -> None:
        """End the scan."""
        try:
            self._iterator.close()
        finally:
            self._record()

    def _record(self) -> None:
        if not self._recorded:
            self._recorded = True
            self._latencies.record(SCAN, perf_counter() - self._began)


def latencies_of(stores: Iterable[Any], level: RecordingLevel | str) -> dict[str, LatencyHistograms]:
    """Return histograms by store, and time commits; empty unless ``level`` is DEBUG. Raises: ConfigError for others."""
    if member(RecordingLevel, "recording level", level) is RecordingLevel.INFO:
        return {}
    latencies = {}
    for store in stores:
        latencies[store.name] = own = LatencyHistograms()
        store.commit = own.timed(COMMIT, store.commit)
    return latencies


def measured(stores: Mapping[str, Any], latencies: Mapping[str, LatencyHistograms]) -> dict[str, Any]:
    """Return the stores as the function gets them, timed if there are histograms."""
    return {name: MeasuredStore(store, latencies[name]) if latencies else store for name, store in stores.items()}


def with_latencies(
    stores: Mapping[str, TaskStoreMetrics], latencies: Mapping[str, LatencyHistograms]
) -> Mapping[str, TaskStoreMetrics]:
    """Return the metrics of stores by name, each with its histograms, if there are any."""
    if not latencies:
        return stores
    return {name: replace(each, operation_latency_seconds=latencies[name].read()) for name, each in stores.items()}
