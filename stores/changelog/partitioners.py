"""The partition of a key, as Kafka's producers choose it.

Names are those of librdkafka's setting ``partitioner``. ``NAME_random`` is the same as ``NAME``: the two differ for
records without a key only, about which a partitioner here is not asked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import iter_unpack

from stores.errors import ConfigError, nearest

Partitioner = Callable[[bytes, int], int]
"""Returns the partition of a key, among a number of partitions."""

_MULTIPLIER, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFF_FFFF
_CACHED_KEY_BYTES_MAX = 64
_CACHED_KEYS = 4096
"""Frequent keys are hashed once. The cache takes less than one MiB of a process."""


def murmur2(data: bytes) -> int:
    """Return the hash of ``data``, 0 to 2**32 - 1. Source: Kafka, ``Utils.murmur2``."""
    state = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for (four_bytes,) in iter_unpack("<I", data[:whole]):
        word = (four_bytes * _MULTIPLIER) & _MASK
        state = ((state * _MULTIPLIER) & _MASK) ^ (((word ^ (word >> 24)) * _MULTIPLIER) & _MASK)
    if whole < len(data):
        state = ((state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    state = ((state ^ (state >> 13)) * _MULTIPLIER) & _MASK
    return state ^ (state >> 15)


_cached_murmur2 = lru_cache(_CACHED_KEYS)(murmur2)


def of_murmur2(key: bytes, count: int) -> int:
    """Return the partition of a key, as Java's clients choose it by default.

    Source: Kafka, ``BuiltInPartitioner.partitionForKey``: ``Utils.toPositive(Utils.murmur2(key)) % numPartitions``.
    """
    if count == 1:
        return 0
    number = _cached_murmur2(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)
    return (number & 0x7FFF_FFFF) % count


def _of_crc32(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


PARTITIONERS: Mapping[str, Partitioner] = {
    "murmur2": of_murmur2,
    "murmur2_random": of_murmur2,
    "consistent": _of_crc32,
    "consistent_random": _of_crc32,
}
"""murmur2 is the default of Java's clients, consistent_random (CRC-32) that of librdkafka."""


def partitioner_named(name: str) -> Partitioner:
    """Return the partitioner of that name. Raises: ConfigError."""
    partitioner = PARTITIONERS.get(name.lower().replace("-", "_"))
    if partitioner is None:
        raise ConfigError(f"no partitioner {name!r}{nearest(name, PARTITIONERS)}; known: {', '.join(PARTITIONERS)}")
    return partitioner
