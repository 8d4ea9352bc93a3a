"""Time to live: a record whose time lies ``ttl_ms`` or more behind stream time is never seen, and removed in passing.

Stream time is the highest time ever put; it is a mark, and so is committed and rolled back with the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from stores.interface import KeyValueIterator, ReadOnlyKeyValueStore
from stores.marks import VALUE_BYTES_MAX
from stores.plain import PlainIterator
from stores.records.converters import LoggedRecord, TimestampedConverter
from stores.records.staging import Staging
from stores.records.timestamps import TIME, time_of

STREAM_TIME: Final = "stream_time"
"""The mark with the highest time ever put."""
CURSOR: Final = "expiry_cursor"
"""The mark with the key that was examined last; none where the next step begins at the first key."""
EXAMINED_PER_WRITE: Final = 2
"""Faster than the store grows, so that the cursor comes round while half as many records are written as are there."""
EXAMINED_MAX: Final = 10_000
"""Records that one commit examines at most."""
_TRIES = 8

Marks = Callable[[str], bytes | None]


def stream_time_ms(marks: Marks) -> int:
    """The stream time that ``marks`` has, -1 before the first record."""
    mark = marks(STREAM_TIME)
    return -1 if mark is None else time_of(mark)


class LiveReader(ReadOnlyKeyValueStore):
    """Shows the timestamped records of ``reader`` that have not expired."""

    def __init__(self, reader: ReadOnlyKeyValueStore, marks: Marks, ttl_ms: int) -> None:
        self._reader, self._marks, self._ttl_ms = reader, marks, ttl_ms

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        limit = self._limit_ms()
        for _ in range(_TRIES):
            found = self._reader.get_many(keys)
            earlier, limit = limit, self._limit_ms()
            # What has expired in between may have been live in the moment that was read, or have a successor.
            if limit == earlier or not any(_expired(data, limit) and not _expired(data, earlier) for data in found):
                break
        return [None if _expired(data, limit) else data for data in found]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._live(lambda: self._reader.range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._live(lambda: self._reader.reverse_range(start, end))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._live(lambda: self._reader.prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._live(lambda: self._reader.reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._reader.approximate_num_entries()

    def _live(self, make: Callable[[], KeyValueIterator]) -> KeyValueIterator:
        limit = self._limit_ms()
        for attempt in range(_TRIES):
            scan = make()
            earlier, limit = limit, self._limit_ms()
            if limit == earlier or attempt == _TRIES - 1:
                break
            scan.close()
        return PlainIterator((pair for pair in scan if not _expired(pair[1], limit)), scan)

    def _limit_ms(self) -> int:
        return stream_time_ms(self._marks) - self._ttl_ms


def _expired(data: bytes | None, limit_ms: int) -> bool:
    """Whether the record is at or below the limit. A time of -1 never expires."""
    return data is not None and 0 <= time_of(data) <= limit_ms


class ExpiringConverter(TimestampedConverter):
    """Keeps stream time as well, from the one that the store is at."""

    def __init__(self, stream_time_ms: int) -> None:
        self._stream_time_ms = stream_time_ms

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        if record.key is not None and record.value is not None and record.timestamp_ms > self._stream_time_ms:
            self._stream_time_ms = record.timestamp_ms
        return super().convert(record)

    def marks(self) -> Mapping[str, bytes | None]:
        return {} if self._stream_time_ms < 0 else {STREAM_TIME: TIME.pack(self._stream_time_ms)}


class Expiry:
    """The writer's part: keeps stream time, and removes what has expired in steps of bounded size."""

    def __init__(self, staging: Staging, records: ReadOnlyKeyValueStore, ttl_ms: int) -> None:
        """``records`` shows what is staged in the form that it is staged in."""
        self._staging, self._records, self._ttl_ms = staging, records, ttl_ms
        self._written = 0

    def is_live(self, timestamp_ms: int) -> bool:
        """Whether a record of this time would be seen."""
        # Asked for each time: a rollback takes it back without a word to anybody.
        return timestamp_ms > stream_time_ms(self._staging.store.mark) - self._ttl_ms

    def observe(self, timestamp_ms: int) -> None:
        """Note a put at this time, which is staged."""
        self._written += 1
        store = self._staging.store
        if timestamp_ms > stream_time_ms(store.mark):
            store.set_mark(STREAM_TIME, TIME.pack(timestamp_ms))

    def step(self) -> None:
        """Stage the removal of what has expired among the next records in key order; after the last come the first."""
        examine = min(EXAMINED_PER_WRITE * self._written, EXAMINED_MAX)
        self._written = 0
        store = self._staging.store
        limit = stream_time_ms(store.mark) - self._ttl_ms
        if not examine or limit < 0:
            return
        cursor = store.mark(CURSOR)
        with self._records.range(None if cursor is None else cursor + b"\x00", None) as scan:
            pairs = list(islice(scan, examine))
        # A mark holds no longer key: then the next step begins before the last key of this one.
        store.set_mark(CURSOR, pairs[-1][0][:VALUE_BYTES_MAX] if len(pairs) == examine else None)
        for key, data in pairs:
            if _expired(data, limit):
                self._staging.put(key, None, key, None, None)
