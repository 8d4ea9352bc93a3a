"""How a timestamped value lies in the store: eight bytes of its time, big-endian, then the value. Source: KIP-258."""

from __future__ import annotations

import struct
from typing import Final, Generic, TypeVar

from stores.records.serdes import Serde
from stores.records.values import SURROGATE_MS, ValueAndTimestamp

V = TypeVar("V")

TIME: Final = struct.Struct(">q")
TIME_BYTES: Final = 8
SURROGATE: Final = TIME.pack(SURROGATE_MS)
"""The time of a value whose own was never kept."""

_new = tuple.__new__
"""Makes a named tuple at half the price of its own constructor."""


class TimestampedSerde(Generic[V]):
    """The time, then the value as ``inner`` serializes it."""

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"timestamped-{inner.name}"
        self._inner = inner
        self._deserialize = inner.deserialize

    def serialize(self, value: ValueAndTimestamp[V], /) -> bytes:
        return TIME.pack(value.timestamp_ms) + self._inner.serialize(value.value)

    def deserialize(self, data: bytes, /) -> ValueAndTimestamp[V]:
        return _new(ValueAndTimestamp, (self._deserialize(data[8:]), _time_of(data)[0]))


class StrippingSerde(Generic[V]):
    """Reads the value and leaves its time out."""

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, inner: Serde[V]) -> None:
        self.name = f"timestamped-{inner.name}"
        self._deserialize = inner.deserialize

    def serialize(self, value: V, /) -> bytes:
        raise TypeError("a value without a time is not written into a timestamped store")

    def deserialize(self, data: bytes, /) -> V:
        if len(data) < TIME_BYTES:
            raise ValueError("a timestamped value has eight bytes at least")
        return self._deserialize(data[8:])


_time_of = TIME.unpack_from


def time_of(data: bytes) -> int:
    """The time of a timestamped value."""
    timestamp_ms: int = _time_of(data)[0]
    return timestamp_ms
