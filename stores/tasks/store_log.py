"""What the writes of a store send to its changelog within one transaction, one by one or coalesced."""

from __future__ import annotations

from stores.interface import TopicPartition
from stores.tasks.context import TaskContext

COALESCED_BYTES_MAX = 16 << 20
"""Records are held until the commit, but not beyond this size: then they go out before it."""
_RECORD_BYTES = 128
"""What a held record takes beside its key and value."""


class StoreLog:
    """Sends each write at once. ``sent_bytes`` are those of keys and values since ``begin``."""

    def __init__(self, partition: TopicPartition, context: TaskContext) -> None:
        self.sent_bytes = 0
        self._partition = partition
        self._context = context

    def begin(self) -> None:
        """Begin a transaction; what is held of the last one is dropped."""
        self.sent_bytes = 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises as ``Producer.send``."""
        self._context.producer.send(self._partition, key, value, timestamp_ms)
        self.sent_bytes += len(key) if value is None else len(key) + len(value)

    def finish(self) -> None:
        """Send what is held, before the transaction is committed. Raises as ``Producer.send``."""


class CoalescingLog(StoreLog):
    """Holds writes back, so that the updates of a key within one commit are one record: the last one's.

    Nothing of a transaction is read before its commit, so that only the last update of a key counts. In bounded memory:
    a transaction of more than ``max_bytes`` sends what is held, and a key that is written again later is sent again.
    """

    def __init__(self, partition: TopicPartition, context: TaskContext, max_bytes: int = COALESCED_BYTES_MAX) -> None:
        super().__init__(partition, context)
        self._max_bytes = max_bytes
        self._held: dict[bytes, tuple[bytes | None, int]] = {}
        self._held_bytes_at_most = 0

    def begin(self) -> None:
        super().begin()
        self._held = {}
        self._held_bytes_at_most = 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        self._held[key] = value, timestamp_ms
        self._held_bytes_at_most += _RECORD_BYTES + len(key) if value is None else _RECORD_BYTES + len(key) + len(value)
        if self._held_bytes_at_most > self._max_bytes:
            self._make_room()

    def finish(self) -> None:
        held = self._held
        if held:
            self._context.producer.send_all(
                self._partition, ((key, value, timestamp_ms) for key, (value, timestamp_ms) in held.items())
            )
            self.sent_bytes += _num_bytes(held)
            self._held = {}
            self._held_bytes_at_most = 0

    def _make_room(self) -> None:
        """Count again, without what was overwritten; send all where that is still much."""
        held_bytes = _RECORD_BYTES * len(self._held) + _num_bytes(self._held)
        if held_bytes > self._max_bytes // 2:
            self.finish()
        else:
            self._held_bytes_at_most = held_bytes


def _num_bytes(held: dict[bytes, tuple[bytes | None, int]]) -> int:
    return sum(map(len, held)) + sum(len(value) for value, _ in held.values() if value is not None)
