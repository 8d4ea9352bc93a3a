"""Versioned stores that also keep the headers of each version's record.

The changelog has the value alone. The time and the headers of its records are those of the version. Source: KIP-1271,
``VersionedKeyValueStoreWithHeaders``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, cast

from stores.contract.arguments import Headers, check_lengths, timed_columns
from stores.interface import IsolationLevel, KeyValueStore, KeyValueView, PositionBound
from stores.records.headers import headers_to_store
from stores.records.record_kind import RecordKind
from stores.records.serdes import Serde
from stores.records.values import HeadersSerde, RecordStaging, ValueTimestampHeaders, VersionedRecordWithHeaders
from stores.records.versioned import HistoryStore, HistoryView, VersionedKind

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class VersionedWithHeaders(VersionedKind[K, V, ValueTimestampHeaders[V], VersionedRecordWithHeaders[V]], Generic[K, V]):
    """The description of a store as of ``Versioned``, which also keeps the headers of each version's record.

    A store that was made as ``Versioned`` with the same serdes can be opened with this description. Its versions have
    no headers until they are put again. The way back is a restore from the changelog.

    Raises: as ``Versioned``. Source: KIP-1271, ``VersionedKeyValueStoreWithHeaders``.
    """

    keeps_headers: ClassVar[bool] = True
    __hash__ = RecordKind.__hash__

    @property
    def stored(self) -> Serde[ValueTimestampHeaders[V]]:
        return HeadersSerde(self.value)

    def version(self, found: ValueTimestampHeaders[V], valid_to_ms: int | None) -> VersionedRecordWithHeaders[V]:
        return VersionedRecordWithHeaders(found.value, found.timestamp_ms, valid_to_ms, found.headers)

    def over(self, store: KeyValueStore) -> VersionedStoreWithHeaders[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> VersionedStoreWithHeaders[K, V]:
        return VersionedStoreWithHeaders(self, staging)

    def view(self, view: KeyValueView) -> VersionedViewWithHeaders[K, V]:
        return VersionedViewWithHeaders(self, view)


class VersionedViewWithHeaders(
    HistoryView[K, V, ValueTimestampHeaders[V], VersionedRecordWithHeaders[V]], Generic[K, V]
):
    """A read-only view of a versioned store with headers, for any thread."""


class VersionedStoreWithHeaders(
    HistoryStore[K, V, ValueTimestampHeaders[V], VersionedRecordWithHeaders[V]], Generic[K, V]
):
    """A versioned store with headers for its writing thread, which reads its own uncommitted writes.

    It is as ``VersionedStore``. Headers are those of ``TimestampedKeyValueStoreWithHeaders``; a deletion has none.
    Raises, all writes: as those of ``VersionedStore``, also for headers.
    """

    def put(self, key: K, value: V | None, timestamp_ms: int, headers: Headers = ()) -> bool:
        """Stage ``value`` and ``headers`` as the version of ``key`` from ``timestamp_ms`` on; None deletes.

        Return True if this is the latest version of the key now, and False if it is an older one or was dropped.
        """
        return self._put(key, value, timestamp_ms, headers_to_store(headers))

    def put_all(self, records: Iterable[tuple[K, V | None, int] | tuple[K, V | None, int, Headers]]) -> None:
        """Stage all ``(key, value, timestamp_ms, headers)`` as by a ``put`` of each, or none if one is refused.

        A record may leave its headers out.
        """
        keys, values, timestamps_ms, headers = timed_columns(records, headers=True)
        self._put_columns(keys, values, timestamps_ms, list(map(headers_to_store, headers)))

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
        self._put_columns(keys, values, timestamps_ms, list(map(headers_to_store, each_headers)))

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> VersionedViewWithHeaders[K, V]:
        return cast(VersionedViewWithHeaders[K, V], super().read_only(isolation_level, bound))
