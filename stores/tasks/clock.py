"""The time by which a task commits and punctuates; a test gives it another one."""

from __future__ import annotations

import time
from typing import Protocol

NEVER_NS = 1 << 128
"""Later than any clock will show."""


class Clock(Protocol):
    """Two clocks, since only one of them never jumps, and a way to wait."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since any moment in the past; never goes back."""

    def epoch_ms(self) -> int:
        """Milliseconds since the Unix epoch, as the system has it."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds, 0 or more."""


class SystemClock:
    """The clocks of the system."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def epoch_ms() -> int:
        return time.time_ns() // 1_000_000
