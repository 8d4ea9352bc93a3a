"""An adapter that uses a store of plain values as a timestamped one: reads add the time -1, writes drop the time.

It is for persistent stores of other packages that do not declare ``StateStore.takes_timestamps``: their values were
written without timestamps. Source: KIP-258, "custom byte stores"; ``KeyValueToTimestampedKeyValueByteStore``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stores.contract.plain import PlainIterator
from stores.interface import KeyValueIterator, ReadOnlyKeyValueStore
from stores.records.staging import StagedWrite, Staging
from stores.records.timestamps import SURROGATE, TIME_BYTES


class SurrogateReader(ReadOnlyKeyValueStore):
    """A reader of the plain values of ``plain``, each with timestamp -1."""

    def __init__(self, plain: ReadOnlyKeyValueStore) -> None:
        self._plain = plain

    def get(self, key: bytes) -> bytes | None:
        value = self._plain.get(key)
        return None if value is None else SURROGATE + value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if value is None else SURROGATE + value for value in self._plain.get_many(keys)]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return _with_surrogates(self._plain.range(start, end))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return _with_surrogates(self._plain.reverse_range(start, end))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return _with_surrogates(self._plain.prefix_scan(prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return _with_surrogates(self._plain.reverse_prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        return self._plain.approximate_num_entries()


def _with_surrogates(scan: KeyValueIterator) -> KeyValueIterator:
    return PlainIterator(((key, SURROGATE + value) for key, value in scan), scan)


class StrippingStaging(Staging):
    """A staging that drops the time of each value. Its changelog record has the time."""

    def __init__(self, inner: Staging) -> None:
        self.store = inner.store
        self.logs = inner.logs
        self._inner = inner

    @property
    def timestamp_ms(self) -> int:
        return self._inner.timestamp_ms

    @property
    def may_stage(self) -> bool:
        return self._inner.may_stage

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self._inner.put(key, _stripped(kept), log_key, log_value, timestamp_ms)

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        self._inner.put_unlogged(key, _stripped(kept))

    def delete_range_unlogged(self, start: bytes | None, end: bytes | None) -> None:
        self._inner.delete_range_unlogged(start, end)

    def put_all(self, writes: Iterable[StagedWrite]) -> None:
        self._inner.put_all([write._replace(kept=_stripped(write.kept)) for write in writes])

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        self._inner.delete_range(start, end)


def _stripped(kept: bytes | None) -> bytes | None:
    return None if kept is None else kept[TIME_BYTES:]
