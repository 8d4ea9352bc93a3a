"""Versioned key-value stores: the values that a key has had, each with the time from which on it was valid.

The changelog has the value of each put under its key, and the version's time as the time of the record, as Kafka's has.
So its records in the order of their offsets make the same store, late puts included.

Source: KIP-889, ``VersionedKeyValueStore``; KIP-960 and KIP-968, its queries; KIP-914, tables that are versioned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar, cast

from stores.contract.arguments import TIME_BOUND_MS, Headers, check_keys, check_lengths, check_time_ms, timed_columns
from stores.contract.reading import PlainIterator
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    PositionBound,
    ReadOnlyKeyValueStore,
)
from stores.records.codec import Codec
from stores.records.expiry import CURSOR, STREAM_TIME, stream_time_of
from stores.records.headers import value_and_headers
from stores.records.key_value import KeyValueReads
from stores.records.record_kind import (
    Description,
    LoggedRecord,
    RecordConverter,
    RecordIterator,
    RecordKind,
    TypedStore,
    TypedView,
    UnfitRecordError,
    unreadable,
    write_description,
)
from stores.records.segment_values import marks_of, pairs_of, preparable
from stores.records.segment_writes import LateRecords
from stores.records.segments import packed
from stores.records.serdes import Serde, check_serde
from stores.records.values import (
    RecordStaging,
    StagedWrite,
    TimestampedSerde,
    ValueAndTimestamp,
    VersionedRecord,
    check_bound_ms,
)
from stores.records.version_history import COMPLETE_FROM, VersionHistory, VersionScans, expired_of, first_complete_ms
from stores.records.versions import HISTORY, LATEST, VERSIONED, LatestVersions, history_key, is_deletion, most_bytes

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
"""A value with its time, as a lookup returns it."""
H = TypeVar("H")
"""A version, as a scan of the history returns it."""
_RETENTION: Final = "history_retention_ms"
_HEADERS: Final = "headers"
"""The property of a store with headers."""
Put = tuple[bytes, bytes | None, int, Headers]
"""The key, the value, the time and the headers of a put; without a value it deletes."""


@dataclass(frozen=True)
class VersionedKind(RecordKind, Generic[K, V, R, H]):
    """The base of the descriptions of stores of versions, with headers or without."""

    kind: ClassVar[str] = VERSIONED
    __hash__ = RecordKind.__hash__
    number_marks: ClassVar[Sequence[str]] = (STREAM_TIME, COMPLETE_FROM)
    keeps_headers: ClassVar[bool] = False
    """True if a version has the headers of its record."""

    key: Serde[K]
    value: Serde[V]
    history_retention_ms: int

    @property
    @abstractmethod
    def stored(self) -> Serde[R]:
        """The serde of a value with its time."""

    @abstractmethod
    def version(self, found: R, valid_to_ms: int | None) -> H:
        """Return a value with its time as a version of the history."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_serde("key", self.key)
        check_serde("value", self.value)
        check_time_ms(_RETENTION, self.history_retention_ms)

    def description(self) -> Description:
        serdes = {"key": self.key.name, "value": self.value.name}
        return {**serdes, _RETENTION: self.history_retention_ms, **({_HEADERS: True} if self.keeps_headers else {})}

    @property
    def log_parts(self) -> Callable[[bytes], tuple[bytes, Headers]] | None:
        return value_and_headers if self.keeps_headers else None

    @property
    def commits_stream_time(self) -> bool:
        # A broker removes a deletion with the highest time some day, and the history before it with it.
        return True

    def marks_at(self, store: KeyValueStore, stream_time_ms: int) -> Mapping[str, bytes | None]:
        return {STREAM_TIME: packed(stream_time_ms)}

    @property
    def log_history_ms(self) -> int:
        return self.history_retention_ms

    def needed_records(self, store: KeyValueStore) -> Callable[[bytes, int], bool]:
        mark, retention_ms = marks_of(store).mark, self.history_retention_ms

        def is_needed(key: bytes, time_ms: int) -> bool:
            # The latest version is the last record of its key.
            first_ms = stream_time_of(mark(STREAM_TIME)) - retention_ms
            return time_ms >= first_ms or (time_ms >= 0 and store.get(history_key(key, time_ms)) is not None)

        return is_needed

    def prepare(self, store: KeyValueStore) -> None:
        super().prepare(preparable(store))

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Take a store with another retention. One with headers takes one without them."""
        own = self._whole_description()
        free = dict.fromkeys((_RETENTION, _HEADERS) if self.keeps_headers else (_RETENTION,))
        if {**kept, **free} != {**own, **free}:
            super()._prepare_other(store, kept)
        try:
            before = check_time_ms(_RETENTION, kept.get(_RETENTION))
        except (TypeError, ValueError) as error:
            raise unreadable(store.name) from error
        complete_from = first_complete_ms(store, stream_time_of(store.mark(STREAM_TIME)), before)
        write_description(store, own, {COMPLETE_FROM: packed(complete_from), CURSOR: None})

    def converter(self, store: KeyValueStore) -> RecordConverter:
        return VersionConverter(store, self.history_retention_ms, headers=self.keeps_headers)


@dataclass(frozen=True)
class Versioned(VersionedKind[K, V, ValueAndTimestamp[V], VersionedRecord[V]], Generic[K, V]):
    """The description of a store of the versions of each ``key``: a ``value``, valid from a time until the next one's.

    A put may come late. It is accepted if its time is at most ``history_retention_ms`` before the stream time, which is
    the highest time ever put. As far back as that, the store answers which version was valid at a time. Earlier
    versions are dropped, but never the latest one of a key.

    ``history_retention_ms``, 0 or more, may differ each time the store is opened. Dropped versions do not come back. A
    store that is restored whole after a change takes each record of its changelog by the present retention: it may lack
    keys whose records came later than that, and versions that compaction has removed.

    Raises: TypeError, ValueError for an invalid argument.
    Source: KIP-889, whose grace period is the history retention, too.
    """

    __hash__ = RecordKind.__hash__

    @property
    def stored(self) -> Serde[ValueAndTimestamp[V]]:
        return TimestampedSerde(self.value)

    def version(self, found: ValueAndTimestamp[V], valid_to_ms: int | None) -> VersionedRecord[V]:
        return VersionedRecord(found.value, found.timestamp_ms, valid_to_ms)

    def over(self, store: KeyValueStore) -> VersionedStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> VersionedStore[K, V]:
        return VersionedStore(self, staging)

    def view(self, view: KeyValueView) -> VersionedView[K, V]:
        return VersionedView(self, view)


class VersionConverter(RecordConverter):
    """A converter that puts each record as a version, at its time, and leaves out records that came too late.

    It decides by the stream time up to that record, as when it was written. Source: KIP-889; Kafka Streams,
    ``RocksDBVersionedStore.restoreBatch``. Kafka Streams logs late puts, too.
    """

    def __init__(self, store: KeyValueStore, retention_ms: int, *, headers: bool) -> None:
        self._store, self._retention_ms = store, retention_ms
        self._versions = LatestVersions(store.get, headers=headers)
        self._stream_time = stream_time_of(marks_of(store).mark(STREAM_TIME))
        self._num_records = 0

    def convert(self, record: LoggedRecord) -> Iterable[tuple[bytes, bytes | None]]:
        key, value, time_ms = record.key, record.value, record.timestamp_ms
        if key is None or not self._fits(key, value) or time_ms < self._stream_time - self._retention_ms:
            return ()
        if not 0 <= time_ms < TIME_BOUND_MS:
            raise UnfitRecordError(f"its time {time_ms} is not one of a version, which is 0 or more and below 2**62")
        self._stream_time = max(self._stream_time, time_ms)
        self._num_records += 1
        pairs = [(write.key, write.kept) for write in self._versions.writes(key, value, time_ms, record.headers)]
        return pairs if self._store.keeps_marks else [*pairs, *pairs_of(self.marks())]

    def _fits(self, key: bytes, value: bytes | None) -> bool:
        """Return False for a deletion of a key that no store can have. Raises: UnfitRecordError for its value."""
        most = self._store.max_key_bytes
        if key and most_bytes(key) <= most:
            return True
        if value is not None:
            raise UnfitRecordError(
                f"its key has {len(key)} bytes, which is none or more than fit with the times of versions into {most}"
            )
        return False

    def marks(self) -> Mapping[str, bytes | None]:
        return {} if self._stream_time < 0 else {STREAM_TIME: packed(self._stream_time)}

    def written(self) -> None:
        self._versions.forget()
        expired = expired_of(self._store, self._retention_ms, self._num_records)
        self._num_records = 0
        if expired is not None:
            keys, cursor = expired
            preparable(self._store).restore([(key, None) for key in keys], {}, marks={CURSOR: cursor})


class LatestReader(ReadOnlyKeyValueStore):
    """A reader of the latest version of each key, without those that are deletions."""

    def __init__(self, reader: ReadOnlyKeyValueStore) -> None:
        self._reader = reader

    def get(self, key: bytes) -> bytes | None:
        return _shown(self._reader.get(LATEST + key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [_shown(version) for version in self._reader.get_many([LATEST + key for key in keys])]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return _latest(self._reader.range(*_bounds(start, end)))

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return _latest(self._reader.reverse_range(*_bounds(start, end)))

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return _latest(self._reader.prefix_scan(LATEST + prefix))

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return _latest(self._reader.reverse_prefix_scan(LATEST + prefix))

    def approximate_num_entries(self) -> int:
        return self._reader.approximate_num_entries()


def _shown(version: bytes | None) -> bytes | None:
    return None if version is None or is_deletion(version) else version


def _bounds(start: bytes | None, end: bytes | None) -> tuple[bytes, bytes]:
    """Return the bounds of latest versions. Neither prefix alone is a key."""
    return LATEST + (start or b""), HISTORY if end is None else LATEST + end


def _latest(scan: KeyValueIterator) -> KeyValueIterator:
    return PlainIterator(((key[1:], version) for key, version in scan if not is_deletion(version)), scan)


class VersionedReads(KeyValueReads[K, R], Generic[K, V, R, H]):
    """The lookups of the versions of a key, and the lookups and scans of ``KeyValueReads`` over the latest ones.

    ``approximate_num_entries`` counts older versions, too.
    """

    def __init__(self, kind: VersionedKind[K, V, R, H], source: KeyValueStore | KeyValueView, name: str) -> None:
        super().__init__(LatestReader(source), Codec(name, kind.key, kind.stored))
        self._source, self._version = source, kind.version
        self._history = VersionHistory(source, kind.history_retention_ms)

    def get(self, key: K, as_of_ms: int | None = None) -> R | None:
        """Return the value of ``key`` and the time from which on it is valid, or None.

        That is the latest version, found by one lookup; with ``as_of_ms``, an int below 2**62, the one that was valid
        at that time. If that is more than the retention before the stream time, it is the latest version if that was
        valid already, otherwise None: earlier history may be incomplete. Source: KIP-889, KIP-960.
        """
        encoded = self._codec.encode_key(key)
        if as_of_ms is None:
            place = LATEST + encoded
            version = self._source.get(place)
            found = None if version is None else (place, version)
        else:
            check_bound_ms("as_of_ms", as_of_ms)
            found = self._history.at(encoded, as_of_ms)
        return None if found is None or is_deletion(found[1]) else self._codec.decode_value(*found)

    def get_many(self, keys: Iterable[K]) -> list[R | None]:
        """Return the latest values of ``keys`` and their times, in their order; None for a missing one."""
        check_keys(keys)
        places = [LATEST + key for key in self._codec.encode_keys(list(keys))]
        return self._codec.decode_values(places, [_shown(version) for version in self._source.get_many(places)])

    def get_versions(
        self, key: K, from_ms: int | None = None, to_ms: int | None = None, *, reverse: bool = False
    ) -> RecordIterator[H]:
        """Return an iterator over the versions of ``key`` that were valid at some time from ``from_ms`` to ``to_ms``.

        Both are included; None leaves an end open. It is in the order of the versions' times, or descending if
        ``reverse``, and a snapshot. A version that begins before ``from_ms`` and is valid then is the first one, and a
        deletion ends the one before it. It reaches back as far as ``get`` does. Source: KIP-968.
        """
        first_ms, last_ms = 0 if from_ms is None else from_ms, TIME_BOUND_MS - 1 if to_ms is None else to_ms
        check_bound_ms("from_ms", first_ms)
        check_bound_ms("to_ms", last_ms)
        scans = self._history.open(self._codec.encode_key(key), first_ms, last_ms, reverse=reverse)
        return RecordIterator(self._records(scans), scans)

    def _records(self, scans: VersionScans) -> Iterator[H]:
        for place, version, _, end_ms in scans.versions():
            if not is_deletion(version):
                yield self._version(self._codec.decode_value(place, version), end_ms)


class HistoryView(VersionedReads[K, V, R, H], TypedView):
    """The base of the views of versioned stores."""

    def __init__(self, kind: VersionedKind[K, V, R, H], view: KeyValueView) -> None:
        TypedView.__init__(self, view, kind.view)
        VersionedReads.__init__(self, kind, view, "of a view")


class HistoryStore(VersionedReads[K, V, R, H], TypedStore):
    """The base of versioned stores, but for the puts of values."""

    def __init__(self, kind: VersionedKind[K, V, R, H], staging: RecordStaging) -> None:
        TypedStore.__init__(self, kind, staging)
        VersionedReads.__init__(self, kind, staging.store, staging.store.name)
        self._values = Codec(staging.store.name, kind.key, kind.value)
        self._marks, self._headers = marks_of(staging.store), kind.keeps_headers
        self._retention_ms = kind.history_retention_ms
        self._late = LateRecords(staging)
        self._num_writes = 0
        """The number of versions since the last commit."""

    def delete(self, key: K, timestamp_ms: int) -> R | None:
        """Stage that ``key`` has no value from ``timestamp_ms`` on, until its next version, if there is one.

        Return the version that was valid at that time, or None; None for a deletion that is dropped.
        """
        check_time_ms("timestamp_ms", timestamp_ms)
        is_late = timestamp_ms < self._first_ms(stream_time_of(self._marks.mark(STREAM_TIME)))
        before = None if is_late else self.get(key, timestamp_ms)
        self._put(key, None, timestamp_ms)
        return before

    def delete_many(self, keys: Sequence[K], timestamps_ms: Sequence[int]) -> None:
        """Stage a deletion of each of ``keys`` at its time, or of none if one of them is refused."""
        check_keys(keys, "delete_many")
        check_lengths(keys, timestamps_ms=timestamps_ms)
        self._put_columns(keys, [None] * len(keys), timestamps_ms)

    @property
    def late_total(self) -> int:
        return self._late.total

    @property
    def _late_kept_total(self) -> int:
        return self._late.kept_total

    def _put(self, key: K, value: V | None, timestamp_ms: int, headers: Headers = ()) -> bool:
        check_time_ms("timestamp_ms", timestamp_ms)
        encoded = self._values.encode_key(key)
        data = None if value is None else self._values.encode_value(key, value)
        return self._stage_puts([(encoded, data, timestamp_ms, headers)])

    def _put_columns(
        self,
        keys: Sequence[K],
        values: Sequence[V | None],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        for time_ms in timestamps_ms:
            check_time_ms("timestamp_ms", time_ms)
        encoded, data = self._values.encode_keys(keys), self._values.encode_values(keys, values)
        self._stage_puts(list(zip(encoded, data, timestamps_ms, headers or [()] * len(encoded), strict=True)))

    def _stage_puts(self, puts: Sequence[Put]) -> bool:
        """Stage puts in one step, as if they came one by one; return whether the last one is the latest version."""
        for key, *_ in puts:
            self._check_key(key)
        before = highest = stream_time_of(self._marks.mark(STREAM_TIME))
        first_ms = self._first_ms(highest)
        versions = LatestVersions(self._lookup(puts), headers=self._headers)
        writes: list[StagedWrite] = []
        late: list[tuple[int, int, int]] = []
        is_latest = False
        for key, data, time_ms, headers in puts:
            is_latest = False
            if time_ms < first_ms:
                late.append((time_ms, highest, highest - first_ms + 1))
                continue
            own = versions.writes(key, data, time_ms, headers)
            is_latest = own[0].key.startswith(LATEST)
            writes += own
            highest = max(highest, time_ms)
            first_ms = max(first_ms, highest - self._retention_ms)
        self._stage(writes, {STREAM_TIME: packed(highest)} if highest > before else {})
        self._num_writes += len(puts) - len(late)
        for told in late:
            self._late.add(*told)
        return is_latest

    def _first_ms(self, stream_time: int) -> int:
        """Return the first time that a put may have: what came after an earlier one may be dropped already."""
        return first_complete_ms(self._marks, stream_time, self._retention_ms)

    def _lookup(self, puts: Sequence[Put]) -> Callable[[bytes], bytes | None]:
        if len(puts) == 1:
            return self.store.get
        places = list({LATEST + key for key, *_ in puts})
        return dict(zip(places, self.store.get_many(places), strict=True)).get

    def _stage(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None]) -> None:
        if self.store.keeps_marks:
            self._staging.put_all(writes, marks)
        else:
            self._staging.put_all([*(StagedWrite(*pair) for pair in pairs_of(marks)), *writes])

    def _check_key(self, key: bytes) -> None:
        num_bytes, most = most_bytes(key), self.store.max_key_bytes
        if not key:
            raise ValueError("a key has 1 byte or more")
        if num_bytes > most:
            raise ValueError(
                f"store {self.name!r}: with the times of its versions the key has {num_bytes} bytes, and "
                f"{self.store.backend} accepts up to {most}: use a shorter key"
            )

    def _before_commit(self) -> None:
        expired = expired_of(self.store, self._retention_ms, self._num_writes)
        self._num_writes = 0
        if expired is not None:
            keys, cursor = expired
            self._stage([StagedWrite(key, None) for key in keys], {CURSOR: cursor})


class VersionedView(HistoryView[K, V, ValueAndTimestamp[V], VersionedRecord[V]], Generic[K, V]):
    """A read-only view of a versioned store, for any thread."""


class VersionedStore(HistoryStore[K, V, ValueAndTimestamp[V], VersionedRecord[V]], Generic[K, V]):
    """A versioned store for its writing thread, which reads its own uncommitted writes.

    Times are ints from 0 to below 2**62, in milliseconds since the Unix epoch. A key has one version of a time: a later
    put of the same time replaces it. A put, or deletion, more than the retention before the stream time is dropped and
    counted (``late_total``); some are logged as warnings.

    Raises, all writes: TypeError and ValueError for an invalid time, and for a key or value that a serde or the store
    refuses, before anything is staged; StoreCorruptedError; else as those of ``KeyValueStore``.
    """

    def put(self, key: K, value: V | None, timestamp_ms: int) -> bool:
        """Stage ``value`` as the version of ``key`` from ``timestamp_ms`` on; None deletes.

        Return True if this is the latest version of the key now, and False if it is an older one or was dropped.
        Source: KIP-914, which returns the time at which the version ends.
        """
        return self._put(key, value, timestamp_ms)

    def put_all(self, records: Iterable[tuple[K, V | None, int]]) -> None:
        """Stage all ``(key, value, timestamp_ms)`` as by a ``put`` of each, or none if one of them is refused."""
        self._put_columns(*timed_columns(records))

    def put_many(self, keys: Sequence[K], values: Sequence[V | None], timestamps_ms: Sequence[int]) -> None:
        """Stage all ``values`` and their times under ``keys``, which are in the same order, like ``put_all``."""
        check_lengths(keys, values=values, timestamps_ms=timestamps_ms)
        self._put_columns(keys, values, timestamps_ms)

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> VersionedView[K, V]:
        return cast(VersionedView[K, V], super().read_only(isolation_level, bound))
