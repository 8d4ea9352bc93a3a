"""The two serdes of a store, with errors that name the store, the key and the type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from stores.errors import ConfigError, SerdeMismatchError, StoreError
from stores.records.serdes import BytesSerde, Serde, StrSerde

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Codec(Generic[K, V]):
    """A codec for the keys and values of one store.

    Its functions are those of the serdes, or None for BYTES. If one of them raises, call the method of the same
    purpose, which raises the error for the caller.
    """

    def __init__(self, store: str, key: Serde[K], value: Serde[V]) -> None:
        self._store, self._key, self._value = store, key, value
        plain_key, plain_value = isinstance(key, BytesSerde), isinstance(value, BytesSerde)
        self.serialize_key: Callable[[K], bytes] | None = None if plain_key else key.serialize
        self.serialize_value: Callable[[V], bytes] | None = None if plain_value else value.serialize
        self.deserialize_key: Callable[[bytes], K] = key.deserialize
        self.deserialize_value: Callable[[bytes], V] = value.deserialize
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

    def encode_prefix(self, prefix: K) -> bytes:
        """Return the common first bytes of all keys with ``prefix``. Raises: ConfigError, TypeError, ValueError."""
        if not self._key.keeps_prefixes:
            raise ConfigError(
                f"store {self._store!r}: the bytes of {self._key.name} keys do not begin with the bytes of a prefix: "
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
            f"store {self._store!r}: the {part} under key {key!r} can't be read by serde {serde}: open the store "
            "with the serde that wrote it"
        )

    def _refused(self, what: str, serde: Serde[T], given: T, error: Exception) -> Exception:
        if isinstance(error, StoreError | MemoryError):
            return error
        kind = TypeError if isinstance(error, TypeError) else ValueError
        # The text of str.encode speaks of a descriptor.
        unfit = isinstance(serde, StrSerde) and not isinstance(given, str)
        reason = f"a str is expected, not {type(given).__name__}" if unfit else error
        return kind(f"store {self._store!r}: serde {serde.name} refuses the {what}: {reason}")
