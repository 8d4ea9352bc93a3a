"""Time to live: a record is hidden once its time is ``ttl_ms`` or more behind stream time; later commits remove it.

Stream time is the highest time ever put. It is a mark, so it is committed and rolled back with the records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from stores.contract.reading import PlainIterator
from stores.errors import damaged
from stores.interface import KeyValueIterator, KeyValueSnapshot, KeyValueStore, KeyValueView, ReadOnlyKeyValueStore
from stores.meta_entries import MARK_BYTES_MAX
from stores.records.headers import stored_time_ms, with_headers
from stores.records.record_kind import LoggedRecord, RecordConverter, check_time_beside_headers
from stores.records.values import TIME, TIME_BYTES, RecordStaging, StagedWrite, time_of

STREAM_TIME: Final = "stream_time"
"""The mark with the highest time ever put."""
CURSOR: Final = "expiry_cursor"
"""The mark with the key that was examined last; none where the next step begins at the first key."""
EXAMINED_PER_WRITE: Final = 2
"""Faster than the store grows, so that the cursor comes round while half as many records are written as are there."""
EXAMINED_MAX: Final = 10_000
"""Records that one commit examines at most."""

LOOKUPS_MAX: Final = 1_000
"""The most lookups that are repeated if the stream time has moved meanwhile."""

Marks = Callable[[str], bytes | None]


def stream_time_ms(marks: Marks) -> int:
    """Return the stream time in ``marks``, -1 before the first record."""
    return stream_time_of(marks(STREAM_TIME))


def stream_time_of(mark: bytes | None) -> int:
    """Return the stream time in its mark, -1 for no mark. Raises: StoreCorruptedError."""
    if mark is None:
        return -1
    if len(mark) != TIME_BYTES:
        raise damaged("the stream time of a store can't be read")
    return time_of(mark)


class ScanReader(ReadOnlyKeyValueStore):
    """A base of readers that change the pairs of each scan of ``reader``, and the values of its lookups."""

    def __init__(self, reader: ReadOnlyKeyValueStore) -> None:
        self._reader = reader

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._shown(lambda: self._reader.range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._shown(lambda: self._reader.reverse_range(start, end))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._shown(lambda: self._reader.prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._shown(lambda: self._reader.reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._reader.approximate_num_entries()

    @abstractmethod
    def _shown(self, make: Callable[[], KeyValueIterator]) -> KeyValueIterator:
        """Return the changed pairs of the scan that ``make`` begins."""


class LiveReader(ScanReader):
    """A reader of the records of ``reader`` that have not expired, by the stream time of ``source`` at the moment of
    the read.
    """

    def __init__(
        self,
        reader: ReadOnlyKeyValueStore,
        source: KeyValueStore | KeyValueView,
        ttl_ms: int,
        reader_of: Callable[[KeyValueView], ReadOnlyKeyValueStore],
    ) -> None:
        """Make it. ``reader_of`` makes such a ``reader`` of a snapshot."""
        super().__init__(reader)
        self._source, self._ttl_ms, self._reader_of = source, ttl_ms, reader_of

    def get(self, key: bytes) -> bytes | None:
        def read(mark: bytes | None) -> bytes | None:
            data = self._reader.get(key)
            return None if has_expired(data, stream_time_of(mark) - self._ttl_ms) else data

        return self._source.with_mark(STREAM_TIME, read)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        def look(mark: bytes | None, reader: ReadOnlyKeyValueStore) -> list[bytes | None]:
            limit = stream_time_of(mark) - self._ttl_ms
            return [None if has_expired(data, limit) else data for data in reader.get_many(keys)]

        def look_into(mark: bytes | None, view: KeyValueView) -> list[bytes | None]:
            if not isinstance(view, KeyValueSnapshot):
                return look(mark, self._reader)
            with view:
                return look(mark, self._reader_of(view))

        source = self._source
        if len(keys) > LOOKUPS_MAX and isinstance(source, KeyValueView) and not isinstance(source, KeyValueSnapshot):
            # They take a while: not again and again beside a busy writer.
            return source.at_one_moment(STREAM_TIME, look_into)
        return source.with_mark(STREAM_TIME, lambda mark: look(mark, self._reader))

    def _shown(self, make: Callable[[], KeyValueIterator]) -> KeyValueIterator:
        def read(mark: bytes | None) -> KeyValueIterator:
            scan, limit = make(), stream_time_of(mark) - self._ttl_ms
            return PlainIterator((pair for pair in scan if not has_expired(pair[1], limit)), scan)

        return self._source.with_mark(STREAM_TIME, read)


def has_expired(data: bytes | None, limit_ms: int) -> bool:
    """Return whether the record is at or below the limit. A time of -1 never expires.

    A value that is too short for a time does not expire either: it is an error for its reader, who names the key.
    """
    try:
        return data is not None and 0 <= stored_time_ms(data) <= limit_ms
    except ValueError:
        return False


class TimestampedConverter(RecordConverter):
    """A converter that puts the record's time, eight bytes big-endian, before the value. A tombstone stays one.

    With ``headers`` it also keeps the record's headers (``stores.records.headers``).
    """

    def __init__(self, *, headers: bool = False) -> None:
        self._headers = headers

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, value = record.key, record.value
        if key is None:
            return ()
        if value is None:
            return ((key, None),)
        if not self._headers:
            return ((key, TIME.pack(record.timestamp_ms) + value),)
        check_time_beside_headers(record)
        return ((key, with_headers(value, record.timestamp_ms, record.headers)),)


class ExpiringConverter(TimestampedConverter):
    """A converter that also advances the stream time, starting from that of the store."""

    def __init__(self, stream_time_ms: int, *, headers: bool = False) -> None:
        super().__init__(headers=headers)
        self._stream_time_ms = stream_time_ms

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        if record.key is not None and record.value is not None and record.timestamp_ms > self._stream_time_ms:
            self._stream_time_ms = record.timestamp_ms
        return super().convert(record)

    def marks(self) -> Mapping[str, bytes | None]:
        return {} if self._stream_time_ms < 0 else {STREAM_TIME: TIME.pack(self._stream_time_ms)}


class Expiry:
    """The expiry of a store's writer: it advances the stream time, and removes expired records in bounded steps."""

    def __init__(self, staging: RecordStaging, records: ReadOnlyKeyValueStore, ttl_ms: int) -> None:
        """Create it. ``records`` reads the stored form of the records, staged writes included."""
        self._staging, self._records, self._ttl_ms = staging, records, ttl_ms
        self._written = 0

    def put_all(self, writes: Iterable[StagedWrite]) -> None:
        """Stage writes with the stream time that they lead to, as if they came one by one; or nothing.

        A record that has expired when it is put replaces the former one: so its key is deleted.
        """
        # Read it each time: a rollback changes the stream time without a call of this object.
        before = highest = stream_time_ms(self._staging.store.mark)
        staged: list[StagedWrite] = []
        for write in writes:
            time_ms = write.timestamp_ms
            if write.kept is not None and time_ms is not None:
                live = time_ms > highest - self._ttl_ms
                staged.append(write if live else write._replace(kept=None, log_value=None))
                highest = max(highest, time_ms)
                self._written += 1
            else:
                staged.append(write)
        if highest == before and len(staged) == 1:
            [(key, data, log_key, log_value, timestamp_ms)] = staged
            self._staging.put(key, data, log_key or key, log_value, timestamp_ms)
        else:
            self._staging.put_all(staged, None if highest == before else {STREAM_TIME: TIME.pack(highest)})

    def step(self) -> None:
        """Stage the removal of expired records among the next ones in key order. After the last key it starts over."""
        examine = min(EXAMINED_PER_WRITE * self._written, EXAMINED_MAX)
        self._written = 0
        store = self._staging.store
        limit = stream_time_ms(store.mark) - self._ttl_ms
        if not examine or limit < 0:
            return
        cursor = store.mark(CURSOR)
        with self._records.range(None if cursor is None else cursor + b"\x00", None) as scan:
            pairs = list(islice(scan, examine))
        # A mark can't hold a longer key: then the next step begins before the last key of this one.
        store.set_mark(CURSOR, pairs[-1][0][:MARK_BYTES_MAX] if len(pairs) == examine else None)
        for key, data in pairs:
            if has_expired(data, limit):
                self._staging.put(key, None, key, None, None)
