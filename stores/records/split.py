"""The lazy upgrade of a plain store to a timestamped one: a record moves to the new format when its key is next used.

While a store is split (``Timestamps.is_split``), a first byte separates keys of the older format from those of the
present one. A record is in one of the two. The writer moves the records that it looks up or writes, inside the open
transaction. Scans return both and move nothing, nor do views. Older records have the time -1.

Source: KIP-258, ``RocksDBTimestampedStore``; "lazy upgrade".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from stores.contract.reading import PlainIterator
from stores.engines.families import NEW, OLD
from stores.interface import Closeable, KeyValueIterator, KeyValueStore, ReadOnlyKeyValueStore
from stores.ordered import prefix_bounds
from stores.records.record_kind import LoggedRecord, RecordConverter
from stores.records.values import SURROGATE, RecordStaging, StagedWrite, StagingOver

_BEHIND_NEW: Final = b"\x02"
"""Behind all keys of the present format."""

Pair = tuple[bytes, bytes]
Bounds = tuple[bytes | None, bytes | None]


class SplitReader(ReadOnlyKeyValueStore):
    """A reader of all records of ``reader`` in the present format, while its store is split and afterwards.

    It moves nothing. A store stops being split when its task opens it again.
    """

    def __init__(self, reader: ReadOnlyKeyValueStore, is_split: Callable[[], bool]) -> None:
        self._reader, self._is_split = reader, is_split

    def get(self, key: bytes) -> bytes | None:
        if not self._is_split():
            return self._reader.get(key)
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self._is_split():
            return self._reader.get_many(keys)
        # Look both up in one snapshot: between two lookups a record might move.
        values = self._reader.get_many([tag + key for key in keys for tag in (NEW, OLD)])
        return [_shown(new, old) for new, old in zip(values[::2], values[1::2], strict=True)]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(start, end, reverse=False) or self._reader.range(start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._scan(start, end, reverse=True) or self._reader.reverse_range(start, end)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        start, end = prefix_bounds(prefix)
        return self._scan(start, end, reverse=False, prefix=prefix) or self._reader.prefix_scan(prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        start, end = prefix_bounds(prefix)
        return self._scan(start, end, reverse=True, prefix=prefix) or self._reader.reverse_prefix_scan(prefix)

    def approximate_num_entries(self) -> int:
        return self._reader.approximate_num_entries()

    def _scan(
        self, start: bytes | None, end: bytes | None, *, reverse: bool, prefix: bytes = b""
    ) -> KeyValueIterator | None:
        if not self._is_split():
            return None
        old, new = self._reader.range_many(tagged_bounds(start, end), reverse=reverse)
        pairs = _merged(
            ((key[1:], SURROGATE + value) for key, value in old), ((key[1:], value) for key, value in new), reverse
        )
        # The end of the range is included, although it does not begin with the prefix.
        return PlainIterator(
            (pair for pair in pairs if pair[0].startswith(prefix)) if prefix else pairs, _Both(old, new)
        )


class UpgradingReader(SplitReader):
    """A ``SplitReader`` of the writer: a lookup also moves the record to the present format, in the open transaction.

    It moves nothing while nothing may be staged, such as between the records of a task.
    """

    def __init__(self, staging: RecordStaging) -> None:
        timestamps = staging.store.timestamps
        super().__init__(staging.store, lambda: timestamps.is_split)
        self._staging, self._timestamps = staging, timestamps

    def get(self, key: bytes) -> bytes | None:
        store = self._staging.store
        if not self._timestamps.is_split:
            return store.get(key)
        value = store.get(NEW + key)
        if value is not None:
            return value
        old = store.get(OLD + key)
        if old is None:
            return None
        value = SURROGATE + old
        if self._staging.may_stage:
            self._staging.put_unlogged(key, value)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]


class SplitStaging(StagingOver):
    """A staging that writes in the present format, and removes the keys from the older one."""

    def __init__(self, inner: RecordStaging) -> None:
        super().__init__(inner)
        self._timestamps = inner.store.timestamps

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        if self._timestamps.is_split:
            self.put_all([StagedWrite(key, kept, log_key, log_value, timestamp_ms)])
        else:
            self._inner.put(key, kept, log_key, log_value, timestamp_ms)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        if not self._timestamps.is_split:
            self._inner.put_all(writes, marks)
            return
        all_writes: list[StagedWrite] = []
        for write in writes:
            # An invalid key must not become valid by the first byte.
            all_writes.append(write._replace(key=NEW + write.key if write.key else write.key))
            # Look it up first: a removal of a missing key would leave a tombstone, which slows down scans.
            if 0 < len(write.key) < self.store.max_key_bytes and self.store.get(OLD + write.key) is not None:
                all_writes.append(StagedWrite(OLD + write.key, None))
        self._inner.put_all(all_writes, marks)

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        if not self._timestamps.is_split:
            self._inner.delete_range(start, end, logged=logged)
            return
        keys: list[bytes] = []
        for pairs in self.store.range_many(tagged_bounds(start, end)):
            with pairs:
                keys += [key for key, _ in pairs]
        self._inner.put_all([StagedWrite(key, None, key[1:] if logged else None) for key in keys])


class SplitConverter(RecordConverter):
    """A converter whose records replace those of ``store`` in the older format, while it is split."""

    def __init__(self, inner: RecordConverter, store: KeyValueStore) -> None:
        self._inner, self._store, self._timestamps = inner, store, store.timestamps

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        pairs = self._inner.convert(record)
        if not self._timestamps.is_split:
            return pairs
        # An invalid key must not become valid by the first byte.
        return [pair for key, value in pairs for pair in ((NEW + key if key else key, value), *self._gone(key))]

    def marks(self) -> Mapping[str, bytes | None]:
        return self._inner.marks()

    def _gone(self, key: bytes) -> tuple[tuple[bytes, None], ...]:
        return () if self._store.get(OLD + key) is None else ((OLD + key, None),)


def tagged_bounds(start: bytes | None, end: bytes | None) -> tuple[Bounds, Bounds]:
    """Return a range as one of the older and one of the present format. No key equals one of the open ends."""
    first = start or b""
    return (
        (OLD + first, NEW if end is None else OLD + end),
        (NEW + first, _BEHIND_NEW if end is None else NEW + end),
    )


def _shown(new: bytes | None, old: bytes | None) -> bytes | None:
    return SURROGATE + old if new is None and old is not None else new


class _Both(Closeable):
    def __init__(self, *scans: Closeable) -> None:
        self._scans = scans

    def close(self) -> None:
        for scan in self._scans:
            scan.close()


def _merged(old: Iterator[Pair], new: Iterator[Pair], reverse: bool) -> Iterator[Pair]:
    """Merge the two in key order; for a key in both, yield the pair of ``new``."""
    before: Callable[[bytes, bytes], bool] = bytes.__gt__ if reverse else bytes.__lt__
    first, second = next(old, None), next(new, None)
    while first is not None and second is not None:
        if before(first[0], second[0]):
            yield first
            first = next(old, None)
        else:
            if first[0] == second[0]:
                first = next(old, None)
            yield second
            second = next(new, None)
    if first is not None:
        yield first
        yield from old
    elif second is not None:
        yield second
        yield from new
