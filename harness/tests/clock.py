"""A clock for tests of deadlines."""

from __future__ import annotations


class Clock:
    """A clock that stands still but for ``now += seconds``."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now
