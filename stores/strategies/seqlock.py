"""A seqlock: one writer makes a change in several steps; readers see all or nothing of it and do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Value = TypeVar("Value")


class Seqlock:
    """A counter that is odd during a change. A read between two equal even counts overlapped no change."""

    __slots__ = ("_lock", "count")

    def __init__(self, lock: Lock) -> None:
        """``lock`` is the lock that the writer holds while it drops data that readers need during a change."""
        self._lock = lock
        self.count = 0

    @contextmanager
    def change(self) -> Iterator[None]:
        """Count one change. After an exception the count stays odd: readers continue to use ``changing``."""
        self.count += 1
        yield
        self.count += 1

    def read(
        self, settled: Callable[[*Arguments], Value], changing: Callable[[*Arguments], Value], *given: *Arguments
    ) -> Value:
        """Return ``settled(*given)`` if no change overlapped it; during a change return ``changing(*given)``.

        ``changing`` is called with the lock held. A value of ``settled`` that a change overlapped is dropped.
        """
        while True:
            count = self.count
            if not count & 1:
                value = settled(*given)
                if self.count == count:
                    return value
                del value
            with self._lock:
                if self.count & 1:
                    return changing(*given)
            # The change has ended meanwhile: try again.
