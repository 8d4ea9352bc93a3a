"""Typed key-value stores: keys and values through serdes, stored without an addition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from stores.contract.arguments import check_keys, check_pairs
from stores.errors import StoreIncompatibleError
from stores.interface import (
    IsolationLevel,
    KeyValueIterator,
    KeyValueStore,
    KeyValueView,
    PositionBound,
    ReadOnlyKeyValueStore,
)
from stores.records.codec import Codec
from stores.records.record_kind import (
    Description,
    PlainConverter,
    RecordConverter,
    RecordIterator,
    RecordKind,
    TypedStore,
    TypedView,
)
from stores.records.serdes import Serde, check_serde
from stores.records.values import RecordStaging

K = TypeVar("K")
V = TypeVar("V")
TIMESTAMPED: Final = "timestamped-key-value"
WITH_HEADERS: Final = "timestamped-key-value-with-headers"
_WITH_TIMES: Final = {
    TIMESTAMPED: ("timestamps", "TimestampedKeyValue"),
    WITH_HEADERS: ("timestamps and headers", "TimestampedKeyValueWithHeaders"),
}


@dataclass(frozen=True)
class KeyValue(RecordKind, Generic[K, V]):
    """The description of a store of ``key`` to ``value``. An existing store of plain bytes can be opened with it.

    Raises: TypeError for an invalid serde.
    """

    kind: ClassVar[str] = "key-value"
    reads_plain: ClassVar[bool] = True
    __hash__ = RecordKind.__hash__

    key: Serde[K]
    value: Serde[V]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_serde("key", self.key)
        check_serde("value", self.value)

    def description(self) -> Description:
        return {"key": self.key.name, "value": self.value.name}

    def over(self, store: KeyValueStore) -> TypedKeyValueStore[K, V]:
        return self.staged(self.taken(store))

    def staged(self, staging: RecordStaging) -> TypedKeyValueStore[K, V]:
        return TypedKeyValueStore(self, staging)

    def view(self, view: KeyValueView) -> TypedKeyValueView[K, V]:
        return TypedKeyValueView(view, Codec("of a view", self.key, self.value))

    def converter(self, store: KeyValueStore) -> RecordConverter:
        return PlainConverter()

    def _prepare_plain(self, store: KeyValueStore) -> None:
        """Accept the store: this kind stores plain keys and values."""

    def _prepare_other(self, store: KeyValueStore, kept: Description) -> None:
        """Refuse the store; for a timestamped one, with advice. Source: KIP-258, downgrade."""
        kind = str(kept["kind"])
        if kind in _WITH_TIMES:
            parts, description = _WITH_TIMES[kind]
            raise StoreIncompatibleError(
                f"store {store.name!r} keeps {parts} with its values, which {self.kind} would read as values: open "
                f"it as {description}, whose views show the values alone with plain(). Or wipe it, open it as "
                "KeyValue and restore it from its changelog, which has the values alone"
            )
        super()._prepare_other(store, kept)


class KeyValueReads(Generic[K, V]):
    """The lookups and scans of the writer and of views. Both ends of a range are included; None leaves an end open.

    Ranges and scans are in the order of the serialized keys. It is the order of the keys if their serde keeps order.
    Raises: TypeError, ValueError for a key that the serde refuses; SerdeMismatchError; else as those of
    ``ReadOnlyKeyValueStore``.
    """

    def __init__(self, reader: ReadOnlyKeyValueStore, codec: Codec[K, V]) -> None:
        self._reader, self._codec = reader, codec
        self._get = reader.get
        self._serialize_key = codec.serialize_key
        self._deserialize_value = codec.deserialize_value

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, or None."""
        get, serialize = self._get, self._serialize_key
        try:
            encoded: Any = key if serialize is None else serialize(key)  # no cast(): it is a call
            data = get(encoded)
        except Exception:
            self._codec.encode_key(key)
            raise
        if data is None:
            return None
        try:
            return self._deserialize_value(data)
        except Exception:
            return self._codec.decode_value(self._codec.encode_key(key), data)

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of ``keys``, in their order; None for a missing one."""
        check_keys(keys)
        encoded = self._codec.encode_keys(list(keys))
        return self._codec.decode_values(encoded, self._reader.get_many(encoded))

    def range(self, start: K | None, end: K | None) -> RecordIterator[tuple[K, V]]:
        """Return an iterator over the pairs from ``start`` to ``end``, ascending."""
        return self._pairs(self._reader.range(self._codec.encode_bound(start), self._codec.encode_bound(end)))

    def reverse_range(self, start: K | None, end: K | None) -> RecordIterator[tuple[K, V]]:
        """Return an iterator like ``range``, descending. ``start`` is the smaller end."""
        return self._pairs(self._reader.reverse_range(self._codec.encode_bound(start), self._codec.encode_bound(end)))

    def all(self) -> RecordIterator[tuple[K, V]]:
        """Return an iterator over all pairs, ascending."""
        return self._pairs(self._reader.all())

    def reverse_all(self) -> RecordIterator[tuple[K, V]]:
        """Return an iterator over all pairs, descending."""
        return self._pairs(self._reader.reverse_all())

    def prefix_scan(self, prefix: K) -> RecordIterator[tuple[K, V]]:
        """Return an iterator over the pairs whose keys begin with ``prefix``, ascending.

        Raises: ConfigError if the serde does not keep prefixes.
        """
        return self._pairs(self._reader.prefix_scan(self._codec.encode_prefix(prefix)))

    def reverse_prefix_scan(self, prefix: K) -> RecordIterator[tuple[K, V]]:
        """Return an iterator like ``prefix_scan``, descending."""
        return self._pairs(self._reader.reverse_prefix_scan(self._codec.encode_prefix(prefix)))

    def approximate_num_entries(self) -> int:
        """Return what ``ReadOnlyKeyValueStore.approximate_num_entries`` returns."""
        return self._reader.approximate_num_entries()

    def _pairs(self, scan: KeyValueIterator) -> RecordIterator[tuple[K, V]]:
        if self._codec.is_plain:
            return RecordIterator(cast(Iterator[tuple[K, V]], iter(scan)), scan)
        return RecordIterator(self._decoded(scan), scan)

    def _decoded(self, scan: KeyValueIterator) -> Iterator[tuple[K, V]]:
        codec = self._codec
        deserialize_key, deserialize_value = codec.deserialize_key, codec.deserialize_value
        for key, data in scan:
            try:
                pair = deserialize_key(key), deserialize_value(data)
            except Exception:
                pair = codec.decode_key(key), codec.decode_value(key, data)
            yield pair


class TypedKeyValueView(KeyValueReads[K, V], TypedView):
    """A read-only view of a typed key-value store, for any thread."""

    def __init__(
        self,
        view: KeyValueView,
        codec: Codec[K, V],
        reader: ReadOnlyKeyValueStore | None = None,
        remake: Callable[[KeyValueView], TypedView] | None = None,
    ) -> None:
        """Create a view that reads from ``reader``, by default from ``view``. ``remake`` makes it of other data."""
        TypedView.__init__(self, view, remake or (lambda other: TypedKeyValueView(other, codec)))
        KeyValueReads.__init__(self, reader or view, codec)


class TypedKeyValueStore(KeyValueReads[K, V], TypedStore):
    """A typed key-value store for its writing thread, which reads its own uncommitted writes.

    Raises, all writes: TypeError and ValueError for a key or value that a serde or the store refuses, before
    anything is staged; else as those of ``KeyValueStore``.
    """

    def __init__(self, kind: KeyValue[K, V], staging: RecordStaging) -> None:
        TypedStore.__init__(self, kind, staging)
        KeyValueReads.__init__(self, staging.store, Codec(staging.store.name, kind.key, kind.value))
        self._serialize_value = self._codec.serialize_value
        self._put: Callable[[bytes, bytes | None], None] = self._put_logged if staging.logs else staging.store.put

    def put(self, key: K, value: V | None) -> None:
        """Stage ``value`` under ``key``; None deletes."""
        put, serialize_key, serialize_value = self._put, self._serialize_key, self._serialize_value
        try:
            encoded: Any = key if serialize_key is None else serialize_key(key)
            data: Any = value if serialize_value is None or value is None else serialize_value(value)
            put(encoded, data)
        except Exception:
            self._encode(key, value)
            raise

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        """Stage all pairs, or none if one of them is refused. The last pair of a key wins."""
        check_pairs(pairs)
        listed = list(pairs)
        self._put_columns([key for key, _ in listed], [value for _, value in listed])

    def put_many(self, pairs: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Stage all pairs of a mapping, or of pairs, like ``put_all``."""
        if isinstance(pairs, Mapping):
            self._put_columns(list(pairs), list(pairs.values()))
        else:
            self.put_all(pairs)

    def delete_many(self, keys: Iterable[K]) -> None:
        """Stage the removal of all ``keys``, or of none if one of them is refused. Old values are not looked up."""
        check_keys(keys, "delete_many")
        listed = list(keys)
        self._put_columns(listed, [None] * len(listed))

    def _put_columns(self, keys: Sequence[K], values: Sequence[V | None]) -> None:
        self._staging.put_columns(self._codec.encode_keys(keys), self._codec.encode_values(keys, values))

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        """Stage ``value`` unless ``key`` has one. Return the existing value, or None if ``value`` was staged."""
        encoded, data = self._encode(key, value)
        existing = self._get(encoded)
        if existing is not None:
            return self._codec.decode_value(encoded, existing)
        self._put(encoded, data)
        return None

    def update(self, key: K, fn: Callable[[V], V], default: V) -> V:
        """Stage the result of ``fn``, called with the value of ``key``, and return it.

        Without a value ``fn`` is called with ``default``. Raises: as ``put``; the exceptions of ``fn``. Then nothing is
        staged.
        """
        existing = self.get(key)
        value = fn(default if existing is None else existing)
        self.put(key, value)
        return value

    def delete(self, key: K) -> V | None:
        """Stage the removal of ``key``. Return its former value, or None."""
        encoded = self._codec.encode_key(key)
        existing = self._get(encoded)
        value = None if existing is None else self._codec.decode_value(encoded, existing)
        self._put(encoded, None)
        return value

    def delete_range(self, start: K | None, end: K | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included; None leaves an end open."""
        self._staging.delete_range(self._codec.encode_bound(start), self._codec.encode_bound(end))

    def read_only(
        self, isolation_level: IsolationLevel | None = None, bound: PositionBound | None = None
    ) -> TypedKeyValueView[K, V]:
        return TypedKeyValueView(self.store.read_only(isolation_level, bound), self._codec)

    def _encode(self, key: K, value: V | None) -> tuple[bytes, bytes | None]:
        codec = self._codec
        return codec.encode_key(key), None if value is None else codec.encode_value(key, value)

    def _put_logged(self, key: bytes, value: bytes | None) -> None:
        self._staging.put(key, value, key, value, None)
