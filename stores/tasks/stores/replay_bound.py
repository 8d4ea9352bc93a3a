"""A bound on the bytes of changelog that are replayed into a store after its process was killed.

At the level CHANGELOG an engine without a WAL is at its last flush after a kill. A flush begins in the background once
half of the bound is not persistent, or an eighth while the task has no input. A commit that would exceed the bound
waits for a flush first, before it is in the changelog. So a replay is never larger than the bound, or than the last
commit if that alone is larger.

Source: KIP-892, "In-memory Transaction Buffers" and "Restoring".
"""

from __future__ import annotations

from collections import deque

from stores.contract.levels import AT_ONCE, Persistence

_GROUPS = 32
"""The approximate number of groups in which commits are counted: one for each small commit would take memory."""
_GROUP_BYTES = 1 << 20
"""The size of a group if there is no bound."""
IDLE_SHARE = 8
"""A task without input flushes once one part of so many of the bound is not persistent."""


class ReplayBound:
    """The changelog bytes of a store that are not persistent yet. ``max_bytes`` of -1 is no bound. For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.persist_total = 0
        """Flushes begun to keep to the bound."""
        self._group_bytes = _GROUP_BYTES if max_bytes == -1 else max_bytes // _GROUPS
        self._persistence = AT_ONCE
        self._groups: deque[tuple[int, int]] = deque()
        """Marks and bytes, oldest first: a group has all commits after the mark before it, up to its own."""
        self._counted_bytes = 0
        self._idle_mark = -1
        """The last mark for which ``idle`` has begun a flush."""

    def follow(self, persistence: Persistence) -> None:
        """Start counting for a store that was just opened: all of its content is persistent."""
        self._persistence = persistence
        self._groups = deque()
        self._counted_bytes = 0
        self._idle_mark = -1

    def take_over(self, other: ReplayBound) -> None:
        """Continue the counts of ``other``, whose store is this one's now."""
        self._persistence, self._groups = other._persistence, other._groups
        self._counted_bytes, self._idle_mark = other._counted_bytes, other._idle_mark

    def committed(self, num_bytes: int) -> None:
        """Count a commit or a restored piece with ``num_bytes`` of changelog records."""
        if self._persistence is AT_ONCE or not num_bytes:
            return
        mark, groups = self._persistence.mark(), self._groups
        if groups and groups[-1][1] + num_bytes <= self._group_bytes:
            groups[-1] = (mark, groups[-1][1] + num_bytes)
        else:
            groups.append((mark, num_bytes))
        self._counted_bytes += num_bytes
        if self.max_bytes == -1:
            if len(groups) > _GROUPS:
                self._counted()
        elif self._counted_bytes > self.max_bytes // 2 and self._counted() > self.max_bytes // 2:
            self._begin()

    def make_room(self, num_bytes: int) -> None:
        """Wait until a commit of ``num_bytes`` keeps to the bound. If a flush fails, the commit raises the error."""
        if self.max_bytes == -1 or not self._counted_bytes or self._counted_bytes + num_bytes <= self.max_bytes:
            return
        if not self._counted() or self._counted_bytes + num_bytes <= self.max_bytes:
            return
        # A flush in progress may have begun before the latest commit, and may not cover it.
        self._persistence.wait()
        if self._counted() and self._counted_bytes + num_bytes > self.max_bytes:
            self._begin()
            self._persistence.wait()
            self._counted()

    def idle(self) -> None:
        """Begin a flush if much is not persistent: the task has no input at the moment, so it disturbs nobody."""
        least = self.max_bytes // IDLE_SHARE
        if self.max_bytes == -1 or self._counted_bytes <= least:
            return
        mark = self._groups[-1][0]
        if mark != self._idle_mark and self._counted() > least and self._persistence.begin():
            self._idle_mark = mark
            self.persist_total += 1

    @property
    def num_bytes(self) -> int:
        """The bytes of changelog that would be replayed after a kill now."""
        groups = list(self._groups)
        if not groups:
            return 0
        persisted = self._persistence.persisted()
        return sum(num_bytes for mark, num_bytes in groups if mark > persisted)

    def _counted(self) -> int:
        """Drop the commits that have become persistent; return the bytes of the others."""
        groups, persisted = self._groups, self._persistence.persisted()
        while groups and groups[0][0] <= persisted:
            self._counted_bytes -= groups.popleft()[1]
        return self._counted_bytes

    def _begin(self) -> None:
        self.persist_total += 1
        self._persistence.begin()
