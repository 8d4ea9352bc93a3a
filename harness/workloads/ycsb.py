"""The core workloads A to F of YCSB, on any key-value store.

Source: Cooper et al. 2010, "Benchmarking cloud serving systems with YCSB", table 2, and the parameter files
workloada to workloadf that go with it. A record here is one value instead of ten fields of 100 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from harness.workloads.synthetic import (
    KEY_BYTES,
    VALUE_BYTES,
    Integers,
    Source,
    Values,
    keys_of,
    latest,
    scrambled_zipfian,
    uniform,
)
from stores.errors import ConfigError
from stores.interface import KeyValueStore

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
        found = store.get(key)
        store.put(key, value)
        return int(found is not None)
    store.put(key, value)
    return 0
