"""Timestamped key-value stores that also keep the headers of each value's record.

The changelog has the value alone. The time and the headers of its records are those of the value, as in Kafka Streams.
Source: KIP-1271, ``TimestampedKeyValueStoreWithHeaders``, ``ChangeLoggingTimestampedKeyValueBytesStoreWithHeaders``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

from stores.contract.arguments import Headers, check_lengths, timed_columns
from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.headers import headers_to_store, value_and_headers, with_headers
from stores.records.key_value import TIMESTAMPED, WITH_HEADERS, KeyValue
from stores.records.record_kind import RecordKind
from stores.records.serdes import Serde
from stores.records.timestamped import TimestampedKind, TimestampedStore, TimestampedView
from stores.records.values import HeadersSerde, RecordStaging, StagedWrite, ValueTimestampHeaders

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class TimestampedKeyValueWithHeaders(TimestampedKind[K, V, ValueTimestampHeaders[V]], Generic[K, V]):
    """The description of a store of ``key`` to ``value`` with a time and the headers of a record for each value.

    ``ttl_ms`` and ``on_expiry`` are those of ``TimestampedKeyValue``; ``on_expiry`` gets a ``ValueTimestampHeaders``.

    A store that was made as ``TimestampedKeyValue`` or ``KeyValue`` with the same serdes can be opened with this
    description. Its values have no headers until they are put again. The way back is a restore from the changelog.

    Raises: as ``TimestampedKeyValue``. Source: KIP-1271, ``TimestampedKeyValueStoreWithHeaders``.
    """

    kind: ClassVar[str] = WITH_HEADERS
    takes: ClassVar[Collection[str]] = (WITH_HEADERS, TIMESTAMPED, KeyValue.kind)
    keeps_headers: ClassVar[bool] = True
    __hash__ = RecordKind.__hash__

    on_expiry: Callable[[K, ValueTimestampHeaders[V], Any], None] | None = field(default=None, kw_only=True, repr=False)

    @property
    def stored(self) -> Serde[ValueTimestampHeaders[V]]:
        return HeadersSerde(self.value)

    @property
    def log_parts(self) -> Callable[[bytes], tuple[bytes, Headers]]:
        return value_and_headers

    def over(self, store: KeyValueStore) -> TimestampedKeyValueStoreWithHeaders[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> TimestampedKeyValueStoreWithHeaders[K, V]:
        return TimestampedKeyValueStoreWithHeaders(self, staging)

    def view(self, view: KeyValueView) -> TimestampedKeyValueViewWithHeaders[K, V]:
        return TimestampedKeyValueViewWithHeaders(self, view)


class TimestampedKeyValueViewWithHeaders(TimestampedView[K, V, ValueTimestampHeaders[V]]):
    """A read-only view of a timestamped key-value store with headers, for any thread."""


class TimestampedKeyValueStoreWithHeaders(TimestampedStore[K, V, ValueTimestampHeaders[V]]):
    """A timestamped key-value store with headers for its writing thread, which reads its own uncommitted writes.

    Times are ints from 0 to below 2**62, in milliseconds since the Unix epoch. Headers are pairs of a str and bytes or
    None, such as ``record.headers``. Names that begin with ``stores.`` or ``txstores-`` are the library's own.
    Raises, all writes: as those of ``TimestampedKeyValueStore``, also for headers.
    """

    def put(self, key: K, value: V | None, timestamp_ms: int, headers: Headers = ()) -> None:
        """Stage ``value``, its time and ``headers`` under ``key``; None deletes."""
        self._write(self._encode(key, value, timestamp_ms, headers))

    def put_all(self, records: Iterable[tuple[K, V | None, int] | tuple[K, V | None, int, Headers]]) -> None:
        """Stage all ``(key, value, timestamp_ms, headers)``, or none if one of them is refused.

        A record may leave its headers out. The last one of a key wins.
        """
        self._put_columns(*timed_columns(records, headers=True))

    def put_many(
        self,
        keys: Sequence[K],
        values: Sequence[V | None],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Stage all ``values``, their times and headers under ``keys``, in the same order, like ``put_all``.

        ``headers`` None is none for all of them.
        """
        each_headers = [()] * len(keys) if headers is None else headers
        check_lengths(keys, values=values, timestamps_ms=timestamps_ms, headers=each_headers)
        self._put_columns(keys, values, timestamps_ms, each_headers)

    def put_if_absent(
        self, key: K, value: V | None, timestamp_ms: int, headers: Headers = ()
    ) -> ValueTimestampHeaders[V] | None:
        """Stage ``value``, its time and ``headers`` unless ``key`` has a value. Return the existing one, else None."""
        return self._put_if_absent(self._encode(key, value, timestamp_ms, headers))

    def update(self, key: K, fn: Callable[[V], V], default: V, timestamp_ms: int, headers: Headers = ()) -> V:
        """Stage the result of ``fn``, called with the value of ``key``, and return it.

        It is as that of ``TimestampedKeyValueStore``. The new value has ``headers``, and none of the former one's.
        Source: KIP-1285, whose results have no headers.
        """
        value, time_ms = self._updated(key, fn, default, timestamp_ms)
        self.put(key, value, time_ms, headers)
        return value

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> TimestampedKeyValueViewWithHeaders[K, V]:
        return cast(TimestampedKeyValueViewWithHeaders[K, V], super().read_only(isolation_level, bound))

    def _put_columns(
        self,
        keys: Sequence[K],
        values: Sequence[V | None],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        each_headers = [headers_to_store(each) for each in headers]
        encoded, data = self._encoded_columns(keys, values, timestamps_ms)
        kept = [
            None if bare is None else with_headers(bare, time_ms, each)
            for bare, time_ms, each in zip(data, timestamps_ms, each_headers, strict=True)
        ]
        self._write_columns(encoded, kept, kept, timestamps_ms)

    def _encode(self, key: K, value: V | None, timestamp_ms: int, headers: Headers = ()) -> StagedWrite:
        headers = headers_to_store(headers)
        write = super()._encode(key, value, timestamp_ms)
        data = write.log_value
        if data is None:
            return write
        kept = with_headers(data, timestamp_ms, headers) if headers else write.kept
        return StagedWrite(write.key, kept, write.key, kept, timestamp_ms)
