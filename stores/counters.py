"""What a store and a task keep up to date while they work, on their own thread; ``stores.metrics`` is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

from stores.metrics import none_early


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

    rollback_records_total: int = 0
    early_commit_total: dict[str, int] = field(default_factory=none_early)

    def committed_early(self, cause: str) -> None:
        """Count a commit that came before the interval was up, under its ``EarlyCommitCause``."""
        self.early_commit_total[cause] += 1

    def rolled_back(self, records: int) -> None:
        """Count a transaction that was undone with what ``records`` input records had done in it."""
        self.rollback_total += 1
        self.rollback_records_total += records

    def read(self) -> dict[str, Any]:
        """The fields of ``TaskMetrics`` that are counted here."""
        return {
            **Counters.read(self),
            "rollback_records_total": self.rollback_records_total,
            "early_commit_total": dict(self.early_commit_total),
        }
