"""Metrics of stores and tasks: plain values, read at any time and from any thread, and the counters behind them.

Counting costs nothing per record: it is done per commit, rollback, scan and restored piece. Other values are looked up
when they are read. A reading is a copy. Totals and maxima never decrease during the life of a store or task, so that
the difference of two readings covers the time in between (``since``). Current values go up and down. Times are in
seconds.

Source: KIP-892 and KIP-844, "Metrics"; names as in Kafka Streams' ``stream-state-metrics`` and ``stream-task-metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from time import perf_counter
from types import TracebackType
from typing import Any, Self

__all__ = [
    "LATENCY_BOUNDS_S",
    "CommitMetrics",
    "EarlyCommitCause",
    "LatencyHistogram",
    "Measure",
    "MetricKind",
    "StoreMetrics",
    "TaskMetrics",
    "TaskStoreMetrics",
    "exported",
    "measures",
]

_MEASURE = "measure"


class MetricKind(StrEnum):
    """The behaviour of a value from one reading to the next."""

    TOTAL = "total"
    """Only grows; differences add up."""
    MAXIMUM = "maximum"
    """Only grows; of the whole life so far."""
    HISTOGRAM = "histogram"
    """Counts of durations by their length; None if they are not recorded."""
    CURRENT = "current"
    """Goes up and down; None if there is no value."""


LATENCY_BOUNDS_S = tuple(float(f"{factor}e{power}") for power in range(-6, 1) for factor in (1, 2.5, 5))
"""The upper bounds of the buckets of a histogram, 1 microsecond to 5 seconds; the last bucket has no bound."""


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Durations by their length: the number in each bucket of ``LATENCY_BOUNDS_S`` and beyond, and their sum."""

    counts: tuple[int, ...]
    seconds: float

    @property
    def total(self) -> int:
        """The number of durations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Measure:
    """The meaning of a field of the metrics. ``unit`` is UCUM's; ``label`` names the keys of a mapping."""

    kind: MetricKind
    description: str
    unit: str
    label: str | None = None


class EarlyCommitCause(StrEnum):
    """The reason why a task committed before its interval was over."""

    REQUESTED = "REQUESTED"
    """Its function asked for it. Source: KIP-892, ``ProcessingContext#commit``."""
    EXCEEDED = "EXCEEDED"
    """The staged writes have exceeded the limit. Source: KIP-892, ``statestore.uncommitted.max.bytes``."""
    PREDICTED = "PREDICTED"
    """The staged writes would probably have exceeded it with the next step."""
    REPLAY = "REPLAY"
    """With the next step a kill would probably have made a store replay more than its ``restore_max_bytes``."""


def none_early() -> dict[str, int]:
    """No early commit, whatever the cause."""
    return {str(cause): 0 for cause in EarlyCommitCause}


def _total(description: str, unit: str) -> Any:
    return field(default=0, metadata={_MEASURE: Measure(MetricKind.TOTAL, description, unit)})


def _seconds_total(description: str) -> Any:
    return field(default=0.0, metadata={_MEASURE: Measure(MetricKind.TOTAL, description, "s")})


def _maximum(description: str) -> Any:
    return field(default=0.0, metadata={_MEASURE: Measure(MetricKind.MAXIMUM, description, "s")})


def _recent(description: str) -> Any:
    return field(default=0.0, metadata={_MEASURE: Measure(MetricKind.CURRENT, description, "s")})


def _current(description: str, unit: str, default: int | None = 0) -> Any:
    return field(default=default, metadata={_MEASURE: Measure(MetricKind.CURRENT, description, unit)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetrics:
    """The metrics that stores and tasks have in common."""

    seconds: float = 0.0
    """The time over which the counts were made."""
    commit_total: int = _total("commits that succeeded", "{commit}")
    commit_failed_total: int = _total("commits that raised an error", "{commit}")
    commit_latency_seconds_total: float = _seconds_total("time spent in commits that succeeded")
    commit_latency_max_seconds: float = _maximum("the longest commit that succeeded")
    commit_latency_recent_max_seconds: float = _recent("the longest commit of the last half minute to minute")
    """Source: KIP-892, ``commit-latency-max``, which goes by Kafka's windows."""
    rollback_total: int = _total("transactions that were rolled back", "{rollback}")

    @property
    def commit_rate(self) -> float:
        """Commits per second, over ``seconds``. Source: KIP-892, ``commit-rate``."""
        return self.commit_total / self.seconds if self.seconds else 0.0

    @property
    def commit_latency_avg_seconds(self) -> float:
        """Mean time of a commit; 0 if there was none. Source: KIP-892, ``commit-latency-avg``."""
        return self.commit_latency_seconds_total / self.commit_total if self.commit_total else 0.0

    def since(self, earlier: Self) -> Self:
        """Return the counts since ``earlier`` was read: totals are differences; maxima and current values are as now.

        So ``now.since(earlier).commit_rate`` is the rate of that time.
        """
        return self._combined(earlier, -1)

    def after(self, predecessor: Self) -> Self:
        """Return the metrics of this store and its closed predecessor together: totals are sums."""
        return self._combined(predecessor, 1)

    def _combined(self, other: Self, sign: int) -> Self:
        totals: dict[str, Any] = {"seconds": self.seconds + sign * other.seconds}
        for name, measure in measures(type(self)).items():
            mine, others = getattr(self, name), getattr(other, name)
            if measure.kind is MetricKind.MAXIMUM and sign > 0:
                totals[name] = max(mine, others)
            elif measure.kind is MetricKind.TOTAL and measure.label is None:
                totals[name] = mine + sign * others
            elif measure.kind is MetricKind.TOTAL:
                totals[name] = {key: value + sign * others.get(key, 0) for key, value in mine.items()}
        return replace(self, **totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMetrics(CommitMetrics):
    """A store, from its opening on; in a task also beyond its openings."""

    store: str
    backend: str
    restore_total: int = _total("changelog records that were written into the store", "{record}")
    restore_latency_seconds_total: float = _seconds_total("time spent writing restored records into the store")
    late_total: int = _total("records that were dropped, since they were older than the store's retention", "{record}")
    """Of a window or session store. Source: Kafka, ``dropped-records-total``."""
    skipped_total: int = _total("records of its topic that a global store left out", "{record}")
    dead_letter_total: int = _total("those of them that this process sent to the dead-letter topic", "{record}")
    uncommitted_bytes: int = _current("keys and values staged in the open transaction", "By")
    uncommitted_memory_bytes: int = _current("what the open transaction takes of memory, with each entry's share", "By")
    num_open_iterators: int = _current("iterators that still pin what they show", "{iterator}")
    oldest_iterator_open_since_seconds: float | None = _current(
        "when the oldest of the open iterators was made, in seconds since 1970", "s", None
    )

    @property
    def restore_rate(self) -> float:
        """Records restored per second of writing them; 0 where none were."""
        return self.restore_total / self.restore_latency_seconds_total if self.restore_latency_seconds_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStoreMetrics(StoreMetrics):
    """A store of a task, for as long as the task lives: it goes on where the store is wiped or opened again."""

    replay_total: int = _total("restored records of a changelog's tail, beyond what the store had kept", "{record}")
    wipe_total: int = _total("times that the local state could not be trusted and was thrown away", "{wipe}")
    persist_total: int = _total("flushes begun to keep to the bound on what a killed process replays", "{flush}")
    unpersisted_bytes: int = _current("keys and values of changelog that would be replayed after a kill now", "By")
    recovery_seconds_total: float = _seconds_total("time spent opening the store and restoring it")
    snapshot_total: int = _total("snapshots by files that were put in place", "{snapshot}")
    snapshot_failed_total: int = _total("snapshots by files that could not be taken", "{snapshot}")
    snapshot_sent_bytes_total: int = _total("bytes of files that were sent for snapshots", "By")
    snapshot_sent_objects_total: int = _total("objects that were sent for snapshots, without indexes", "{object}")
    snapshot_restore_total: int = _total("restores that began from the files of a snapshot", "{restore}")
    snapshot_offset: int | None = _current("changelog offset of the last snapshot by files", "{offset}", None)
    upgrade_total: int = _total("upgrades whose new store has taken the old one's place", "{upgrade}")
    upgrade_records_total: int = _total("changelog records written into the new store of an upgrade", "{record}")
    upgrade_remaining_offsets: int | None = _current(
        "changelog that the new store of an upgrade lacks", "{offset}", None
    )
    operation_latency_seconds: Mapping[str, LatencyHistogram] = field(
        default_factory=dict,
        metadata={_MEASURE: Measure(MetricKind.HISTOGRAM, "times of the calls of a task's function", "s", "operation")},
    )
    """The times of calls of the task's function and of commits: ``get``, ``put``, ``scan``, ``commit``. Empty unless
    ``metrics.recording.level=DEBUG``; of the whole life of the task. Source: KIP-444."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics(CommitMetrics):
    """A task, from its making on, and its stores by name; those that were not opened yet are left out.

    Its commits are those of the changelog and all of its stores together.
    """

    application: str
    task: str
    process_total: int = _total("input records whose effects were committed", "{record}")
    rollback_records_total: int = _total("input records whose effects were undone, to be processed again", "{record}")
    punctuate_total: int = _total("calls of punctuators, also those whose effects were undone", "{call}")
    skipped_total: int = _total(
        "input records that were left out since the function raised, or a serde could not read them", "{record}"
    )
    """Of a task with ``on_error`` or ``on_deserialization_error``; those too whose transaction was rolled back, which
    are processed again. Source: KIP-1033, ``dropped-records-total``."""
    dead_letter_total: int = _total("those of them that were sent to the dead-letter topic", "{record}")
    early_commit_total: Mapping[str, int] = field(
        default_factory=none_early,
        metadata={_MEASURE: Measure(MetricKind.TOTAL, "commits before the interval was up", "{commit}", "cause")},
    )
    standby_lag: int | None = _current("changelog that a standby copy lacks", "{offset}", None)
    stores: Mapping[str, TaskStoreMetrics] = field(default_factory=dict)

    @property
    def uncommitted_bytes(self) -> int:
        """Keys and values staged in all stores."""
        return sum(store.uncommitted_bytes for store in self.stores.values())

    @property
    def uncommitted_memory_bytes(self) -> int:
        """The memory that they take."""
        return sum(store.uncommitted_memory_bytes for store in self.stores.values())

    @property
    def restore_total(self) -> int:
        """Changelog records written into all stores."""
        return sum(store.restore_total for store in self.stores.values())

    @property
    def replay_total(self) -> int:
        """Those of them that were a tail: what state that was kept cost to bring up to date."""
        return sum(store.replay_total for store in self.stores.values())

    @property
    def restore_rate(self) -> float:
        """Records restored per second of opening and restoring; 0 where none were."""
        seconds = sum(store.recovery_seconds_total for store in self.stores.values())
        return self.restore_total / seconds if seconds else 0.0

    def since(self, earlier: Self) -> Self:
        """Return the counts since ``earlier`` was read, also those of the stores."""
        stores = {
            name: store.since(earlier.stores[name]) if name in earlier.stores else store
            for name, store in self.stores.items()
        }
        return replace(self._combined(earlier, -1), stores=stores)


def measures(kind: type[CommitMetrics]) -> Mapping[str, Measure]:
    """The measures among the fields of ``kind``, by name and in order."""
    return {entry.name: entry.metadata[_MEASURE] for entry in fields(kind) if _MEASURE in entry.metadata}


_DERIVED: Mapping[str, Measure] = {
    "commit_rate": Measure(MetricKind.CURRENT, "commits per second, of the whole life", "{commit}/s"),
    "commit_latency_avg_seconds": Measure(MetricKind.CURRENT, "mean time of the commits that succeeded", "s"),
    "restore_rate": Measure(MetricKind.CURRENT, "records restored per second of restoring", "{record}/s"),
}


def exported(kind: type[CommitMetrics]) -> Mapping[str, Measure]:
    """The measures of ``kind``, and after them the rates and means that follow from these, by name."""
    return {**measures(kind), **{name: measure for name, measure in _DERIVED.items() if hasattr(kind, name)}}


WINDOW_S = 30.0
"""The length of a window. A recent maximum is that of this window and of the one before. Source: Kafka, defaults of
``metrics.sample.window.ms`` and ``metrics.num.samples``."""


_Windows = tuple[float, float, float]
"""When a window began, its longest duration, and that of the window before.

It is replaced as a whole, so that readers on other threads see consistent values. Not a named tuple: to make one costs
calls at each new maximum.
"""


def _at(windows: _Windows, now: float) -> _Windows:
    """Return the windows at the time ``now``."""
    began, seconds_max, _ = windows
    age = now - began
    if age < WINDOW_S:
        return windows
    return (began + WINDOW_S, 0.0, seconds_max) if age < 2 * WINDOW_S else (now, 0.0, 0.0)


@dataclass(slots=True)
class Timer:
    """A counter and timer of its ``with`` blocks. Blocks that raise are counted separately, not timed. One thread."""

    total: int = 0
    failed_total: int = 0
    seconds_total: float = 0.0
    seconds_max: float = 0.0
    _began: float = 0.0
    _windows: _Windows = (0.0, 0.0, 0.0)

    def recent_seconds_max(self, now: float) -> float:
        """Return the longest duration of the last half minute to minute before ``now``. For any thread."""
        _, seconds_max, before_max = _at(self._windows, now)
        return max(seconds_max, before_max)

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.failed_total += 1
            return
        now = perf_counter()
        seconds = now - self._began
        self.total += 1
        self.seconds_total += seconds
        if seconds > self.seconds_max:
            self.seconds_max = seconds
        began, longest, before = self._windows
        if now - began >= WINDOW_S:
            began, longest, before = _at(self._windows, now)
            self._windows = began, max(seconds, longest), before
        elif seconds > longest:
            self._windows = began, seconds, before


@dataclass(slots=True)
class Counters:
    """The counters of a store or a task. Written by its own thread only."""

    commits: Timer = field(default_factory=Timer)
    rollback_total: int = 0
    began: float = field(default_factory=perf_counter)
    ended: float | None = None

    def end(self) -> None:
        """Stop the clock: the store or task is closed."""
        self.ended = perf_counter()

    def read(self) -> dict[str, Any]:
        """Return the fields of ``CommitMetrics``."""
        commits = self.commits
        now = perf_counter() if self.ended is None else self.ended
        return {
            "seconds": now - self.began,
            "commit_total": commits.total,
            "commit_failed_total": commits.failed_total,
            "commit_latency_seconds_total": commits.seconds_total,
            "commit_latency_max_seconds": commits.seconds_max,
            "commit_latency_recent_max_seconds": commits.recent_seconds_max(now),
            "rollback_total": self.rollback_total,
        }


@dataclass(slots=True)
class StoreCounters(Counters):
    """The counters of a store."""

    restores: Timer = field(default_factory=Timer)
    restore_total: int = 0

    def read(self) -> dict[str, Any]:
        """Return the fields of ``StoreMetrics`` that are counted."""
        # Not super(): a dataclass with slots is a new class, and the method would refer to the old one.
        fields_read = Counters.read(self)
        return {
            **fields_read,
            "restore_total": self.restore_total,
            "restore_latency_seconds_total": self.restores.seconds_total,
        }
