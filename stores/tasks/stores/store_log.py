"""The changelog records of a store's writes within one transaction, one by one or coalesced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import ClassVar, Final

from stores.changelog.interface import Headers
from stores.interface import TopicPartition
from stores.tasks.context import TaskContext
from stores.tasks.record_undo import RecordUndo

COALESCED_BYTES_MAX = 16 << 20
"""The most bytes of records that are buffered until the commit; if there are more, they are sent before it."""
LogRecord = tuple[bytes, bytes | None, int]
"""The key, the value (None: a tombstone) and the timestamp of a record."""
_key, _value = itemgetter(0), itemgetter(1)
RECORD_MEMORY_BYTES: Final = 128
"""The memory of a buffered record, without its key and value."""


class StoreLog:
    """A log that sends each write at once, with ``headers``. ``sent_bytes`` counts what it sent since ``begin``."""

    entry_bytes: ClassVar[int] = 0
    """The most that a write adds to ``memory_bytes``."""

    def __init__(self, partition: TopicPartition, context: TaskContext, headers: Headers = ()) -> None:
        self.sent_bytes = 0
        self._headers = headers
        self._partition = partition
        self._context = context

    def begin(self) -> None:
        """Begin a transaction; records that are still buffered are dropped."""
        self.sent_bytes = 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Log one write. Raises: as ``Producer.send``."""
        self._context._producer.send(self._partition, key, value, timestamp_ms, self._headers)
        self.sent_bytes += len(key) if value is None else len(key) + len(value)

    def send_all(self, records: Sequence[LogRecord]) -> None:
        """Log many writes. Raises: as ``Producer.send``."""
        for record in records:
            self.send(*record)

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
        max_bytes: int = COALESCED_BYTES_MAX,
    ) -> None:
        super().__init__(partition, context, headers)
        self._max_bytes = max_bytes
        self._buffered: dict[bytes, tuple[bytes, bytes | None, int]] = {}
        """The records by key, as ``send_all`` takes them."""
        self._buffered_bytes_at_most = 0

    def begin(self) -> None:
        super().begin()
        self._buffered = {}
        self._buffered_bytes_at_most = 0

    def send(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        self._buffered[key] = key, value, timestamp_ms
        self._buffered_bytes_at_most += (
            RECORD_MEMORY_BYTES + len(key) if value is None else RECORD_MEMORY_BYTES + len(key) + len(value)
        )
        if self._buffered_bytes_at_most > self._max_bytes:
            self._make_room()

    def send_all(self, records: Sequence[LogRecord]) -> None:
        self._buffered.update(zip(map(_key, records), records, strict=True))
        num_bytes = sum(map(len, map(_key, records))) + sum(map(len, filter(None, map(_value, records))))
        self._buffered_bytes_at_most += RECORD_MEMORY_BYTES * len(records) + num_bytes
        if self._buffered_bytes_at_most > self._max_bytes:
            self._make_room()

    def memory_bytes(self) -> int:
        return RECORD_MEMORY_BYTES * len(self._buffered)

    def num_bytes_at_most(self) -> int:
        return self.sent_bytes + self._buffered_bytes_at_most - RECORD_MEMORY_BYTES * len(self._buffered)

    def count(self) -> None:
        self._buffered_bytes_at_most = RECORD_MEMORY_BYTES * len(self._buffered) + _num_bytes(self._buffered)

    def finish(self) -> None:
        buffered = self._buffered
        if buffered:
            producer = self._context._producer
            if self._headers:
                for key, value, timestamp_ms in buffered.values():
                    producer.send(self._partition, key, value, timestamp_ms, self._headers)
            else:
                keys, values, timestamps_ms = zip(*buffered.values(), strict=True)
                producer.send_columns(self._partition, keys, values, timestamps_ms)
            self.sent_bytes += _num_bytes(buffered)
            self._buffered = {}
            self._buffered_bytes_at_most = 0

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

    def send_all(self, records: Sequence[LogRecord]) -> None:
        """Log many writes. Raises: as ``Producer.send``, unless they are held."""
        if self._undo.active:
            self._undo.hold(partial(self._log.send_all, records))
        else:
            self._log.send_all(records)


def _num_bytes(buffered: dict[bytes, tuple[bytes, bytes | None, int]]) -> int:
    return sum(map(len, buffered)) + sum([len(value) for _, value, _ in buffered.values() if value is not None])
