"""The keys that writes have changed, for the next snapshot by files. All stores of a process share one limit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from threading import Lock
from weakref import WeakSet

from stores.ordered import Bounds, KeyRanges

CHANGED_KEYS_BYTES = 32 << 20
"""The memory for changed keys of all stores of a process, without a limit or with a large one."""
_ENTRY_BYTES = 96
"""The memory of a key in a set, without its bytes."""
_UNCOUNTED_BYTES = 1 << 17
"""The memory is counted again once writes have named so much more, or half as much again."""


class KeyRoom:
    """The memory that the changed keys of all stores of a process have. For any thread."""

    def __init__(self) -> None:
        self.max_bytes = CHANGED_KEYS_BYTES
        self._kept: WeakSet[ChangedKeys] = WeakSet()
        self._lock = Lock()

    def add(self, changed: ChangedKeys) -> None:
        """Count the memory of ``changed``, as long as it lives."""
        with self._lock:
            self._kept.add(changed)

    @property
    def num_bytes(self) -> int:
        """The memory that is in use."""
        with self._lock:
            return sum(changed.num_bytes for changed in self._kept)

    def limit(self) -> None:
        """Forget the largest if all together take too much, so that those of one store do not displace all others."""
        with self._lock:
            kept = list(self._kept)
            while sum(changed.num_bytes for changed in kept) > self.max_bytes:
                max(kept, key=lambda changed: changed.num_bytes).release()


class ChangedKeys:
    """The keys that writes have named since a commit, and the ranges that were removed. For one thread at a time.

    ``release`` may be called on any thread.
    """

    def __init__(self, room: KeyRoom) -> None:
        self.keys: set[bytes] = set()
        self.ranges = KeyRanges()
        self.complete = True
        """False once there was no room for all, or no use of them: then none are kept."""
        self.num_bytes = 0
        """The memory of all when they were counted last."""
        self._room, self._uncounted_bytes = room, 0
        room.add(self)

    def __len__(self) -> int:
        return len(self.keys) + len(self.ranges)

    def add(self, keys: Collection[bytes], ranges: Iterable[Bounds]) -> None:
        """Add what a write changes. It may be added before the write, also if that fails."""
        if not self.complete:
            return
        self.keys.update(keys)
        self._uncounted_bytes += _ENTRY_BYTES * len(keys) + sum(map(len, keys))
        for start, end in ranges:
            self.ranges.add(start, end)
            self._uncounted_bytes += _ENTRY_BYTES + len(start or b"") + len(end or b"")
        # At most as much as that: a key may have been named before.
        if self._uncounted_bytes >= max(_UNCOUNTED_BYTES, self.num_bytes // 2):
            self._count()
            self._room.limit()

    def join(self, earlier: ChangedKeys) -> None:
        """Add the changes that came before these, also if there is no room."""
        self.keys |= earlier.keys
        self.ranges.update(earlier.ranges)
        # Looked at last: either may be released meanwhile, on another thread.
        if not earlier.complete:
            self.complete = False
        self._count()

    def release(self) -> None:
        """Forget all, and keep none from now on."""
        self.complete = False
        self.keys, self.ranges = set(), KeyRanges()
        self._count()

    def _count(self) -> None:
        self._uncounted_bytes = 0
        self.num_bytes = _ENTRY_BYTES * len(self) + sum(map(len, self.keys)) + self.ranges.num_bytes()
