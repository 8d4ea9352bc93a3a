"""A moment of a standby copy that queries read: its stores after whole commits, with their position and their lag.

A copy is written in steps, which may end within a commit of the task. So a moment is taken after a step that has
reached the ends of the changelogs, and it is shown until the next such step, whatever is written meanwhile. Each store
is read to its end in turn, so a later one may have a commit more.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from stores.errors import StoreError
from stores.interface import Closeable, Position, TopicPartition

Offsets = Mapping[TopicPartition, int | None]


class CopyMoment(Closeable):
    """The snapshots of a copy's stores, closed with the last user. Each closes it once. For any thread.

    Source: KIP-535, "Allow state stores to serve stale reads during rebalance"; KIP-796, positions.
    """

    def __init__(self, snapshots: Mapping[str, Any], offsets: Offsets, position: Position) -> None:
        self.snapshots = snapshots
        """The typed snapshots of the stores, by name."""
        self.offsets = offsets
        """The changelog offsets of the stores."""
        self.position: Position = position
        """Input offsets that the stores reflect at least."""
        self.lag: int | None = 0
        """The offsets of the changelogs that the stores lacked at the copy's last step; None if that is unknown."""
        self._users = 1
        self._lock = threading.Lock()

    def shared(self) -> CopyMoment | None:
        """Return the moment for one more user, None if it is closed."""
        with self._lock:
            if not self._users:
                return None
            self._users += 1
            return self

    @property
    def is_open(self) -> bool:
        """False once a store was closed, maybe to be wiped."""
        try:
            for snapshot in self.snapshots.values():
                snapshot.position()
        except StoreError:
            return False
        return True

    def lacks(self, offsets: Offsets, lag: int) -> None:
        """Note that the copy has reached these offsets, and lacks ``lag`` more."""
        reached = [(offset, self.offsets.get(partition)) for partition, offset in offsets.items()]
        self.lag = lag + sum((-1 if to is None else to) - (-1 if since is None else since) for to, since in reached)

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        for snapshot in self.snapshots.values():
            snapshot.close()
