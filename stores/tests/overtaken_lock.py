"""A lock that a reader asks for and does not get until the writer has gone on: what it saw before is then outdated."""

from __future__ import annotations

from contextlib import AbstractContextManager
from threading import Event, get_ident

LONG_S = 600


class OvertakenLock:
    """Stands in for ``lock``. Threads other than the one that made it wait for ``overtaken`` first."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock, self._writer = lock, get_ident()
        self.asked, self.overtaken = Event(), Event()

    def __enter__(self) -> None:
        if get_ident() != self._writer:
            self.asked.set()
            assert self.overtaken.wait(LONG_S)
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)
