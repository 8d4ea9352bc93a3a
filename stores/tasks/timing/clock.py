"""The clocks by which a task commits and punctuates; tests replace them."""

from __future__ import annotations

import time
from typing import Protocol

NEVER_NS = 1 << 128
"""Later than any clock will show."""


class Clock(Protocol):
    """A monotonic clock for intervals, a wall clock for timestamps, and a way to wait."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never goes back."""

    def epoch_ms(self) -> int:
        """Milliseconds since the Unix epoch, as the system has it."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``, 0 or more."""


class SystemClock:
    """The clocks of the system."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def epoch_ms() -> int:
        return time.time_ns() // 1_000_000
