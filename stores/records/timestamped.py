"""Timestamped key-value stores: the store has ``<8-byte time><value>``, and its changelog the value alone.

The changelog record's timestamp is the time. Source: KIP-258, ``TimestampedKeyValueStore``.

A persistent store of another package that does not opt in (``KeyValueStore.timestamps``) goes on with plain values:
reads add the time -1, writes drop the time. Source: KIP-258, "custom byte stores";
``KeyValueToTimestampedKeyValueByteStore``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from stores.contract.arguments import check_function, check_keys, check_lengths, check_time_ms, timed_columns
from stores.contract.reading import PlainIterator
from stores.errors import ConfigError, StoreIncompatibleError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    PositionBound,
    ReadOnlyKeyValueStore,
)
from stores.records.codec import Codec
from stores.records.expiring import ReportedExpiry, ReportingConverter, UserKeys, UserKeysStaging, make_or_remove_index
from stores.records.expiry import (
    STREAM_TIME,
    ExpiringConverter,
    Expiry,
    LiveReader,
    ScanReader,
    TimestampedConverter,
    stream_time_ms,
)
from stores.records.headers import stored_value
from stores.records.key_value import TIMESTAMPED, WITH_HEADERS, KeyValue, KeyValueReads, TypedKeyValueView
from stores.records.record_kind import (
    RECORDS,
    Description,
    PlainConverter,
    RecordConverter,
    RecordKind,
    TypedStore,
    TypedView,
    difference,
    encoded,
    is_empty,
    unreadable,
    write_description,
)
from stores.records.serdes import BytesSerde, Serde, check_serde
from stores.records.split import SplitConverter, SplitReader, SplitStaging, UpgradingReader
from stores.records.values import (
    SURROGATE,
    TIME,
    FoundBytes,
    RecordStaging,
    StagedWrite,
    StagingOver,
    StrippingSerde,
    TimestampedSerde,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    check_span_ms,
    lookup_of_bytes,
)

TTL: Final = "ttl_ms"
"""The time to live in a description; missing without one."""
_EXPIRES: Final = "expires"
"""The property of a store with an index of its records by time."""
_FREE: Final = dict.fromkeys(("kind", TTL, _EXPIRES))
"""The properties that may differ from those of an existing store: a ``KeyValue`` may get times."""


class SurrogateReader(ScanReader):
    """A reader of the plain values of another reader, each with timestamp -1."""

    def get(self, key: bytes) -> bytes | None:
        value = self._reader.get(key)
        return None if value is None else SURROGATE + value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if value is None else SURROGATE + value for value in self._reader.get_many(keys)]

    def _shown(self, make: Callable[[], KeyValueIterator]) -> KeyValueIterator:
        scan = make()
        return PlainIterator(((key, SURROGATE + value) for key, value in scan), scan)


class StrippingStaging(StagingOver):
    """A staging that drops the time and the headers of each value. Its changelog record has them."""

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self._inner.put(key, _stripped(kept), log_key, log_value, timestamp_ms)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        self._inner.put_all([write._replace(kept=_stripped(write.kept)) for write in writes], marks)

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        self._inner.delete_range(start, end, logged=logged)


def _stripped(kept: bytes | None) -> bytes | None:
    return None if kept is None else stored_value(kept)


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=ValueAndTimestamp[Any] | ValueTimestampHeaders[Any])
"""A value with its time, as the store returns it."""


@dataclass(frozen=True)
class TimestampedKind(RecordKind, Generic[K, V, R]):
    """The base of the descriptions of stores of ``key`` to ``value`` with a time for each value."""

    __hash__ = RecordKind.__hash__
    number_marks: ClassVar[Sequence[str]] = (STREAM_TIME,)
    takes: ClassVar[Collection[str]]
    """The kinds of stores that become one of this kind by being opened as one: besides its own those without times."""
    keeps_headers: ClassVar[bool] = False
    """True if a value has the headers of its record."""

    key: Serde[K]
    value: Serde[V]
    ttl_ms: int | None = None
    on_expiry: Callable[[K, R, Any], None] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_serde("key", self.key)
        check_serde("value", self.value)
        if self.ttl_ms is not None:
            check_span_ms("ttl_ms", self.ttl_ms)
        if self.on_expiry is not None:
            check_function("on_expiry", self.on_expiry, "the key", "the value", "the context")
            if self.ttl_ms is None:
                raise ValueError("on_expiry is called when the ttl_ms of a record is over: give both")

    @property
    def needs_task(self) -> bool:
        return self.on_expiry is not None

    @property
    def commits_stream_time(self) -> bool:
        return self.ttl_ms is not None

    def marks_at(self, store: KeyValueStore, stream_time_ms: int) -> Mapping[str, bytes | None]:
        return {STREAM_TIME: TIME.pack(stream_time_ms)}

    def description(self) -> Description:
        serdes = {"key": self.key.name, "value": self.value.name}
        expiry = {} if self.ttl_ms is None else {TTL: self.ttl_ms}
        return {**serdes, **expiry, **({} if self.on_expiry is None else {_EXPIRES: True})}

    @property
    @abstractmethod
    def stored(self) -> Serde[R]:
        """The serde of a value with its time."""

    def prepare(self, store: KeyValueStore) -> None:
        """Prepare as ``RecordKind.prepare``. Raises also: ConfigError if ``store`` does not support a ``ttl_ms``."""
        if self.ttl_ms is not None and not (store.keeps_marks and store.timestamps.are_kept):
            raise ConfigError(
                f"store {store.name!r} of {store.backend} can't expire records, because it keeps no marks or no "
                "timestamps: leave ttl_ms out, or choose another backend"
            )
        if self.on_expiry is not None and store.timestamps.is_split:
            raise self._needs_times(store)
        super().prepare(store)

    def _needs_times(self, store: KeyValueStore) -> StoreIncompatibleError:
        return StoreIncompatibleError(
            f"store {store.name!r} has records from before it had times, which on_expiry can't report: wipe it "
            "and restore it from its changelog, or leave on_expiry out"
        )

    def _prepare_plain(self, store: KeyValueStore) -> None:
        """Begin the lazy upgrade of the plain records of ``store``. None is read or written now: each moves when its
        key is next used. Source: KIP-258, lazy upgrade.
        """
        if self.on_expiry is not None:
            raise self._needs_times(store)
        if store.timestamps.are_kept:
            store.timestamps.split({RECORDS: encoded(self._whole_description())})

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take a store with another time to live. Begin the lazy upgrade of one that was opened as ``KeyValue``."""
        own = self._whole_description()
        if type(kept.get(TTL, 1)) is not int:
            raise unreadable(store.name)
        if kept["kind"] not in self.takes or {**kept, **_FREE} != {**own, **_FREE}:
            raise difference(store, kept, own)
        if kept["kind"] != KeyValue.kind or is_empty(store):
            if kept.get(_EXPIRES) != own.get(_EXPIRES):
                make_or_remove_index(store, wanted=self.on_expiry is not None)
            write_description(store, own)
        else:
            self._prepare_plain(store)

    def converter(self, store: KeyValueStore) -> RecordConverter:
        timestamps = store.timestamps
        if not timestamps.are_kept:
            return PlainConverter()
        headers = self.keeps_headers
        if self.on_expiry is not None:
            return ReportingConverter(stream_time_ms(store.mark), headers=headers)
        timed = TimestampedConverter(headers=headers)
        if self.ttl_ms is not None:
            timed = ExpiringConverter(stream_time_ms(store.mark), headers=headers)
        return SplitConverter(timed, store) if timestamps.is_split else timed

    def live(self, reader: ReadOnlyKeyValueStore, source: KeyValueStore | KeyValueView) -> ReadOnlyKeyValueStore:
        """Return a reader of the records of ``reader`` that have not expired by the stream time of ``source``."""
        return reader if self.ttl_ms is None else LiveReader(reader, source, self.ttl_ms, self.reader_of)

    def reader_of(self, view: KeyValueView) -> ReadOnlyKeyValueStore:
        """Return a reader of the records of ``view`` in the present format."""
        if self.on_expiry is not None:
            return UserKeys(view)
        timestamps = view.timestamps
        if not timestamps.are_kept:
            return SurrogateReader(view)
        return SplitReader(view, lambda: view.timestamps.is_split) if timestamps.is_split else view


@dataclass(frozen=True)
class TimestampedKeyValue(TimestampedKind[K, V, ValueAndTimestamp[V]], Generic[K, V]):
    """The description of a store of ``key`` to ``value`` with a time for each value.

    With ``ttl_ms``, 1 or more, a record expires when its time is at least that far behind the highest time ever put. It
    is then hidden, and a later commit removes it. The number of records that a commit examines is proportional to its
    writes. A record with an unknown time (-1) stays. ``ttl_ms`` may differ each time the store is opened.

    With ``on_expiry`` a record is removed as soon as it expires, and ``on_expiry`` is called with its key, its value
    (``ValueAndTimestamp``) and the context of the task, once for each record. Its writes and outputs are in the
    transaction of the record that has moved the stream time, and an exception in it rolls back that transaction. A
    record that has expired when it is put is reported, too; one that is replaced or deleted is not. It needs a task
    under exactly once. Keys must not begin with eight bytes ff, and may be 16 bytes shorter than without.

    Raises: TypeError, ValueError for an invalid ``ttl_ms`` or ``on_expiry``; TypeError for an invalid serde.
    """

    kind: ClassVar[str] = TIMESTAMPED
    takes: ClassVar[Collection[str]] = (TIMESTAMPED, KeyValue.kind)
    __hash__ = RecordKind.__hash__

    on_expiry: Callable[[K, ValueAndTimestamp[V], Any], None] | None = field(default=None, kw_only=True, repr=False)

    @property
    def stored(self) -> Serde[ValueAndTimestamp[V]]:
        return TimestampedSerde(self.value)

    def over(self, store: KeyValueStore) -> TimestampedKeyValueStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> TimestampedKeyValueStore[K, V]:
        return TimestampedKeyValueStore(self, staging)

    def view(self, view: KeyValueView) -> TimestampedKeyValueView[K, V]:
        return TimestampedKeyValueView(self, view)

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Refuse a store with headers, with advice. Take others as the base does."""
        if kept["kind"] == WITH_HEADERS:
            raise StoreIncompatibleError(
                f"store {store.name!r} keeps headers with its values: open it as TimestampedKeyValueWithHeaders. Or "
                "wipe it, open it as TimestampedKeyValue and restore it from its changelog, without the headers"
            )
        super()._prepare_other(store, kept)


class TimestampedReads(KeyValueReads[K, R], Generic[K, V, R]):
    """The lookups and scans of ``KeyValueReads``, with the time of each value."""

    def __init__(self, kind: TimestampedKind[K, V, R], reader: ReadOnlyKeyValueStore, store: str) -> None:
        stored = kind.stored
        super().__init__(reader, Codec(store, kind.key, stored))
        are_bytes = isinstance(kind.key, BytesSerde) and isinstance(kind.value, BytesSerde)
        if are_bytes and isinstance(stored, TimestampedSerde):
            codec: Any = self._codec
            lookup: Any = lookup_of_bytes(self._get, codec)
            if isinstance(reader, KeyValueStore):
                # It saves a call, which takes a tenth of the time of a lookup.
                lookup = reader.timestamps.lookup(FoundBytes, lookup)
            self.get = lookup


class TimestampedView(TimestampedReads[K, V, R], TypedView):
    """The base of views of stores whose values have times."""

    def __init__(self, kind: TimestampedKind[K, V, R], view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        TimestampedReads.__init__(self, kind, kind.live(kind.reader_of(view), view), "of a view")
        self._kind = kind

    def plain(self) -> TypedKeyValueView[K, V]:
        """Return the same view with the values alone. Source: KIP-258, ``QueryableStoreTypes.keyValueStore``."""
        kind = self._kind
        codec = Codec("of a view", kind.key, StrippingSerde(kind.value, headers=kind.keeps_headers))
        return TypedKeyValueView(self._view, codec, self._reader, lambda view: type(self)(kind, view).plain())


class TimestampedKeyValueView(TimestampedView[K, V, ValueAndTimestamp[V]]):
    """A read-only view of a timestamped key-value store, for any thread."""


class TimestampedStore(TimestampedReads[K, V, R], TypedStore):
    """The base of key-value stores whose values have times, but for the writes of values."""

    def __init__(self, kind: TimestampedKind[K, V, R], staging: RecordStaging) -> None:
        store, timestamps, whole = staging.store, staging.store.timestamps, staging
        records: ReadOnlyKeyValueStore = store
        reader = records
        is_whole = True
        if not timestamps.are_kept:
            staging, records = StrippingStaging(staging), SurrogateReader(store)
            reader, is_whole = records, False
        elif kind.on_expiry is not None:
            staging, reader, is_whole = UserKeysStaging(staging), UserKeys(store), False
        elif timestamps.is_split:
            staging, records = SplitStaging(staging), SplitReader(store, lambda: timestamps.is_split)
            reader, is_whole = UpgradingReader(staging), False
        TypedStore.__init__(self, kind, staging)
        TimestampedReads.__init__(self, kind, kind.live(reader, store), store.name)
        self._values = Codec(store.name, kind.key, kind.value)
        self._serialize_value = self._values.serialize_value
        self._expiry: Expiry | ReportedExpiry | None = None
        self._removing: RecordStaging | ReportedExpiry = staging
        if kind.on_expiry is not None and kind.ttl_ms is not None:
            self._expiry = self._removing = ReportedExpiry(whole, self._codec, kind.ttl_ms, kind.on_expiry)
        elif kind.ttl_ms is not None:
            self._expiry = Expiry(staging, records, kind.ttl_ms)
        self._direct: Callable[[bytes, bytes, int], None] | None = None
        """The ``Timestamps.put`` of the store, where nothing else is to be done for a value without headers."""
        if self._expiry is None and is_whole and not staging.logs:
            self._direct = timestamps.put

    def delete_many(self, keys: Iterable[K]) -> None:
        """Stage the removal of all ``keys``, or of none if one of them is refused.

        Old values are looked up only with ``on_expiry``.
        """
        check_keys(keys, "delete_many")
        encoded = [self._codec.encode_key(key) for key in keys]
        self._removing.put_all([StagedWrite(key, None, key) for key in encoded])

    def delete(self, key: K) -> R | None:
        """Stage the removal of ``key``. Return what it had, or None."""
        encoded = self._codec.encode_key(key)
        existing = self._get(encoded)
        value = None if existing is None else self._codec.decode_value(encoded, existing)
        self._removing.put_all([StagedWrite(encoded, None, encoded)])
        return value

    def delete_range(self, start: K | None, end: K | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included; None leaves an end open."""
        self._removing.delete_range(self._codec.encode_bound(start), self._codec.encode_bound(end))

    def _before_commit(self) -> None:
        if self._expiry is not None:
            self._expiry.step()

    def _put_if_absent(self, write: StagedWrite) -> R | None:
        existing = self._get(write.key)
        if existing is not None:
            return self._codec.decode_value(write.key, existing)
        self._write(write)
        return None

    def _updated(self, key: K, fn: Callable[[V], V], default: V, timestamp_ms: int) -> tuple[V, int]:
        """Return the value and the time of an update. Raises: the exceptions of ``fn``."""
        check_time_ms("timestamp_ms", timestamp_ms)
        existing = self.get(key)
        value, time_ms = (default, -1) if existing is None else (existing.value, existing.timestamp_ms)
        return fn(value), max(time_ms, timestamp_ms)

    def _encoded_columns(
        self, keys: Sequence[K], values: Sequence[V | None], timestamps_ms: Sequence[int]
    ) -> tuple[list[bytes], list[bytes | None]]:
        for time_ms in timestamps_ms:
            if type(time_ms) is not int or time_ms >> 62:
                check_time_ms("timestamp_ms", time_ms)
        return self._values.encode_keys(keys), self._values.encode_values(keys, values)

    def _write_columns(
        self,
        keys: Sequence[bytes],
        kept: Sequence[bytes | None],
        log_values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
    ) -> None:
        if self._direct is not None:
            self.store.put_many(dict(zip(keys, kept, strict=True)))
            return
        (self._staging if self._expiry is None else self._expiry).put_all(
            list(map(StagedWrite, keys, kept, keys, log_values, timestamps_ms))
        )

    def _encode(self, key: K, value: V | None, timestamp_ms: int) -> StagedWrite:
        check_time_ms("timestamp_ms", timestamp_ms)
        encoded = self._values.encode_key(key)
        if value is None:
            return StagedWrite(encoded, None, encoded, None, timestamp_ms)
        data = self._values.encode_value(key, value)
        return StagedWrite(encoded, TIME.pack(timestamp_ms) + data, encoded, data, timestamp_ms)

    def _write(self, write: StagedWrite) -> None:
        if self._expiry is None:
            key, data, _, log_value, timestamp_ms = write
            self._staging.put(key, data, key, log_value, timestamp_ms)
        else:
            self._expiry.put_all([write])


class TimestampedKeyValueStore(TimestampedStore[K, V, ValueAndTimestamp[V]]):
    """A timestamped key-value store for its writing thread, which reads its own uncommitted writes.

    Times are ints from 0 to below 2**62, in milliseconds since the Unix epoch.
    Raises, all writes: TypeError and ValueError for an invalid time, and for a key or value that a serde or the store
    refuses, before anything is staged; else as those of ``KeyValueStore``.
    """

    def __init__(self, kind: TimestampedKeyValue[K, V], staging: RecordStaging) -> None:
        super().__init__(kind, staging)
        if self._direct is not None and self._values.is_plain:
            # Bind the method itself: an extra call would take a twentieth of a put and its part of a commit.
            self.put = self._direct  # type: ignore[assignment, method-assign]

    def put(self, key: K, value: V | None, timestamp_ms: int) -> None:
        """Stage ``value`` and its time under ``key``; None deletes."""
        direct = self._direct
        if direct is None or value is None:
            self._write(self._encode(key, value, timestamp_ms))
            return
        serialize_key, serialize_value = self._serialize_key, self._serialize_value
        try:
            # No cast(): it is a call.
            encoded: Any = key if serialize_key is None else serialize_key(key)
            data: Any = value if serialize_value is None else serialize_value(value)
            direct(encoded, data, timestamp_ms)
        except Exception:
            # Raise the error that names the refused key or value, if there is one.
            self._encode(key, value, timestamp_ms)
            raise

    def put_all(self, records: Iterable[tuple[K, V | None, int]]) -> None:
        """Stage all ``(key, value, timestamp_ms)``, or none if one of them is refused. The last one of a key wins."""
        self._put_columns(*timed_columns(records))

    def put_many(self, keys: Sequence[K], values: Sequence[V | None], timestamps_ms: Sequence[int]) -> None:
        """Stage all ``values`` and their times under ``keys``, which are in the same order, like ``put_all``."""
        check_lengths(keys, values=values, timestamps_ms=timestamps_ms)
        self._put_columns(keys, values, timestamps_ms)

    def _put_columns(self, keys: Sequence[K], values: Sequence[V | None], timestamps_ms: Sequence[int]) -> None:
        encoded, data = self._encoded_columns(keys, values, timestamps_ms)
        kept = [
            None if bare is None else time_ms.to_bytes(8) + bare
            for bare, time_ms in zip(data, timestamps_ms, strict=True)
        ]
        self._write_columns(encoded, kept, data, timestamps_ms)

    def put_if_absent(self, key: K, value: V | None, timestamp_ms: int) -> ValueAndTimestamp[V] | None:
        """Stage ``value`` and its time unless ``key`` has a value. Return the existing value, else None."""
        return self._put_if_absent(self._encode(key, value, timestamp_ms))

    def update(self, key: K, fn: Callable[[V], V], default: V, timestamp_ms: int) -> V:
        """Stage the result of ``fn``, called with the value of ``key``, and return it.

        Without a value ``fn`` is called with ``default``. The time becomes ``timestamp_ms`` if that is the later one:
        a late record does not bring a value's expiry forward. Raises: as ``put``; the exceptions of ``fn``. Then
        nothing is staged. Source: KIP-258, times of aggregates.
        """
        value, time_ms = self._updated(key, fn, default, timestamp_ms)
        self.put(key, value, time_ms)
        return value

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> TimestampedKeyValueView[K, V]:
        return cast(TimestampedKeyValueView[K, V], super().read_only(isolation_level, bound))
