"""Records with a time to live that are reported when they expire: an index by time, behind all keys of the user.

A store with ``on_expiry`` has a pair for each record with a time: ``<INDEX><time><key>``, with an empty value. Once the
stream time has expired a record, the record is removed, and the function of ``on_expiry`` is called with it, in the
transaction that has moved the stream time. The removal is in the changelog, so the function is called once.

A batch may replace or delete a record after it has expired, and before it is reported. The pair has its value then,
until the end of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final

from stores.interface import KeyValueIterator, KeyValueStore, ReadOnlyKeyValueStore
from stores.records.codec import Codec
from stores.records.expiry import STREAM_TIME, ExpiringConverter, stream_time_of
from stores.records.headers import stored_time_ms
from stores.records.pieces import Pairs, restore_in_pieces
from stores.records.record_kind import LoggedRecord
from stores.records.segments import packed
from stores.records.time_index import TimeIndex, removed
from stores.records.values import TIME, TIME_BYTES, RecordStaging, Report, StagedWrite, StagingOver

INDEX: Final = b"\xff" * 8
"""The beginning of the keys of the index. No key of the user begins with it."""
_LENGTH: Final = Struct(">I")
_NOTHING: Final = (b"\x01", b"\x00")
"""A range without a key."""


def _entry(time_ms: int, key: bytes) -> bytes:
    return INDEX + packed(time_ms) + key


class UserKeys(ReadOnlyKeyValueStore):
    """A reader of the pairs of ``reader`` that are not of the index."""

    def __init__(self, reader: ReadOnlyKeyValueStore) -> None:
        self._reader = reader

    def get(self, key: bytes) -> bytes | None:
        return None if key.startswith(INDEX) else self._reader.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._reader.get_many(keys)
        return [None if key.startswith(INDEX) else value for key, value in zip(keys, values, strict=True)]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._reader.range(start, _end(end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._reader.reverse_range(start, _end(end))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        bounds = _bounds(prefix)
        return self._reader.prefix_scan(prefix) if bounds is None else self._reader.range(*bounds)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        bounds = _bounds(prefix)
        return self._reader.reverse_prefix_scan(prefix) if bounds is None else self._reader.reverse_range(*bounds)

    def approximate_num_entries(self) -> int:
        return self._reader.approximate_num_entries()


def _end(end: bytes | None) -> bytes:
    """Return an inclusive bound below the index, whose keys are all longer than its beginning."""
    return INDEX if end is None or end > INDEX else end


def _bounds(prefix: bytes) -> tuple[bytes | None, bytes] | None:
    """Return the bounds of the keys with a prefix that keys of the index have as well; None for another prefix."""
    if prefix.startswith(INDEX):
        return _NOTHING
    return (prefix or None, INDEX) if INDEX.startswith(prefix) else None


class UserKeysStaging(StagingOver):
    """A staging that leaves the index alone, and refuses keys that begin as it does."""

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        _check(key)
        self._inner.put(key, kept, log_key, log_value, timestamp_ms)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        for write in writes:
            _check(write.key)
        self._inner.put_all(writes, marks)

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        self._inner.delete_range(start, _end(end), logged=logged)


def _check(key: bytes) -> None:
    if key.startswith(INDEX):
        raise ValueError("a key of a store with on_expiry can't begin with eight bytes ff: use another key")


class ReportingConverter(ExpiringConverter):
    """A converter that also makes the index. It leaves the keys of records that are replaced or removed later."""

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        pairs = [*super().convert(record)]
        if record.key is not None and record.value is not None and record.timestamp_ms >= 0:
            pairs.append((_entry(record.timestamp_ms, record.key), b""))
        return pairs


class ReportedExpiry:
    """The expiry of a store's writer, which reports each record that has expired, and removes it."""

    def __init__(
        self,
        staging: RecordStaging,
        codec: Codec[Any, Any],
        ttl_ms: int,
        on_expiry: Callable[[Any, Any, Any], None],
    ) -> None:
        """``staging`` and its store are those of the index and the records. ``codec`` reads values with their times."""
        self._staging, self._store, self._codec = staging, staging.store, codec
        self._ttl_ms, self._on_expiry = ttl_ms, on_expiry
        self._index = TimeIndex(staging, INDEX)
        self._seen: bytes | None = None
        """The mark of the stream time after the last put. A rollback or a restore makes a different object."""

    def put_all(self, writes: Iterable[StagedWrite]) -> None:
        """Stage writes with the stream time and the index that they lead to, or nothing.

        A record that has expired when it is put is reported as well, and so is one that has expired before it is
        replaced or deleted: a batch may do both.
        """
        mark = self._store.mark(STREAM_TIME)
        if mark is not self._seen:
            self._index.forget()
        before = highest = stream_time_of(mark)
        expired_ms = before - self._ttl_ms
        staged: list[StagedWrite] = []
        times: dict[bytes, int | None] = {}
        entries: dict[bytes, bytes | None] = {}

        def kept(time_ms: int, key: bytes) -> bytes:
            """Return what the index keeps of records that have expired."""
            entry = _entry(time_ms, key)
            found = entries[entry] if entry in entries else self._store.get(entry) if time_ms <= expired_ms else None
            return found or b""

        for write in writes:
            key = write.key
            _check(key)
            time_ms = None if write.kept is None else write.timestamp_ms
            data = None if key in times else self._store.get(key)
            former = times[key] if key in times else _time(data)
            staged.append(write)
            if former is not None and data is not None and former <= expired_ms:
                entries[_entry(former, key)] = kept(former, key) + _LENGTH.pack(len(data)) + data
            elif former is not None and former != time_ms:
                entries[_entry(former, key)] = kept(former, key) or None
            if time_ms is not None and former != time_ms:
                entries[_entry(time_ms, key)] = kept(time_ms, key)
            times[key] = time_ms
            highest = highest if time_ms is None else max(highest, time_ms)
        staged += (StagedWrite(entry, value) for entry, value in entries.items())
        self._staging.put_all(staged, None if highest == before else {STREAM_TIME: TIME.pack(highest)})
        for time_ms in times.values():
            if time_ms is not None:
                self._index.added(time_ms)
        self._seen = self._store.mark(STREAM_TIME)
        if self._index.has_up_to(highest - self._ttl_ms):
            self._staging.report(self._reports)

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included."""
        mark = self._store.mark(STREAM_TIME)
        expired_ms = stream_time_of(mark) - self._ttl_ms
        if mark is not self._seen or self._index.has_up_to(expired_ms):
            with self._store.range(start, _end(end)) as pairs:
                expired = [key for key, data in pairs if (time_ms := _time(data)) is not None and time_ms <= expired_ms]
            self.put_all([StagedWrite(key, None, key) for key in expired])
        self._staging.delete_range(start, _end(end))

    def step(self) -> None:
        """Do nothing: what has expired was removed when it was reported."""

    def _reports(self) -> Iterator[Report]:
        """Remove the records that are due, and yield the report of each, in the order of their times and keys."""
        stream_time = stream_time_of(self._store.mark(STREAM_TIME))
        if stream_time < self._ttl_ms:
            return  # The record that had moved it further is undone.
        for entries in self._index.taken(stream_time - self._ttl_ms + 1):
            for entry, replaced in entries:
                time_ms, key = self._index.time(entry), entry[len(INDEX) + TIME_BYTES :]
                for value in _split(replaced):
                    yield self._report(time_ms, key, value)
                data = self._store.get(key)
                if data is None or _time(data) != time_ms:
                    continue  # A later put, or the restore, has left it.
                self._staging.put(key, None, key, None, None)
                yield self._report(time_ms, key, data)

    def _report(self, time_ms: int, key: bytes, data: bytes) -> Report:
        value = self._codec.decode_value(key, data)
        return time_ms, partial(self._on_expiry, self._codec.decode_key(key), value)


def _split(values: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(values):
        begin = at + _LENGTH.size
        at = begin + int(_LENGTH.unpack_from(values, at)[0])
        yield values[begin:at]


def _time(data: bytes | None) -> int | None:
    """Return the time of a record, None if there is none or its time is unknown."""
    if data is None or len(data) < TIME_BYTES:
        return None
    time_ms = stored_time_ms(data)
    return None if time_ms < 0 else time_ms


def make_or_remove_index(store: KeyValueStore, *, wanted: bool) -> None:
    """Make the index of a store that has none, or remove it. A kill leaves the rest to the next opening."""
    restore_in_pieces(store, _entries(store) if wanted else removed(store, INDEX))


def _entries(store: KeyValueStore) -> Iterator[Pairs]:
    with store.range(None, INDEX) as pairs:
        for key, data in pairs:
            time_ms = _time(data)
            if time_ms is not None:
                yield [(_entry(time_ms, key), b"")]
