"""The codec of the keys and values of one store: its two serdes, with errors that name the store and the key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from stores.errors import ConfigError, SerdeMismatchError, StoreError
from stores.records.serdes import BytesSerde, Serde, StrSerde

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
X = TypeVar("X")
_MANY = 64
"""The fewest elements that a serde's function of lists gets: it has to prepare more than one that takes a value."""


class Codec(Generic[K, V]):
    """A codec for the keys and values of one store, or of a topic.

    Its functions are those of the serdes, or None for BYTES; those of columns return None for None. If one of them
    raises, call the method of the same purpose, which raises the error for the caller.
    """

    def __init__(self, name: str, key: Serde[K], value: Serde[V], of: str = "store") -> None:
        self._owner, self._key, self._value = f"{of} {name!r}", key, value
        plain_key, plain_value = isinstance(key, BytesSerde), isinstance(value, BytesSerde)
        self.serialize_key: Callable[[K], bytes] | None = None if plain_key else key.serialize
        self.serialize_value: Callable[[V], bytes] | None = None if plain_value else value.serialize
        self.deserialize_key: Callable[[bytes], K] = key.deserialize
        self.deserialize_value: Callable[[bytes], V] = value.deserialize
        self.serialize_keys, self.deserialize_keys = _column(key, "serialize"), _column(key, "deserialize")
        self.serialize_values, self.deserialize_values = _column(value, "serialize"), _column(value, "deserialize")
        self.is_plain = plain_key and plain_value
        """True if keys and values are bytes as they are."""

    def encode_key(self, key: K) -> bytes:
        """Return the bytes of ``key``. Raises: TypeError, ValueError."""
        try:
            data = self._key.serialize(key)
            if not isinstance(data, bytes):
                raise TypeError(f"serde {self._key.name} returned {type(data).__name__}, not bytes")
        except Exception as error:
            raise self._refused(f"key {key!r} of type {type(key).__name__}", self._key, key, error) from error
        return data

    def encode_value(self, key: K, value: V) -> bytes:
        """Return the bytes of ``value``, which belongs to ``key``. Raises: TypeError, ValueError."""
        try:
            data = self._value.serialize(value)
            if not isinstance(data, bytes):
                raise TypeError(f"serde {self._value.name} returned {type(data).__name__}, not bytes")
        except Exception as error:
            what = f"value of type {type(value).__name__} for key {key!r}"
            raise self._refused(what, self._value, value, error) from error
        return data

    def encode_keys(self, keys: Sequence[K]) -> list[bytes]:
        """Return the bytes of all ``keys``. Raises: as ``encode_key`` for the first one that is refused."""
        with suppress(Exception):
            data = self.serialize_keys(keys)
            if {bytes}.issuperset(map(type, data)):
                return data
        return [self.encode_key(key) for key in keys]

    def encode_values(self, keys: Sequence[K], values: Sequence[V | None]) -> list[bytes | None]:
        """Return the bytes of all ``values``, None for None. Raises: as ``encode_value`` for the first refused one."""
        with suppress(Exception):
            present: list[V] = [value for value in values if value is not None]
            data = self.serialize_values(present)
            if {bytes}.issuperset(map(type, data)):
                return _spread(data, values)
        pairs = zip(keys, values, strict=True)
        return [None if value is None else self.encode_value(key, value) for key, value in pairs]

    def decode_values(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[V | None]:
        """Return all values by their bytes, None for None. Raises: as ``decode_value`` for the first bad one."""
        with suppress(Exception):
            return self.deserialize_values(values)
        pairs = zip(keys, values, strict=True)
        return [None if data is None else self.decode_value(key, data) for key, data in pairs]

    def encode_prefix(self, prefix: K) -> bytes:
        """Return the common first bytes of all keys with ``prefix``. Raises: ConfigError, TypeError, ValueError."""
        if not self._key.keeps_prefixes:
            raise ConfigError(
                f"{self._owner}: the bytes of {self._key.name} keys do not begin with the bytes of a prefix: "
                "use range() or another serde"
            )
        return self.encode_key(prefix)

    def encode_bound(self, bound: K | None) -> bytes | None:
        """Return the bytes of an end of a range, None for an open end. Raises: TypeError, ValueError."""
        return None if bound is None else self.encode_key(bound)

    def decode_key(self, key: bytes) -> K:
        """Return the key that ``key`` is the bytes of. Raises: SerdeMismatchError."""
        try:
            return self.deserialize_key(key)
        except Exception as error:
            raise self.mismatch(key, "key", self._key.name) from error

    def decode_value(self, key: bytes, value: bytes) -> V:
        """Return the value that ``value`` is the bytes of, under ``key``. Raises: SerdeMismatchError."""
        try:
            return self.deserialize_value(value)
        except Exception as error:
            raise self.mismatch(key, "value", self._value.name) from error

    def mismatch(self, key: bytes, part: str, serde: str) -> SerdeMismatchError:
        """Return the error for bytes that the serde can't read."""
        return SerdeMismatchError(
            f"{self._owner}: the {part} under key {key!r} can't be read by serde {serde}: open the store "
            "with the serde that wrote it"
        )

    def _refused(self, what: str, serde: Serde[T], given: T, error: Exception) -> Exception:
        if isinstance(error, StoreError | MemoryError):
            return error
        kind = TypeError if isinstance(error, TypeError) else ValueError
        # The text of str.encode speaks of a descriptor.
        unfit = isinstance(serde, StrSerde) and not isinstance(given, str)
        reason = f"a str is expected, not {type(given).__name__}" if unfit else error
        return kind(f"{self._owner}: serde {serde.name} refuses the {what}: {reason}")


def _column(serde: Serde[Any], purpose: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return the function of a column for "serialize" or "deserialize", None for None. It raises what that does."""
    if isinstance(serde, BytesSerde):
        return list
    one: Callable[[Any], Any] = getattr(serde, purpose)
    many: Callable[[Sequence[Any]], list[Any]] | None = getattr(serde, f"{purpose}_many", None)

    def column(elements: Sequence[Any]) -> list[Any]:
        if many is not None and len(elements) >= _MANY:
            try:
                present = [each for each in elements if each is not None] if None in elements else elements
                done = many(present)
            except Exception:
                done = None
            if isinstance(done, list) and len(done) == len(present):
                return done if present is elements else _spread(done, elements)
        return [None if each is None else one(each) for each in elements]

    return column


def _spread(present: list[X], among: Sequence[object]) -> list[X | None]:
    """Return ``present`` in the places of the elements of ``among`` that are not None."""
    if len(present) == len(among):
        return cast(list[X | None], present)
    rest = iter(present)
    return [None if each is None else next(rest) for each in among]
