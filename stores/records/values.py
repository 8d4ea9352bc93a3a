"""Values with timestamps, keys with windows, and the staging of a typed store, which writes them.

The stored form of a timestamped value is eight bytes of its time, big-endian, then the value. Source: KIP-258.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from stores.contract.arguments import TIME_BOUND_MS, Headers, check_time_ms
from stores.interface import KeyValueStore
from stores.records.codec import Codec
from stores.records.headers import stored_time_ms, stored_value, value_and_headers, with_headers
from stores.records.serdes import BytesSerde, Serde

K = TypeVar("K")
V = TypeVar("V")

SURROGATE_MS = -1
"""The timestamp of a value whose own was never kept: that of a store before it had timestamps. Source: KIP-258."""


TIME: Final = struct.Struct(">q")
TIME_BYTES: Final = 8
SURROGATE: Final = TIME.pack(SURROGATE_MS)
"""The time of a value whose own was never kept."""


class ValueAndTimestamp(Generic[V]):
    """A value and its time in milliseconds since the Unix epoch, -1 if the time is unknown. Immutable.

    It can be unpacked, ``value, timestamp_ms = found``, and equals the tuple of the two.
    Source: KIP-258, ``ValueAndTimestamp``.
    """

    # A named tuple takes three times as long to make, and a lookup makes one each time.
    __slots__ = ("_timestamp_ms", "_value")

    def __init__(self, value: V, timestamp_ms: int) -> None:
        self._value = value
        self._timestamp_ms = timestamp_ms

    if TYPE_CHECKING:

        @property
        def value(self) -> V: ...

        @property
        def timestamp_ms(self) -> int: ...

    else:
        value = property(attrgetter("_value"))
        timestamp_ms = property(attrgetter("_timestamp_ms"))

    def __iter__(self) -> Iterator[V | int]:
        return iter((self.value, self.timestamp_ms))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ValueAndTimestamp):
            return bool(self.timestamp_ms == other.timestamp_ms and self.value == other.value)
        return (self.value, self.timestamp_ms) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.value, self.timestamp_ms))

    def __repr__(self) -> str:
        return f"ValueAndTimestamp(value={self.value!r}, timestamp_ms={self.timestamp_ms!r})"

    def __reduce__(self) -> tuple[type[ValueAndTimestamp[V]], tuple[V, int]]:
        return ValueAndTimestamp, (self.value, self.timestamp_ms)


class ValueTimestampHeaders(NamedTuple, Generic[V]):
    """A value, its time in milliseconds since the Unix epoch, -1 if that is unknown, and the headers of its record.

    The headers are pairs of a name and a content, which may be None. Source: KIP-1271, ``ValueTimestampHeaders``.
    """

    value: V
    timestamp_ms: int
    headers: Headers


class Windowed(NamedTuple, Generic[K]):
    """A key within the window or session from ``start_ms`` to ``end_ms``. Source: Kafka Streams, ``Windowed``."""

    key: K
    start_ms: int
    end_ms: int


class VersionedRecord(NamedTuple, Generic[V]):
    """A version of a key: its value from ``timestamp_ms`` on, until before ``valid_to_ms``; None for the latest one.

    Source: KIP-960, ``VersionedRecord``.
    """

    value: V
    timestamp_ms: int
    valid_to_ms: int | None


class VersionedRecordWithHeaders(NamedTuple, Generic[V]):
    """A version of a key as ``VersionedRecord``, and the headers of its record. Source: KIP-1271."""

    value: V
    timestamp_ms: int
    valid_to_ms: int | None
    headers: Headers


Report = tuple[int, Callable[[Any], None]]
"""A time, and the call of a user's function with the context of its task."""


def check_bound_ms(what: str, given: object) -> None:
    """Check a bound of a query: an int below 2**62, in ms, which may be negative. Raises: TypeError, ValueError."""
    check_time_ms(what, max(0, given) if type(given) is int else given)


def check_span_ms(what: str, given: object) -> None:
    """Check the length of a time, in milliseconds. Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{what} is an int, in milliseconds, not {type(given).__name__}")
    if not 0 < given < TIME_BOUND_MS:
        raise ValueError(f"{what} is 1 or more, and below 2**62 milliseconds, not {given}")


class FoundBytes(ValueAndTimestamp[bytes]):
    """A value of BYTES and its time, decoded on access: many callers use only one of them.

    It is created without ``__init__``: its creator sets ``stored`` to the stored bytes.
    """

    __slots__ = ("stored",)
    __init__ = object.__init__
    stored: bytes

    @property
    def value(self) -> bytes:
        return self.stored[TIME_BYTES:]

    @property
    def timestamp_ms(self) -> int:
        return time_of(self.stored)


class TimestampedSerde(Generic[V]):
    """A serde of the time, followed by the value in the form of ``inner``."""

    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"timestamped-{inner.name}"
        self._inner = inner
        self.deserialize: Callable[[bytes], ValueAndTimestamp[V]] = _reader_of(inner)

    def deserialize_many(self, data: Sequence[bytes], /) -> list[ValueAndTimestamp[V]]:
        inner = self._inner
        if isinstance(inner, BytesSerde):
            return list(map(self.deserialize, data))
        bare = [each[8:] for each in data]
        many: Callable[[list[bytes]], list[V]] | None = getattr(inner, "deserialize_many", None)
        values = list(map(inner.deserialize, bare)) if many is None else many(bare)
        return list(map(ValueAndTimestamp, values, map(time_of, data)))

    def serialize(self, value: ValueAndTimestamp[V], /) -> bytes:
        return TIME.pack(value.timestamp_ms) + self._inner.serialize(value.value)


class HeadersSerde(Generic[V]):
    """A serde of the time and the headers, followed by the value in the form of ``inner``."""

    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"headers-{inner.name}"
        self._inner = inner

    def serialize(self, value: ValueTimestampHeaders[V], /) -> bytes:
        return with_headers(self._inner.serialize(value.value), value.timestamp_ms, value.headers)

    def deserialize(self, data: bytes, /) -> ValueTimestampHeaders[V]:
        return with_time_and_headers(data, self._inner.deserialize)


def with_time_and_headers(data: bytes, deserialize: Callable[[bytes], V]) -> ValueTimestampHeaders[V]:
    """Return the value, the time and the headers in ``data``. Raises: ValueError; the errors of ``deserialize``."""
    value, headers = value_and_headers(data)
    return ValueTimestampHeaders(deserialize(value), stored_time_ms(data), headers)


def _reader_of(inner: Serde[V]) -> Callable[[bytes], Any]:
    if isinstance(inner, BytesSerde):
        return found_bytes
    deserialize, time_in, form = inner.deserialize, TIME.unpack_from, ValueAndTimestamp

    def found_value(data: bytes) -> ValueAndTimestamp[V]:
        return form(deserialize(data[8:]), time_in(data)[0])

    return found_value


def found_bytes(data: bytes) -> FoundBytes:
    """Return the value and the time in ``data``. Raises: ValueError if it is too short."""
    if len(data) < TIME_BYTES:
        raise ValueError("a timestamped value has at least eight bytes")
    value: FoundBytes = FoundBytes()
    value.stored = data
    return value


def lookup_of_bytes(
    get: Callable[[bytes], bytes | None], codec: Codec[bytes, Any]
) -> Callable[[bytes], FoundBytes | None]:
    """Return the ``get`` of a store of BYTES to BYTES, which calls the lookup ``get``.

    It is a closure for speed: it makes no other calls than ``get`` and the creation of the result.
    """
    form, time_bytes = FoundBytes, TIME_BYTES

    def lookup(key: bytes) -> FoundBytes | None:
        try:
            data = get(key)
            if data is None:
                return None
            if len(data) >= time_bytes:
                value: FoundBytes = form()
                value.stored = data
                return value
        except Exception:
            codec.encode_key(key)
            raise
        return codec.decode_value(key, data)  # type: ignore[no-any-return]

    return lookup


class StrippingSerde(Generic[V]):
    """A serde that reads the value without its time, and without ``headers`` if it may have some."""

    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(self, inner: Serde[V], *, headers: bool = False) -> None:
        self.name = f"timestamped-{inner.name}"
        self._deserialize, self._headers = inner.deserialize, headers

    def serialize(self, value: V, /) -> bytes:
        raise TypeError("a timestamped store needs a timestamp with each value")

    def deserialize(self, data: bytes, /) -> V:
        if self._headers:
            return self._deserialize(stored_value(data))
        if len(data) < TIME_BYTES:
            raise ValueError("a timestamped value has at least eight bytes")
        return self._deserialize(data[8:])


def time_of(data: bytes) -> int:
    """Return the time of a timestamped value."""
    timestamp_ms: int = TIME.unpack_from(data)[0]
    return timestamp_ms


class StagedWrite(NamedTuple):
    """A write. ``kept`` None deletes; ``log_value`` None is a tombstone; ``timestamp_ms`` None is the record's time.

    Without a ``log_key`` it is not logged: a record only moves within the store. ``log_value`` is the value of the
    changelog record, or what ``RecordKind.log_parts`` makes it of.
    """

    key: bytes
    kept: bytes | None
    log_key: bytes | None = None
    log_value: bytes | None = None
    timestamp_ms: int | None = None


class Undoable(Protocol):
    """Something that the current record changes, and that is undone with it."""

    def put_back(self) -> None:
        """Undo the change."""

    def forget(self) -> None:
        """Keep what is there now: the record is done or undone."""


class RecordStaging(ABC):
    """The interface through which one typed store writes to ``store``, and to its changelog if there is one.

    Raises, all methods: as ``KeyValueStore.put``, before anything is staged.
    """

    logs: bool = True
    """True if there is a changelog. Without one a typed store may write to ``store`` itself."""

    store: KeyValueStore
    """The store below, for lookups, scans and marks."""

    @property
    @abstractmethod
    def timestamp_ms(self) -> int:
        """The time of the current record, -1 outside of a task."""

    @property
    def may_stage(self) -> bool:
        """True if writes may be staged now. If not, a lookup does not move its record to the present format."""
        return True

    def report(self, reports: Callable[[], Iterator[Report]]) -> None:
        """Let the task make the calls that ``reports`` yields, once the current record is done, in its transaction.

        Without a task there are none: ``RecordKind.needs_task``.
        """

    def changes(self, part: Undoable) -> None:
        """Let ``part`` be undone with the current record. Without a task nothing is: it is kept."""
        part.forget()

    @abstractmethod
    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        """Stage ``kept`` under ``key``, and log ``log_value`` under ``log_key``. None deletes, and is a tombstone.

        ``timestamp_ms`` None is the time of the current record.
        """

    def put_unlogged(self, key: bytes, kept: bytes | None) -> None:
        """Stage a write without logging it, for a record that only moves within the store."""
        self.put_all([StagedWrite(key, kept)])

    def put_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Stage and log each value under its key, all or none. The last value of a key wins."""
        self.put_all(list(map(StagedWrite, keys, values, keys, values)))

    @abstractmethod
    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        """Stage all writes and marks, or nothing if one of them is refused. The last write of a key wins.

        Readers of staged data see the writes in one step, and so do queries of ``with_mark`` the marks with them.
        """

    @abstractmethod
    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included, in one step.

        Each of them is logged, unless a restore leaves them out by itself, as expired ones: then ``logged`` is False.
        """


class StagingOver(RecordStaging):
    """A base of stagings that change what is staged by ``inner``."""

    def __init__(self, inner: RecordStaging) -> None:
        self.store, self.logs = inner.store, inner.logs
        self._inner = inner

    @property
    def timestamp_ms(self) -> int:
        return self._inner.timestamp_ms

    @property
    def may_stage(self) -> bool:
        return self._inner.may_stage

    def report(self, reports: Callable[[], Iterator[Report]]) -> None:
        self._inner.report(reports)

    def changes(self, part: Undoable) -> None:
        self._inner.changes(part)


def put_columns(store: KeyValueStore, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    """Stage each value under its key in ``store``, all or none. The last one of a key wins. Raises: as ``put_all``."""
    writes = dict(zip(keys, values, strict=True))
    # Those that a later one replaces are checked, too.
    store.put_many(writes if len(writes) == len(keys) else list(zip(keys, values, strict=True)))


class StoreStaging(RecordStaging):
    """A staging without a task and without a changelog."""

    logs = False

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store

    @property
    def timestamp_ms(self) -> int:
        return SURROGATE_MS

    def put(
        self, key: bytes, kept: bytes | None, log_key: bytes, log_value: bytes | None, timestamp_ms: int | None
    ) -> None:
        self.store.put(key, kept)

    def put_columns(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        put_columns(self.store, keys, values)

    def put_all(self, writes: Sequence[StagedWrite], marks: Mapping[str, bytes | None] | None = None) -> None:
        pairs = [(write.key, write.kept) for write in writes]
        if marks:
            self.store.put_with_marks(pairs, marks)
        else:
            self.store.put_all(pairs)

    def delete_range(self, start: bytes | None, end: bytes | None, *, logged: bool = True) -> None:
        self.store.delete_range(start, end)
