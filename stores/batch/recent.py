"""Committed writes that stay readable from memory, because a key that was written lately is often read soon.

The writes of a commit are added to those of the commits before, as long as they often replace them: an aggregation
reads and writes the same keys again and again. Where each commit has other keys, only the last one's writes stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from weakref import WeakSet

from stores.batch.memory import PAIR_MEMORY_BYTES, bytes_of

MAX_BYTES = 16 << 20
"""The memory of recent writes, of all stores of the process that have some: a write buffer's size."""
_FIRST_BYTES = 4 << 20
"""The memory in which they must prove useful before they get more."""
_REPLACED_OF = 4
"""They are useful if one of so many writes replaces a recent one. To add a write takes up to 0.3 us, which a lookup in
RocksDB takes several times (two shared cores, 1 December 2026)."""
_PAUSE_TIMES = 8
"""If they were not, the next attempt comes after so many times that memory."""


class RecentWrites:
    """Adds the writes of each commit of a store to its recent ones. For one thread.

    ``max_bytes`` is the most memory that they take. Stores share ``MAX_BYTES`` as well: each looks for its part at its
    first commit and whenever it counts its writes. One that has been idle since then keeps what it has.
    """

    _holders: ClassVar[WeakSet[RecentWrites]] = WeakSet()
    """Those that may hold writes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._part_bytes = 0
        """This store's part of the memory."""
        self._room_bytes = _FIRST_BYTES
        """The memory that they have earned."""
        self._most_bytes = self._count_above = 0
        """The lesser of both, and the counted bytes above which the pairs are counted again."""
        self._pairs: dict[bytes, bytes | None] = {}
        self._num_bytes = 0
        """The memory of the pairs, or more. In a pause, of all writes since it began."""
        self._written = 0
        """The writes since the pairs were last counted. Those that replaced none have made the pairs more."""
        self._len_counted = 0
        """The number of pairs at that time."""
        self._paused = False

    def forget(self) -> None:
        """Drop all writes. Call it whenever the engine may have other data than they say."""
        self._begin(0)
        self._count_above = 0
        self._holders.discard(self)

    def after(self, writes: Mapping[bytes, bytes | None], num_bytes: int) -> Mapping[bytes, bytes | None]:
        """Return the recent writes after a commit of ``writes``, whose keys and values have ``num_bytes``.

        A later call may change the result, and never ``writes``, which must not change either.
        """
        count = len(writes)
        num_bytes += PAIR_MEMORY_BYTES * count
        self._num_bytes += num_bytes
        if self._num_bytes > self._count_above:
            self._count(num_bytes)
        if self._paused or num_bytes > self._most_bytes:
            return writes if num_bytes <= self._part_bytes else {}
        pairs = self._pairs
        if pairs:
            self._written += count
        else:
            # The first ones have nothing to replace.
            self._len_counted = count
        pairs.update(writes)
        return pairs

    def _count(self, new_bytes: int) -> None:
        """Count the pairs before ``new_bytes`` are added, and decide about their room.

        Until now a write that replaced one was counted beside it. The pairs then have at most half of the room, or they
        get more, or begin again without any. So all pairs are counted once in as many writes as there are pairs.
        """
        added = len(self._pairs) - self._len_counted
        vain = not self._paused and added * _REPLACED_OF > self._written * (_REPLACED_OF - 1)
        self._holders.add(self)
        self._part_bytes = min(self._max_bytes, MAX_BYTES // len(self._holders))
        self._num_bytes = new_bytes + bytes_of(self._pairs) + PAIR_MEMORY_BYTES * len(self._pairs)
        if vain or self._paused:
            self._room_bytes = _FIRST_BYTES
            self._begin(new_bytes)
        elif self._num_bytes > min(self._room_bytes, self._part_bytes) // 2 and self._room_bytes < self._part_bytes:
            self._room_bytes *= 2
        elif self._num_bytes > self._part_bytes // 2:
            self._begin(new_bytes)
        self._most_bytes = self._count_above = min(self._room_bytes, self._part_bytes)
        if self._num_bytes > self._most_bytes:
            self._begin(new_bytes)
        self._written, self._len_counted = 0, len(self._pairs)
        self._paused = vain
        if vain:
            self._count_above *= _PAUSE_TIMES

    def _begin(self, new_bytes: int) -> None:
        # A new dict, because an empty one keeps its slots.
        self._pairs, self._num_bytes = {}, new_bytes
        self._written = self._len_counted = 0
