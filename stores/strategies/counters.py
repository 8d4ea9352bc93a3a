"""Counters that a store updates on its own thread. ``stores.metrics`` is read from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

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
        ended = perf_counter()
        seconds = ended - self._began
        self.total += 1
        self.seconds_total += seconds
        if seconds > self.seconds_max:
            self.seconds_max = seconds
        began, longest, before = self._windows
        if ended - began >= WINDOW_S:
            began, longest, before = _at(self._windows, ended)
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
        counted = Counters.read(self)
        return {
            **counted,
            "restore_total": self.restore_total,
            "restore_latency_seconds_total": self.restores.seconds_total,
        }
