"""The stored form of a timestamped value: eight bytes of its time, big-endian, then the value. Source: KIP-258."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from stores.records.codec import Codec
from stores.records.serdes import BytesSerde, Serde
from stores.records.values import SURROGATE_MS, ValueAndTimestamp

V = TypeVar("V")

TIME: Final = struct.Struct(">q")
TIME_BYTES: Final = 8
SURROGATE: Final = TIME.pack(SURROGATE_MS)
"""The time of a value whose own was never kept."""


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

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"timestamped-{inner.name}"
        self._inner = inner
        self.deserialize: Callable[[bytes], ValueAndTimestamp[V]] = _reader_of(inner)

    def serialize(self, value: ValueAndTimestamp[V], /) -> bytes:
        return TIME.pack(value.timestamp_ms) + self._inner.serialize(value.value)


def _reader_of(inner: Serde[V]) -> Callable[[bytes], Any]:
    if isinstance(inner, BytesSerde):
        return found_bytes
    deserialize, time_in, made = inner.deserialize, TIME.unpack_from, ValueAndTimestamp

    def found_value(data: bytes) -> ValueAndTimestamp[V]:
        return made(deserialize(data[8:]), time_in(data)[0])

    return found_value


def found_bytes(data: bytes) -> FoundBytes:
    """Return the value and the time in ``data``. Raises: ValueError if it is too short."""
    if len(data) < TIME_BYTES:
        raise ValueError("a timestamped value has at least eight bytes")
    found: FoundBytes = FoundBytes()
    found.stored = data
    return found


def lookup_of_bytes(
    get: Callable[[bytes], bytes | None], codec: Codec[bytes, Any]
) -> Callable[[bytes], FoundBytes | None]:
    """Return the ``get`` of a store of BYTES to BYTES, which calls the lookup ``get``.

    It is a closure for speed: it makes no other calls than ``get`` and the creation of the result.
    """
    made, time_bytes = FoundBytes, TIME_BYTES

    def lookup(key: bytes) -> FoundBytes | None:
        try:
            data = get(key)
            if data is None:
                return None
            if len(data) >= time_bytes:
                found: FoundBytes = made()
                found.stored = data
                return found
        except Exception:
            codec.encode_key(key)
            raise
        return codec.decode_value(key, data)  # type: ignore[no-any-return]

    return lookup


class StrippingSerde(Generic[V]):
    """A serde that reads the value without its time."""

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"timestamped-{inner.name}"
        self._deserialize = inner.deserialize

    def serialize(self, value: V, /) -> bytes:
        raise TypeError("a timestamped store needs a timestamp with each value")

    def deserialize(self, data: bytes, /) -> V:
        if len(data) < TIME_BYTES:
            raise ValueError("a timestamped value has at least eight bytes")
        return self._deserialize(data[8:])


def time_of(data: bytes) -> int:
    """Return the time of a timestamped value."""
    timestamp_ms: int = TIME.unpack_from(data)[0]
    return timestamp_ms
