"""The partition of a key, as the producers of the input chose it.

Names are those of librdkafka's setting ``partitioner``. Of a key that is not empty, ``NAME_random`` is the same as
``NAME``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from stores.errors import ConfigError
from stores.registry import nearest

PROPERTY = "query.partitioner"
Partitioner = Callable[[bytes, int], int]
"""Returns the partition of a key, among a number of partitions."""

_MULTIPLIER, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """Return the hash of ``data``, 0 to 2**32 - 1. Source: Kafka, ``Utils.murmur2``."""
    found = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = (int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        found = ((found * _MULTIPLIER) & _MASK) ^ word
    if whole < len(data):
        found = ((found ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    found = ((found ^ (found >> 13)) * _MULTIPLIER) & _MASK
    return found ^ (found >> 15)


def _of_murmur2(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFF_FFFF) % count


def _of_crc32(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


PARTITIONERS: Mapping[str, Partitioner] = {
    "murmur2": _of_murmur2,
    "murmur2_random": _of_murmur2,
    "consistent": _of_crc32,
    "consistent_random": _of_crc32,
}
"""murmur2 is the default of Java's clients, consistent_random (CRC-32) that of librdkafka."""


def partitioner(name: str) -> Partitioner:
    """Return the partitioner of that name. Raises: ConfigError."""
    found = PARTITIONERS.get(name)
    if found is None:
        known = ", ".join(PARTITIONERS)
        raise ConfigError(f"property {PROPERTY}: no partitioner {name!r}{nearest(name, PARTITIONERS)}; known: {known}")
    return found
