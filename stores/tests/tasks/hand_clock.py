"""A clock that a test sets by hand."""

from __future__ import annotations

from collections.abc import Callable

EPOCH_MS = 1_000_000


class HandClock:
    """Stands still but for ``advance``, and for ``sleep``, which takes no time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.slept: list[float] = []
        self.while_asleep: Callable[[], None] = lambda: None

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def epoch_ms(self) -> int:
        return EPOCH_MS + self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += max(1, round(seconds * 1_000))
        self.while_asleep()
