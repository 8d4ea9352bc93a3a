"""A map of bytes to anything that is written often and read in key order now and then.

Writing costs one dict assignment. The key order is brought up to date only when somebody asks for it: a few new
keys are inserted one by one, many are sorted in. (Kafka's implementation of KIP-892 keeps a sorted tree instead
and pays at every write.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import Generic, TypeVar

Value = TypeVar("Value")

_INSERT_AT_MOST = 16
"""New keys up to this many are inserted one by one: moving a tail of pointers is cheaper than merging a list."""


class SortedMap(Generic[Value]):
    """``writes`` is the map itself, for anyone to read and assign. Deleting goes through ``discard_range``."""

    __slots__ = ("_order", "writes")

    def __init__(self, writes: dict[bytes, Value] | None = None) -> None:
        self.writes: dict[bytes, Value] = {} if writes is None else writes
        self._order: list[bytes] = []

    def sorted_keys(self) -> list[bytes]:
        """All keys, ascending. The list is the map's own: don't change it, nor keep it past the next write."""
        order, fresh = self._order, len(self.writes) - len(self._order)
        if fresh:
            # A dict keeps insertion order, so the keys that are not in the order yet are its last ones.
            newest = list(islice(reversed(self.writes), fresh))
            if fresh <= _INSERT_AT_MOST:
                for key in newest:
                    insort(order, key)
            else:
                newest.sort()
                order.extend(newest)
                order.sort()
        return order

    def keys_between(self, start: bytes | None, end: bytes | None, *, end_open: bool = False) -> list[bytes]:
        """A new list of the keys from ``start`` to ``end``, ascending; ``end`` itself only if not ``end_open``."""
        low, high = self.bounds_between(start, end, end_open=end_open)
        return self._order[low:high]

    def bounds_between(self, start: bytes | None, end: bytes | None, *, end_open: bool = False) -> tuple[int, int]:
        """Where among the sorted keys those from ``start`` to ``end`` begin and end."""
        order = self.sorted_keys()
        low = 0 if start is None else bisect_left(order, start)
        high = len(order) if end is None else bisect_left(order, end) if end_open else bisect_right(order, end)
        return low, max(low, high)

    def discard_range(self, start: bytes | None, end: bytes | None) -> list[tuple[bytes, Value]]:
        """Remove the keys from ``start`` to ``end``, both included; returns what was removed, ascending."""
        removed = [(key, self.writes.pop(key)) for key in self.keys_between(start, end)]
        if removed:
            low = bisect_left(self._order, removed[0][0])
            del self._order[low : low + len(removed)]
        return removed

    def discard(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        if key in self.writes:
            self.discard_range(key, key)
