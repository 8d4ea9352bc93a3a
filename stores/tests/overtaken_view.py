"""A view whose store is written to before and after each answer, as long as the writer does not have to wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from stores.contract.reading import Answer
from stores.interface import IsolationLevel, KeyValueIterator, KeyValueStore, KeyValueView, Position

_WAIT_S = 0.03
"""A write that takes longer waits for the view, where that holds the writer back."""
_HANGS_S = 600
_WRITES_MAX = 1_000


class Overtaken(KeyValueView):
    """Asks a view of ``store``, and lets the writer write before and after each answer. For one other thread."""

    def __init__(self, store: KeyValueStore, level: IsolationLevel) -> None:
        self._store, self._view = store, store.read_only(level)
        self._asked = 0
        self._wanted: SimpleQueue[int] = SimpleQueue()
        self._written: SimpleQueue[int] = SimpleQueue()

    def overtake(self, asked: Future[Any], write: Callable[[int], None]) -> int:
        """Write as often as the view is asked, until ``asked`` is done; how often that was. For the writer's thread."""
        writes = 0
        while not asked.done():
            try:
                number = self._wanted.get(timeout=0.01)
            except Empty:
                continue
            writes += 1
            assert writes < _WRITES_MAX
            write(writes)
            self._written.put(number)
        return writes

    def _overtaken(self, ask: Callable[[], Answer]) -> Answer:
        self._let_write()
        answer = ask()
        self._let_write()
        return answer

    def _let_write(self) -> None:
        self._asked += 1
        self._wanted.put(self._asked)
        deadline, written = monotonic() + _HANGS_S, 0
        while written < self._asked:
            try:
                # What was written after the view had given up waiting is not of this time.
                written = self._written.get(timeout=_WAIT_S)
            except Empty:
                # A store of another library does not say so.
                if getattr(self._store, "_marks_are_held", True):
                    return
                assert monotonic() < deadline, "the writer waits, and the view does not hold it back"

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._view.isolation_level

    def position(self) -> Position:
        return self._view.position()

    def mark(self, name: str) -> bytes | None:
        return self._view.mark(name)

    def with_mark(self, name: str, read: Callable[[bytes | None], Answer]) -> Answer:
        return self._view.with_mark(name, read)

    def get(self, key: bytes) -> bytes | None:
        return self._overtaken(lambda: self._view.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._overtaken(lambda: self._view.get_many(keys))

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._overtaken(lambda: self._view.range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._overtaken(lambda: self._view.reverse_range(start, end))

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._overtaken(lambda: self._view.range_many(bounds, reverse=reverse))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._overtaken(lambda: self._view.prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._overtaken(lambda: self._view.reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._view.approximate_num_entries()
