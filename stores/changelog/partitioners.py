"""The partition of a key, as Kafka's producers choose it.

Names are those of librdkafka's setting ``partitioner``. ``NAME_random`` is the same as ``NAME``: the two differ for
records without a key only, about which a partitioner here is not asked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import iter_unpack, unpack

from stores.errors import ConfigError, nearest

Partitioner = Callable[[bytes, int], int]
"""Returns the partition of a key, among a number of partitions."""

_MULTIPLIER, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFF_FFFF
_CACHED_KEY_BYTES_MAX = 64
_CACHED_KEYS = 16_384
"""Frequent keys are hashed once. The cache takes up to 4 MiB of a process."""


def murmur2(data: bytes) -> int:
    """Return the hash of ``data``, 0 to 2**32 - 1. Source: Kafka, ``Utils.murmur2``."""
    state, whole = _SEED ^ len(data), len(data) & ~3
    for (four_bytes,) in iter_unpack("<I", data[:whole]):
        word = (four_bytes * _MULTIPLIER) & _MASK
        state = ((state * _MULTIPLIER) ^ ((word ^ (word >> 24)) * _MULTIPLIER)) & _MASK
    if whole < len(data):
        state = ((state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    state = ((state ^ (state >> 13)) * _MULTIPLIER) & _MASK
    return state ^ (state >> 15)


_cached_murmur2 = lru_cache(_CACHED_KEYS)(murmur2)


def _hash(key: bytes) -> int:
    return _cached_murmur2(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)


_AT_ONCE = 32
"""So many keys of one length are hashed at once. For a few of them that takes longer."""


def murmur2_of_all(keys: Sequence[bytes]) -> list[int]:
    """Return the hash of each key, as ``murmur2`` does. A thousand short ones take a fifth of the time or less."""
    lengths = set(map(len, keys))
    if len(lengths) == 1 and len(keys) >= _AT_ONCE:
        return _of_one_length(keys, lengths.pop())
    places_of: dict[int, list[int]] = {}
    for place, length in enumerate(map(len, keys)):
        places_of.setdefault(length, []).append(place)
    hashes = [0] * len(keys)
    for length, places in places_of.items():
        some = [keys[place] for place in places]
        found = map(_hash, some) if len(some) < _AT_ONCE else _of_one_length(some, length)
        for place, number in zip(places, found, strict=True):
            hashes[place] = number
    return hashes


def _of_one_length(keys: Sequence[bytes], length: int) -> list[int]:
    """Compute ``murmur2`` of all keys in one integer, in which each has 64 bits: the product of two words fits in."""
    count, data = len(keys), b"".join(keys)
    each = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
    mask = each * _MASK

    def words(at: int, num_bytes: int) -> int:
        spread = bytearray(8 * count)
        for number in range(num_bytes):
            spread[number::8] = data[at + number :: length]
        return int.from_bytes(spread, "little")

    state, whole = each * (_SEED ^ length), length & ~3
    for at in range(0, whole, 4):
        word = (words(at, 4) * _MULTIPLIER) & mask
        state = ((state * _MULTIPLIER) ^ ((word ^ ((word >> 24) & mask)) * _MULTIPLIER)) & mask
    if whole < length:
        state = ((state ^ words(whole, length - whole)) * _MULTIPLIER) & mask
    state = ((state ^ ((state >> 13) & mask)) * _MULTIPLIER) & mask
    state ^= (state >> 15) & mask
    return list(unpack(f"<{count}Q", state.to_bytes(8 * count, "little")))


def of_murmur2(key: bytes, count: int) -> int:
    """Return the partition of a key, as Java's clients choose it by default.

    Source: Kafka, ``BuiltInPartitioner.partitionForKey``: ``Utils.toPositive(Utils.murmur2(key)) % numPartitions``.
    """
    if count == 1:
        return 0
    return (_hash(key) & 0x7FFF_FFFF) % count


def all_of_murmur2(keys: Sequence[bytes], count: int) -> list[int]:
    """Return the partition of each key, as ``of_murmur2`` does."""
    return [0] * len(keys) if count == 1 else [(number & 0x7FFF_FFFF) % count for number in murmur2_of_all(keys)]


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
