"""A map with keys of bytes for frequent writes and occasional reads in key order.

A write costs one dict assignment. New keys are sorted when a scan needs it, or when ``cut`` is called. They are sorted
in *runs*, lists of a few thousand keys that may overlap, so that no single step takes long. A scan merges the runs a
piece at a time. Only the removal of keys needs a single order of all keys, which is then kept (``SortedKeys``).

(Kafka's implementation of KIP-892 keeps a sorted tree instead and pays at every write.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice, starmap
from typing import Final, Generic, NamedTuple, Self, TypeVar

from stores.ordered.sorted_keys import SortedKeys

Value = TypeVar("Value")

SORTED_AT_ONCE: Final = 2048
"""The number of keys that are sorted in one call, during which all other threads wait."""
RUN_KEYS: Final = 8192
"""The maximum length of merged runs. Merging two takes no longer than sorting ``SORTED_AT_ONCE`` keys."""
_PIECE_KEYS_FIRST, _PIECE_KEYS_MAX = 64, 4096
"""The number of keys that a scan merges at a time, at first and later."""
_KEYS_OF_EACH = 4
"""The minimum number of keys that it merges of each run."""


class _Order(NamedTuple):
    """The order of a map's keys. It is replaced as a whole, so that readers on other threads see a consistent one."""

    keys: SortedKeys
    runs: tuple[list[bytes], ...] = ()
    """Sorted lists that never change, of keys that are not in ``keys``."""
    num_keys: int = 0
    """The number of keys in either. They are the first ones of the map, since a dict keeps the order of insertion."""


_UNORDERED: Final = _Order(SortedKeys())
"""The order of every new map: most maps are never read in order. Its keys never change."""


class SortedMap(Generic[Value]):
    """A map whose entries are in ``writes``, which callers read and assign. ``discard_range`` deletes entries.

    One thread writes. While it does not, any number of threads may read in order (``merge``, ``keys_between``).
    """

    __slots__ = ("_order", "writes")

    def __init__(self, writes: dict[bytes, Value] | None = None) -> None:
        self.writes: dict[bytes, Value] = {} if writes is None else writes
        self._order = _UNORDERED

    def copy(self) -> Self:
        """Return an independent map with the same keys and values."""
        copied = type(self)(dict(self.writes))
        order = self._order
        copied._order = order._replace(keys=SortedKeys.of(order.keys.blocks))
        return copied

    def num_fresh(self) -> int:
        """Return the number of keys that are not sorted yet."""
        return len(self.writes) - self._order.num_keys

    def is_partly_ordered(self) -> bool:
        """Return True if any key is sorted."""
        return self._order.num_keys > 0

    def num_unordered(self) -> int:
        """Return the number of keys that are not in the single order, which a removal of a range needs."""
        return len(self.writes) - len(self._order.keys)

    def cut(self) -> None:
        """Sort all new keys into runs. Two threads that do this at the same time get the same result."""
        self._cut()

    def _cut(self) -> _Order:
        order = self._order
        fresh = len(self.writes) - order.num_keys
        if fresh:
            runs = list(order.runs)
            newest = islice(reversed(self.writes), fresh)
            while run := list(islice(newest, SORTED_AT_ONCE)):
                run.sort()
                # Merge while the last run is at most twice as long: so each key is merged a few times, into few runs.
                while runs and len(runs[-1]) <= 2 * len(run) and len(runs[-1]) + len(run) <= RUN_KEYS:
                    run = runs.pop() + run
                    run.sort()
                runs.append(run)
            self._order = order = _Order(order.keys, tuple(runs), order.num_keys + fresh)
        return order

    def is_mostly_unordered(self) -> bool:
        """Return True if rebuilding the single order is cheaper than adding the new keys one by one."""
        return 8 * self.num_unordered() >= len(self._order.keys)

    def reorder(self) -> None:
        """Rebuild the single order of all keys, in short steps. For the writing thread; others may read meanwhile."""
        order = self._cut()
        self._order = _Order(SortedKeys.of(self.merge(None, None)), (), order.num_keys)

    def order_some(self, count: int) -> None:
        """Add up to ``count`` more keys to the single order. No thread may read meanwhile."""
        keys, runs, num_keys = self._cut()
        if runs:
            if not keys:
                keys = SortedKeys()
            for key in runs[-1][-count:]:
                keys.add(key)
            rest = runs[-1][:-count]
            self._order = _Order(keys, (*runs[:-1], rest) if rest else runs[:-1], num_keys)

    def merge(
        self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False
    ) -> Iterator[list[bytes]]:
        """Return the keys from ``start`` to ``end``, a list at a time; ``end`` itself only if not ``end_open``.

        The lists come in the order of the scan; each list is ascending in both directions. They have the keys of the
        time of the call. Each is merged when it is requested, and the first ones are short: stopping early is cheap.
        """
        order = self._cut()
        cut = bisect_left if end_open else bisect_right
        pieces = []
        for run in order.runs:
            low = 0 if start is None else bisect_left(run, start)
            high = len(run) if end is None else cut(run, end)
            if low < high:
                pieces.append(_Piece(run, low, high))
        blocks = order.keys.pieces(start, end, end_open=end_open)
        if reverse:
            blocks.reverse()
        return _merged(pieces, starmap(_Piece, blocks), reverse=reverse)

    def keys_between(self, start: bytes | None, end: bytes | None, *, end_open: bool = False) -> list[bytes]:
        """Return a new list of the keys from ``start`` to ``end``, ascending; ``end`` only if not ``end_open``."""
        if not self.writes:
            return []
        return [key for keys in self.merge(start, end, end_open=end_open) for key in keys]

    def discard_range(self, start: bytes | None, end: bytes | None) -> list[tuple[bytes, Value]]:
        """Remove the keys from ``start`` to ``end``, both included; return the removed entries, ascending."""
        writes, order = self.writes, self._order
        if not writes or (start is not None and start == end and start not in writes):
            return []
        if start == end and start is not None and not order.num_keys:
            return [(start, writes.pop(start))]
        if self.num_unordered() and self.is_mostly_unordered():
            self.reorder()
        while self.num_unordered():
            self.order_some(RUN_KEYS)
        keys, _, num_keys = self._order
        removed = [(key, writes.pop(key)) for key in keys.remove_between(start, end)]
        self._order = _Order(keys, (), num_keys - len(removed))
        return removed

    def discard(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self.discard_range(key, key)


class _Piece:
    """A sorted list, and the range in it that a scan has not returned yet."""

    __slots__ = ("high", "keys", "low")

    def __init__(self, keys: list[bytes], low: int, high: int) -> None:
        self.keys, self.low, self.high = keys, low, high

    def last_of(self, count: int) -> bytes:
        """Return the last of the first ``count`` keys."""
        return self.keys[min(self.low + count, self.high) - 1]

    def take_to(self, bound: bytes, count: int) -> list[bytes]:
        """Take the keys up to ``bound``, which are at most ``count``."""
        low = self.low
        self.low = bisect_right(self.keys, bound, low, min(low + count, self.high))
        return self.keys[low : self.low]

    def first_of(self, count: int) -> bytes:
        """Return the first of the last ``count`` keys."""
        return self.keys[max(self.high - count, self.low)]

    def take_from(self, bound: bytes, count: int) -> list[bytes]:
        """Take the keys from ``bound`` on, which are at most ``count``."""
        high = self.high
        self.high = bisect_left(self.keys, bound, max(high - count, self.low), high)
        return self.keys[self.high : high]


def _merged(pieces: list[_Piece], blocks: Iterator[_Piece], *, reverse: bool) -> Iterator[list[bytes]]:
    """Merge ``pieces``, and ``blocks``, which follow each other: a few keys of each at a time."""
    size = _PIECE_KEYS_FIRST
    block = next(blocks, None)
    while pieces or block is not None:
        open_pieces = pieces if block is None else [*pieces, block]
        count = max(_KEYS_OF_EACH, size // len(open_pieces))
        merged: list[bytes] = []
        if reverse:
            bound = max([piece.first_of(count) for piece in open_pieces])
            for piece in open_pieces:
                merged += piece.take_from(bound, count)
        else:
            bound = min([piece.last_of(count) for piece in open_pieces])
            for piece in open_pieces:
                merged += piece.take_to(bound, count)
        if len(open_pieces) > 1:
            merged.sort()
        size = min(2 * size, _PIECE_KEYS_MAX)
        yield merged
        pieces = [piece for piece in pieces if piece.low < piece.high]
        if block is not None and block.low == block.high:
            block = next(blocks, None)
