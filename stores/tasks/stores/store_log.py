"""The changelog records of a store's writes within one transaction, one by one or coalesced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from stores.changelog.interface import Headers
from stores.interface import TopicPartition
from stores.tasks.column_records import bytes_of
from stores.tasks.context import TaskContext
from stores.tasks.record_undo import RecordUndo

COALESCED_BYTES_MAX = 16 << 20
"""The most bytes of records that are buffered until the commit; if there are more, they are sent before it."""
RECORD_MEMORY_BYTES: Final = 128
"""The memory of a buffered record, without its key and value."""


LogParts = Callable[[bytes], tuple[bytes, Headers]]
"""A function that returns the value and the headers of a record: see ``RecordKind.log_parts``."""


class StoreLog:
    """A log that sends each write at once, with ``headers``. ``sent_bytes`` counts what it sent since ``begin``.

    With ``parts`` it takes further headers of each record from its value.
    """

    entry_bytes: ClassVar[int] = 0
    """The most that a write adds to ``memory_bytes``."""

    def __init__(
        self,
        partition: TopicPartition,
        context: TaskContext,
        headers: Headers = (),
        parts: LogParts | None = None,
    ) -> None:
        self.sent_bytes = 0
        self._headers, self._parts = headers, parts
        self._partition = partition
        self._context = context

    def begin(self) -> None:
        """Begin a transaction; records that are still buffered are dropped."""
        self.sent_bytes = 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises: as ``Producer.send``."""
        sent_value, headers = value, self._headers
        if self._parts is not None and value is not None:
            sent_value, own_headers = self._parts(value)
            headers = (*headers, *own_headers)
        self._context._producer.send(self._partition, key, sent_value, timestamp_ms, headers)
        self.sent_bytes += len(key) if value is None else len(key) + len(value)

    def send_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None], timestamps_ms: Sequence[int]) -> None:
        """Log many writes. A value of None is a tombstone. Raises: as ``Producer.send``."""
        if self._headers or self._parts is not None:
            for key, value, timestamp_ms in zip(keys, values, timestamps_ms, strict=True):
                StoreLog.send(self, key, value, timestamp_ms)
        else:
            self._context._producer.send_columns(self._partition, keys, values, timestamps_ms)
            self.sent_bytes += bytes_of(keys, values)

    def memory_bytes(self) -> int:
        """Return the memory of the buffered records, without keys and values, which the store may hold as well."""
        return 0

    def num_bytes_at_most(self) -> int:
        """Return an upper bound of the bytes that the transaction has sent or still holds: see ``count``."""
        return self.sent_bytes

    def count(self) -> None:
        """Make ``num_bytes_at_most`` exact."""

    def finish(self) -> None:
        """Send all buffered records, before the transaction is committed. Raises: as ``Producer.send``."""


class CoalescingLog(StoreLog):
    """A log that holds writes until the commit, so that all updates of a key become one record: the last.

    This loses nothing: a transaction is only read after its commit. Memory is bounded: a transaction of more than
    ``max_bytes`` sends the buffered records early, and a key that is written again later is sent again.
    """

    entry_bytes: ClassVar[int] = RECORD_MEMORY_BYTES

    def __init__(
        self,
        partition: TopicPartition,
        context: TaskContext,
        headers: Headers = (),
        parts: LogParts | None = None,
        max_bytes: int = COALESCED_BYTES_MAX,
    ) -> None:
        super().__init__(partition, context, headers, parts)
        self._max_bytes = max_bytes
        # Both have the same keys in the same order. With the parts of a record in a tuple the garbage collector would
        # visit one object more for each write.
        self._values: dict[bytes, bytes | None] = {}
        self._timestamps_ms: dict[bytes, int] = {}
        self._buffered_bytes_at_most = 0

    def begin(self) -> None:
        super().begin()
        self._values, self._timestamps_ms, self._buffered_bytes_at_most = {}, {}, 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        self._values[key] = value
        self._timestamps_ms[key] = timestamp_ms
        self._buffered_bytes_at_most += (
            RECORD_MEMORY_BYTES + len(key) if value is None else RECORD_MEMORY_BYTES + len(key) + len(value)
        )
        if self._buffered_bytes_at_most > self._max_bytes:
            self._make_room()

    def send_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None], timestamps_ms: Sequence[int]) -> None:
        self._values.update(zip(keys, values, strict=True))
        self._timestamps_ms.update(zip(keys, timestamps_ms, strict=True))
        self._buffered_bytes_at_most += RECORD_MEMORY_BYTES * len(keys) + bytes_of(keys, values)
        if self._buffered_bytes_at_most > self._max_bytes:
            self._make_room()

    def memory_bytes(self) -> int:
        return RECORD_MEMORY_BYTES * len(self._values)

    def num_bytes_at_most(self) -> int:
        return self.sent_bytes + self._buffered_bytes_at_most - self.memory_bytes()

    def count(self) -> None:
        self._buffered_bytes_at_most = self.memory_bytes() + bytes_of(list(self._values), list(self._values.values()))

    def finish(self) -> None:
        values, timestamps_ms = self._values, self._timestamps_ms
        if values:
            StoreLog.send_columns(self, [*values], [*values.values()], [*timestamps_ms.values()])
            self._values, self._timestamps_ms, self._buffered_bytes_at_most = {}, {}, 0

    def _make_room(self) -> None:
        """Count again, without overwritten values; send all records if they still fill more than half of the limit."""
        self.count()
        if self._buffered_bytes_at_most > self._max_bytes // 2:
            self.finish()


class HeldLog:
    """A log that holds the changelog records of a record until its function has returned."""

    def __init__(self, log: StoreLog, undo: RecordUndo) -> None:
        self._log, self._undo = log, undo
        self.entry_bytes = log.entry_bytes

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises: as ``Producer.send``, unless it is held."""
        if self._undo.active:
            self._undo.hold(partial(self._log.send, key, value, timestamp_ms))
        else:
            self._log.send(key, value, timestamp_ms)

    def send_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None], timestamps_ms: Sequence[int]) -> None:
        """Log many writes. Raises: as ``Producer.send``, unless they are held."""
        if self._undo.active:
            self._undo.hold(partial(self._log.send_columns, keys, values, timestamps_ms))
        else:
            self._log.send_columns(keys, values, timestamps_ms)
