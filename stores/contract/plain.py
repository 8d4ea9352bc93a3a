"""Scans and views over a store that offers no more than lookups and ascending scans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

from stores.contract.reading import (
    Closeable,
    IsolationLevel,
    KeyValueIterator,
    KeyValueView,
    Position,
    PositionBound,
    ReadOnlyKeyValueStore,
    ShownTimestamps,
)
from stores.errors import StoreClosedError


class PlainIterator(KeyValueIterator):
    """The given pairs; closing it closes ``source``. They are a snapshot if the scan of ``source`` is one."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], source: Closeable) -> None:
        self._pairs: Iterator[tuple[bytes, bytes]] | None = iter(pairs)
        self._source = source

    def __next__(self) -> tuple[bytes, bytes]:
        if self._pairs is None:
            raise StoreClosedError("the iterator is closed: start another scan")
        return next(self._pairs)

    def close(self) -> None:
        self._pairs = None
        self._source.close()


def prefixed(scan: KeyValueIterator, prefix: bytes) -> PlainIterator:
    """The pairs of an ascending ``scan``, which begins at ``prefix``, while their keys begin with that."""
    return PlainIterator(takewhile(lambda pair: pair[0].startswith(prefix), scan), scan)


def reversed_scan(scan: KeyValueIterator) -> PlainIterator:
    """The pairs of ``scan`` from its end: it holds all of them in memory."""
    return PlainIterator(reversed(list(scan)), scan)


class PlainView(KeyValueView):
    """Asks the store itself, which must answer on any thread. Its lookups are one by one: not of one moment."""

    def __init__(
        self,
        store: ReadOnlyKeyValueStore,
        position: Callable[[IsolationLevel], Position],
        mark: Callable[[str], bytes | None],
        timestamps: ShownTimestamps,
        level: IsolationLevel,
        bound: PositionBound | None,
    ) -> None:
        self._store, self._position, self._mark, self._timestamps = store, position, mark, timestamps
        self._level, self._bound = level, bound

    @property
    def isolation_level(self) -> IsolationLevel:
        return self._level

    @property
    def timestamps(self) -> ShownTimestamps:
        return self._timestamps

    def position(self) -> Position:
        return self._position(self._level)

    def mark(self, name: str) -> bytes | None:
        self._answering()
        return self._mark(name)

    def get(self, key: bytes) -> bytes | None:
        return self._answering().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._answering().get_many(keys)

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answering().range(start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._answering().reverse_range(start, end)

    def range_many(
        self, bounds: Sequence[tuple[bytes | None, bytes | None]], *, reverse: bool = False
    ) -> list[KeyValueIterator]:
        return self._answering().range_many(bounds, reverse=reverse)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answering().prefix_scan(prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._answering().reverse_prefix_scan(prefix)

    def approximate_num_entries(self) -> int:
        return self._answering().approximate_num_entries()

    def _answering(self) -> ReadOnlyKeyValueStore:
        """Return the store if it has reached the bound. Its state never falls behind the bound again."""
        if self._bound is not None:
            self._bound.check(self.position(), "the store")
        return self._store
