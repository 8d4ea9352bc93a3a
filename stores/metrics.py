"""What a store and a task count of themselves: plain values, read at any time and from any thread.

Counting costs nothing per record: it is done per commit, rollback, scan and restored piece; all else is looked up when
somebody asks. What is read is a copy of one moment. Totals and maxima only ever grow while the store or the task that
they are of lives, so that whoever collects them can tell what happened in between (``since``); current values go up
and down. Times are in seconds.

Source: KIP-892 and KIP-844, "Metrics"; names as in Kafka Streams' ``stream-state-metrics`` and ``stream-task-metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from time import perf_counter
from types import TracebackType
from typing import Any, Self

_MEASURE = "measure"


class Kind(StrEnum):
    """How a value behaves from one reading to the next."""

    TOTAL = "total"
    """Only grows; differences add up."""
    MAXIMUM = "maximum"
    """Only grows; of the whole life so far."""
    CURRENT = "current"
    """Goes up and down; None where there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a field of the metrics is a measure of. ``unit`` is UCUM's; ``label`` names the keys of a mapping."""

    kind: Kind
    description: str
    unit: str
    label: str | None = None


class EarlyCommitCause(StrEnum):
    """Why a task committed before its interval was up."""

    REQUESTED = "REQUESTED"
    """Its function asked for it. Source: KIP-892, ``ProcessingContext#commit``."""
    EXCEEDED = "EXCEEDED"
    """What is staged has passed the limit. Source: KIP-892, ``statestore.uncommitted.max.bytes``."""
    PREDICTED = "PREDICTED"
    """What is staged would probably have passed it with the next step."""


def _none_early() -> dict[str, int]:
    return {str(cause): 0 for cause in EarlyCommitCause}


def _total(description: str, unit: str) -> Any:
    return field(default=0, metadata={_MEASURE: Measure(Kind.TOTAL, description, unit)})


def _seconds_total(description: str) -> Any:
    return field(default=0.0, metadata={_MEASURE: Measure(Kind.TOTAL, description, "s")})


def _maximum(description: str) -> Any:
    return field(default=0.0, metadata={_MEASURE: Measure(Kind.MAXIMUM, description, "s")})


def _current(description: str, unit: str, default: int | None = 0) -> Any:
    return field(default=default, metadata={_MEASURE: Measure(Kind.CURRENT, description, unit)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetrics:
    """What stores and tasks have in common."""

    seconds: float = 0.0
    """How long it has been counted."""
    commit_total: int = _total("commits that succeeded", "{commit}")
    commit_failed_total: int = _total("commits that raised an error", "{commit}")
    commit_latency_seconds_total: float = _seconds_total("time spent in commits that succeeded")
    commit_latency_max_seconds: float = _maximum("the longest commit that succeeded")
    rollback_total: int = _total("transactions that were rolled back", "{rollback}")

    @property
    def commit_rate(self) -> float:
        """Commits per second, over ``seconds``. Source: KIP-892, ``commit-rate``."""
        return self.commit_total / self.seconds if self.seconds else 0.0

    @property
    def commit_latency_avg_seconds(self) -> float:
        """Mean time of a commit; 0 where there was none. Source: KIP-892, ``commit-latency-avg``."""
        return self.commit_latency_seconds_total / self.commit_total if self.commit_total else 0.0

    def since(self, earlier: Self) -> Self:
        """What was counted after ``earlier`` was read: totals are differences; maxima and current values are as now.

        So ``now.since(earlier).commit_rate`` is the rate of that time.
        """
        return self._combined(earlier, -1)

    def after(self, predecessor: Self) -> Self:
        """The metrics of both together, where this store goes on from a closed one: totals are sums."""
        return self._combined(predecessor, 1)

    def _combined(self, other: Self, sign: int) -> Self:
        totals: dict[str, Any] = {"seconds": self.seconds + sign * other.seconds}
        for name, measure in measures(type(self)).items():
            mine, others = getattr(self, name), getattr(other, name)
            if measure.kind is Kind.MAXIMUM and sign > 0:
                totals[name] = max(mine, others)
            elif measure.kind is Kind.TOTAL and measure.label is None:
                totals[name] = mine + sign * others
            elif measure.kind is Kind.TOTAL:
                totals[name] = {key: value + sign * others.get(key, 0) for key, value in mine.items()}
        return replace(self, **totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMetrics(CommitMetrics):
    """A store, from its opening on; in a task also beyond its openings."""

    store: str
    backend: str
    restore_total: int = _total("changelog records that were written into the store", "{record}")
    restore_latency_seconds_total: float = _seconds_total("time spent writing restored records into the store")
    uncommitted_bytes: int = _current("keys and values staged in the open transaction", "By")
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
    recovery_seconds_total: float = _seconds_total("time spent opening the store and restoring it")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics(CommitMetrics):
    """A task, from its making on, and its stores by name; those that were not opened yet are left out.

    Its commits are those of the changelog and all of its stores together.
    """

    application: str
    task: str
    process_total: int = _total("input records whose effects were committed", "{record}")
    rollback_records_total: int = _total("input records whose effects were undone, to be processed again", "{record}")
    early_commit_total: Mapping[str, int] = field(
        default_factory=_none_early,
        metadata={_MEASURE: Measure(Kind.TOTAL, "commits before the interval was up", "{commit}", "cause")},
    )
    stores: Mapping[str, TaskStoreMetrics] = field(default_factory=dict)

    @property
    def uncommitted_bytes(self) -> int:
        """Keys and values staged in all stores."""
        return sum(store.uncommitted_bytes for store in self.stores.values())

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
        """As of its stores: what was counted after ``earlier`` was read."""
        stores = {
            name: store.since(earlier.stores[name]) if name in earlier.stores else store
            for name, store in self.stores.items()
        }
        return replace(self._combined(earlier, -1), stores=stores)


def measures(kind: type[CommitMetrics]) -> Mapping[str, Measure]:
    """The measures among the fields of ``kind``, by name and in order."""
    return {entry.name: entry.metadata[_MEASURE] for entry in fields(kind) if _MEASURE in entry.metadata}


@dataclass(slots=True)
class Timer:
    """Counts and times what its ``with`` blocks do; what raises is counted apart and not timed. For one thread."""

    total: int = 0
    failed_total: int = 0
    seconds_total: float = 0.0
    seconds_max: float = 0.0
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.failed_total += 1
            return
        seconds = perf_counter() - self._began
        self.total += 1
        self.seconds_total += seconds
        if seconds > self.seconds_max:
            self.seconds_max = seconds


@dataclass(slots=True)
class Counters:
    """What a store or a task keeps up to date while it works. Written by its own thread only."""

    commits: Timer = field(default_factory=Timer)
    rollback_total: int = 0
    began: float = field(default_factory=perf_counter)
    ended: float | None = None

    def end(self) -> None:
        """Let time stand still: what is counted has been closed."""
        self.ended = perf_counter()

    def read(self) -> dict[str, Any]:
        """The fields of ``CommitMetrics``."""
        commits = self.commits
        return {
            "seconds": (perf_counter() if self.ended is None else self.ended) - self.began,
            "commit_total": commits.total,
            "commit_failed_total": commits.failed_total,
            "commit_latency_seconds_total": commits.seconds_total,
            "commit_latency_max_seconds": commits.seconds_max,
            "rollback_total": self.rollback_total,
        }


@dataclass(slots=True)
class StoreCounters(Counters):
    """Of a store."""

    restores: Timer = field(default_factory=Timer)
    restore_total: int = 0

    def read(self) -> dict[str, Any]:
        """The fields of ``StoreMetrics`` that are counted."""
        # Not super(): a dataclass with slots is made anew, and the method would look for it in the old one.
        counted = Counters.read(self)
        return {
            **counted,
            "restore_total": self.restore_total,
            "restore_latency_seconds_total": self.restores.seconds_total,
        }


@dataclass(slots=True)
class TaskCounters(Counters):
    """Of a task."""

    process_total: int = 0
    rollback_records_total: int = 0
    early_commit_total: dict[str, int] = field(default_factory=_none_early)

    def committed_early(self, cause: str) -> None:
        """Count a commit that came before the interval was up, under its ``EarlyCommitCause``."""
        self.early_commit_total[cause] += 1

    def rolled_back(self, records: int) -> None:
        """Count a transaction that was undone with what ``records`` input records had done in it."""
        self.rollback_total += 1
        self.rollback_records_total += records

    def read(self) -> dict[str, Any]:
        """The fields of ``TaskMetrics`` that are counted."""
        return {
            **Counters.read(self),
            "process_total": self.process_total,
            "rollback_records_total": self.rollback_records_total,
            "early_commit_total": dict(self.early_commit_total),
        }
