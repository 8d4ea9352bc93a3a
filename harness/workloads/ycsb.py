"""YCSB on any key-value store: keys, values, distributions of requests over keys, and the core workloads A to F.

Every number is computed from raw PCG64 bits by additions, multiplications and comparisons of doubles only. IEEE 754
defines these to the last bit, so a seed gives the same requests with every version of numpy and on every machine.
Arrays are of int64 and belong to the caller. A record here is one value instead of ten fields of 100 bytes.

Source: Cooper et al. 2010, "Benchmarking cloud serving systems with YCSB", table 2, and the parameter files
workloada to workloadf that go with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stores.errors import ConfigError
from stores.interface import KeyValueStore

Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]

ZIPFIAN_CONSTANT = 0.99
"""The skew. Source: YCSB, section 5.2 (core workloads)."""
ALPHA = 100
"""1 / (1 - ZIPFIAN_CONSTANT): an integer, so that the power in Gray's formula is a product."""
SCRAMBLED_ITEMS = 10_000_000_000
"""The number of ranks before hashing maps them to keys. Source: YCSB, ScrambledZipfianGenerator."""

_FNV_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_EXACT_TERMS = 1_000
_DECIMALS = 12


class Source:
    """A seeded random source: the same seed and the same calls give the same numbers everywhere."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))

    def fractions(self, count: int) -> Doubles:
        """Return ``count`` numbers, 0 included and 1 excluded, of 53 random bits each."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int | Integers, count: int) -> Integers:
        """Return ``count`` uniform integers from 0 to ``bound`` - 1, with one bound for all, or one for each."""
        return (self.fractions(count) * bound).astype(np.int64)

    def random_bytes(self, count: int) -> bytes:
        """Return ``count`` bytes that do not compress."""
        return np.asarray(self._bits.random_raw(-(-count // 8)), dtype="<u8").tobytes()[:count]


def zeta(items: int) -> float:
    """Return the sum of i ** -0.99 for i from 1 to ``items``, within 1e-12 relative, which zipfian frequencies need.

    Terms after the first thousand are summed by the Euler-Maclaurin formula. The sum is rounded, so that the last bit
    of a machine's power function does not affect the requests.
    """
    exact = min(items, _EXACT_TERMS)
    total = _first_terms(exact)
    if items > exact:
        integral = (items ** (1 - ZIPFIAN_CONSTANT) - exact ** (1 - ZIPFIAN_CONSTANT)) * ALPHA
        ends = (items**-ZIPFIAN_CONSTANT - exact**-ZIPFIAN_CONSTANT) / 2
        slopes = ZIPFIAN_CONSTANT * (exact ** (-ZIPFIAN_CONSTANT - 1) - items ** (-ZIPFIAN_CONSTANT - 1)) / 12
        total += integral + ends + slopes
    return round(total, _DECIMALS)


def zipfian(source: Source, items: int | Integers, count: int) -> Integers:
    """Return ``count`` ranks below ``items`` (1 or more, one number for all or one for each), 0 the most frequent.

    Source: Gray et al. 1994, "Quickly generating billion-record synthetic databases", section 4.
    """
    distinct, places = np.unique(np.asarray(items, dtype=np.int64), return_inverse=True)
    zetas = [zeta(int(n)) for n in distinct]
    zeta_items = np.array(zetas)[places]
    eta = np.array([_eta(int(n), z) for n, z in zip(distinct, zetas, strict=True)])[places]
    u = source.fractions(count)
    uz = u * zeta_items
    ranks = (np.asarray(items) * _power_of_alpha(eta * u - eta + 1.0)).astype(np.int64)
    ranks = np.where(uz < 1.0 + _second_weight(), 1, ranks)
    return np.minimum(np.where(uz < 1.0, 0, ranks), np.asarray(items, dtype=np.int64) - 1)


def scrambled_zipfian(source: Source, items: int, count: int) -> Integers:
    """Return ``count`` numbers below ``items`` with zipfian popularity; the popular ones are scattered.

    Source: YCSB, ScrambledZipfianGenerator: ranks of 10 billion items, hashed, modulo the number of items.
    """
    return fnv1a_64(zipfian(source, SCRAMBLED_ITEMS, count)) % items


def latest(source: Source, newest: Integers) -> Integers:
    """Return, for each newest key number (1 or more), a number from 1 to it; the newest is the most frequent.

    Source: YCSB, SkewedLatestGenerator.
    """
    return newest - zipfian(source, newest, len(newest))


def uniform(source: Source, items: int, count: int) -> Integers:
    """Return ``count`` numbers below ``items`` with equal probabilities."""
    return source.below(items, count)


def fnv1a_64(numbers: Integers) -> Integers:
    """Hash each number's eight bytes, the lowest first; never negative. Source: YCSB, Utils.hash."""
    rest = np.asarray(numbers, dtype=np.int64).astype(np.uint64)
    hashes = np.full(rest.shape, _FNV_OFFSET_BASIS, dtype=np.uint64)
    for _ in range(8):
        hashes = (hashes ^ (rest & np.uint64(0xFF))) * _FNV_PRIME
        rest = rest >> np.uint64(8)
    return np.abs(hashes.astype(np.int64))


@cache
def _first_terms(count: int) -> float:
    return math.fsum(i**-ZIPFIAN_CONSTANT for i in range(1, count + 1))


def _eta(items: int, zeta_items: float) -> float:
    if items <= 2:
        return 0.0
    return round((1 - math.pow(2 / items, 1 - ZIPFIAN_CONSTANT)) / (1 - zeta(2) / zeta_items), _DECIMALS)


def _second_weight() -> float:
    return round(math.pow(0.5, ZIPFIAN_CONSTANT), _DECIMALS)


def _power_of_alpha(base: Doubles) -> Doubles:
    fourth = (base * base) * (base * base)
    thirty_second = fourth
    for _ in range(3):
        thirty_second = thirty_second * thirty_second
    return (thirty_second * thirty_second) * thirty_second * fourth


KEY_BYTES = 16
VALUE_BYTES = 100
KEY_BYTES_MIN = 8
VALUE_BYTES_MIN = 8
_POOL_BYTES = 1 << 20


def keys_of(numbers: Integers, key_bytes: int = KEY_BYTES) -> list[bytes]:
    """Return the key of each key number: its hash, so that adjacent numbers are far apart in the store.

    It has sixteen hexadecimal digits, padded with zeros on the left; below 16 bytes, the eight bytes of the hash,
    padded with zero bytes. Raises: ConfigError for fewer than 8 bytes. Source: YCSB, CoreWorkload.buildKeyName (hashed
    insert order).
    """
    if key_bytes < KEY_BYTES_MIN:
        raise ConfigError(f"a key of {key_bytes} bytes can't tell the keys apart: ask for {KEY_BYTES_MIN} or more")
    hashes = fnv1a_64(numbers).astype(">i8").tobytes()
    if key_bytes < 16:
        return [hashes[at : at + 8].rjust(key_bytes, b"\0") for at in range(0, len(hashes), 8)]
    digits = hashes.hex().encode()
    return [digits[at : at + 16].rjust(key_bytes, b"0") for at in range(0, len(digits), 16)]


class Values:
    """Values of one length, all different: each begins with the number of its write, and random bytes follow."""

    def __init__(self, seed: int, value_bytes: int = VALUE_BYTES) -> None:
        """Create the source of values. Raises: ConfigError for fewer than 8 bytes, which the number needs."""
        if value_bytes < VALUE_BYTES_MIN:
            raise ConfigError(
                f"a value of {value_bytes} bytes can't differ with each write: ask for {VALUE_BYTES_MIN} or more"
            )
        self._filler_bytes = value_bytes - VALUE_BYTES_MIN
        self._pool = Source(seed, value_bytes).random_bytes(_POOL_BYTES + self._filler_bytes)

    def value(self, key: bytes, write: int) -> bytes:
        """Return the value that write number ``write`` (0 or more) puts under ``key``."""
        start = (int.from_bytes(key[-4:], "big") + write * 7919) % _POOL_BYTES
        return write.to_bytes(VALUE_BYTES_MIN, "big") + self._pool[start : start + self._filler_bytes]


SCAN_LENGTH_MAX = 100
LOAD_COMMIT_RECORDS = 10_000


class OperationKind(StrEnum):
    """The kinds of operations, in the order in which YCSB lists its mix."""

    READ = "read"
    UPDATE = "update"
    INSERT = "insert"
    SCAN = "scan"
    READ_MODIFY_WRITE = "read_modify_write"


class RequestDistribution(StrEnum):
    """The distribution of requests over records."""

    ZIPFIAN = "zipfian"
    LATEST = "latest"


class YcsbOperation(NamedTuple):
    """One request. ``value`` is None if nothing is written; ``scan_length`` is in records, and 0 if it is no scan."""

    kind: OperationKind
    key: bytes
    value: bytes | None = None
    scan_length: int = 0


@dataclass(frozen=True)
class CoreWorkload:
    """A mix of operations: the share of each kind (their sum is 1), and the distribution over records."""

    name: str
    mix: Mapping[OperationKind, float]
    distribution: RequestDistribution


def _core_workloads() -> Mapping[str, CoreWorkload]:
    kind, zipfian = OperationKind, RequestDistribution.ZIPFIAN
    workloads = (
        CoreWorkload("A", {kind.READ: 0.5, kind.UPDATE: 0.5}, zipfian),
        CoreWorkload("B", {kind.READ: 0.95, kind.UPDATE: 0.05}, zipfian),
        CoreWorkload("C", {kind.READ: 1.0}, zipfian),
        CoreWorkload("D", {kind.READ: 0.95, kind.INSERT: 0.05}, RequestDistribution.LATEST),
        CoreWorkload("E", {kind.INSERT: 0.05, kind.SCAN: 0.95}, zipfian),
        CoreWorkload("F", {kind.READ: 0.5, kind.READ_MODIFY_WRITE: 0.5}, zipfian),
    )
    return MappingProxyType({workload.name: workload for workload in workloads})


CORE_WORKLOADS = _core_workloads()


@dataclass(frozen=True)
class Ycsb:
    """A core workload over ``records`` loaded records (2 or more). The same seed gives the same operations."""

    workload: CoreWorkload
    records: int
    seed: int
    key_bytes: int = KEY_BYTES
    value_bytes: int = VALUE_BYTES

    def __post_init__(self) -> None:
        if self.records < 2:
            raise ConfigError(f"{self.records} records leave no choice: ask for 2 or more")

    def load_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a store before the first operation, in the order of their insertion."""
        values = Values(self.seed, self.value_bytes)
        for start in range(0, self.records, LOAD_COMMIT_RECORDS):
            numbers = np.arange(start, min(start + LOAD_COMMIT_RECORDS, self.records), dtype=np.int64)
            for number, key in enumerate(keys_of(numbers, self.key_bytes), start):
                yield key, values.value(key, number)

    def operations(self, count: int) -> list[YcsbOperation]:
        """Return ``count`` operations on the loaded records, generated before the measurement.

        A written value differs from all others, also from the loaded ones.
        """
        source = Source(self.seed, ord(self.workload.name[0]))
        kinds = self._kinds(source, count)
        inserts = np.array([kind is OperationKind.INSERT for kind in kinds], dtype=bool)
        newest = self.records - 1 + np.cumsum(inserts) - inserts
        numbers = np.where(inserts, newest + 1, self._chosen(source, newest))
        lengths = (1 + uniform(source, SCAN_LENGTH_MAX, count)).tolist()
        keys = keys_of(numbers, self.key_bytes)
        values = Values(self.seed, self.value_bytes)
        operations = []
        for at, (kind, key) in enumerate(zip(kinds, keys, strict=True)):
            if kind is OperationKind.READ:
                operations.append(YcsbOperation(kind, key))
            elif kind is OperationKind.SCAN:
                operations.append(YcsbOperation(kind, key, None, lengths[at]))
            else:
                operations.append(YcsbOperation(kind, key, values.value(key, self.records + at)))
        return operations

    def _kinds(self, source: Source, count: int) -> list[OperationKind]:
        kinds = [kind for kind in OperationKind if self.workload.mix.get(kind, 0) > 0]
        bounds = np.cumsum([self.workload.mix[kind] for kind in kinds])[:-1]
        return [kinds[place] for place in np.searchsorted(bounds, source.fractions(count), side="right").tolist()]

    def _chosen(self, source: Source, newest: Integers) -> Integers:
        count = len(newest)
        if self.workload.distribution is RequestDistribution.LATEST:
            return latest(source, newest)
        # Popularity is spread over the keys to be inserted too, twice as many as expected, and a record that does not
        # exist yet is drawn again. So inserts do not move the popular keys. Source: YCSB, CoreWorkload.init,
        # nextKeynum.
        items = self.records + int(count * self.workload.mix.get(OperationKind.INSERT, 0) * 2)
        numbers = scrambled_zipfian(source, items, count)
        while (absent := np.flatnonzero(numbers > newest)).size:
            numbers[absent] = scrambled_zipfian(source, items, absent.size)
        return numbers


def core_workload(name: str) -> CoreWorkload:
    """Return the core workload of that letter, in either case. Raises: ConfigError for any other name."""
    try:
        return CORE_WORKLOADS[name.upper()]
    except KeyError:
        raise ConfigError(f"no YCSB core workload {name!r}: there are {', '.join(CORE_WORKLOADS)}") from None


def load(store: KeyValueStore, records: Iterable[tuple[bytes, bytes]]) -> int:
    """Put ``records`` into ``store``, with a commit after every 10,000. Return their number."""
    rest = iter(records)
    loaded = 0
    while batch := list(islice(rest, LOAD_COMMIT_RECORDS)):
        store.put_all(batch)
        store.commit()
        loaded += len(batch)
    return loaded


def apply(operation: YcsbOperation, store: KeyValueStore) -> int:
    """Perform one operation without a commit. Return the number of records that it found."""
    kind, key, value, scan_length = operation
    if kind is OperationKind.READ:
        return int(store.get(key) is not None)
    if kind is OperationKind.SCAN:
        with store.range(key, None) as pairs:
            return sum(1 for _ in islice(pairs, scan_length))
    if kind is OperationKind.READ_MODIFY_WRITE:
        value_before = store.get(key)
        store.put(key, value)
        return int(value_before is not None)
    store.put(key, value)
    return 0
