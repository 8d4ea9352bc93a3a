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
"""The most memory of recent writes, of all stores of the process together: a write buffer's size."""
_FIRST_BYTES = 4 << 20
"""The memory in which they must prove useful before they get more."""
_REPLACED_OF = 4
"""They are useful if one of so many writes replaces a recent one. To add a write takes up to 0.3 us, which a lookup in
RocksDB takes several times (two shared cores, 1 December 2026)."""
_PAUSE_TIMES = 8
"""If they were not, the next attempt comes after so many times that memory."""


class RecentWrites:
    """Adds the writes of each commit of a store to its recent ones. For one thread.

    ``max_bytes`` is the most memory that they take; the stores of the process share ``MAX_BYTES`` as well.
    """

    _all: ClassVar[WeakSet[RecentWrites]] = WeakSet()

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room_bytes = _FIRST_BYTES
        self._most_bytes = self._count_above = min(max_bytes, _FIRST_BYTES)
        """The most memory of the pairs, and the counted bytes above which they are counted again."""
        self._pairs: dict[bytes, bytes | None] = {}
        self._num_bytes = 0
        """The memory of the pairs, or more. In a pause, of all writes since it began."""
        self._written = 0
        """The writes since the pairs were last counted. Those that replaced none have made the pairs more."""
        self._len_counted = 0
        """The number of pairs at that time."""
        self._paused = False
        self._all.add(self)

    def after(
        self, writes: Mapping[bytes, bytes | None], num_bytes: int, recent: Mapping[bytes, bytes | None]
    ) -> Mapping[bytes, bytes | None]:
        """Return the recent writes after a commit of ``writes``, whose keys and values have ``num_bytes``.

        ``recent`` are the recent ones until now. If they are not what the last call has returned, the engine has had
        other writes, and the older ones do not count. A later call may change the result, and never ``writes``.
        """
        if recent is not self._pairs and not self._paused:
            self._begin(0)
        count = len(writes)
        num_bytes += PAIR_MEMORY_BYTES * count
        self._num_bytes += num_bytes
        if self._num_bytes > self._count_above:
            self._count(num_bytes)
        if self._paused or self._num_bytes > self._most_bytes:
            return writes if num_bytes <= self._max_bytes else {}
        pairs = self._pairs
        if pairs:
            self._written += count
        else:
            # The first ones have nothing to replace.
            self._len_counted = count
        pairs.update(writes)
        return pairs

    def _count(self, new_bytes: int) -> None:
        """Count the pairs, of which replaced ones were counted again. If they fill more than half of the room, give
        them more, or begin without any. So they are counted once in as many writes as they are."""
        added = len(self._pairs) - self._len_counted
        vain = not self._paused and added * _REPLACED_OF > self._written * (_REPLACED_OF - 1)
        limit = min(self._max_bytes, MAX_BYTES // len(self._all))
        self._num_bytes = new_bytes + bytes_of(self._pairs) + PAIR_MEMORY_BYTES * len(self._pairs)
        if vain or self._paused:
            self._room_bytes = _FIRST_BYTES
            self._begin(new_bytes)
        elif self._num_bytes > min(self._room_bytes, limit) // 2:
            if self._room_bytes < limit:
                self._room_bytes *= 2
            else:
                self._begin(new_bytes)
        self._paused = vain
        self._written, self._len_counted = 0, len(self._pairs)
        self._most_bytes = self._count_above = min(self._room_bytes, limit)
        if vain:
            self._count_above *= _PAUSE_TIMES

    def _begin(self, new_bytes: int) -> None:
        # A new dict, because an empty one keeps its slots.
        self._pairs, self._num_bytes = {}, new_bytes
        self._written = self._len_counted = 0
