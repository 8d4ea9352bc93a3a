"""The core workloads: their mixes, keys, values and lengths. Source: YCSB, core workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.workloads.ycsb import (
    CORE_WORKLOADS,
    LOAD_COMMIT_RECORDS,
    OperationKind,
    RequestDistribution,
    Ycsb,
    YcsbOperation,
    apply,
    core_workload,
    keys_of,
    load,
)
from stores.errors import ConfigError

OPERATIONS = 20_000
READ, UPDATE, INSERT = OperationKind.READ, OperationKind.UPDATE, OperationKind.INSERT
SCAN, READ_MODIFY_WRITE = OperationKind.SCAN, OperationKind.READ_MODIFY_WRITE


class Pairs(Iterator[tuple[bytes, bytes]]):
    """A scan over a dict, usable in ``with``."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = iter(pairs)

    def __next__(self) -> tuple[bytes, bytes]:
        return next(self._pairs)

    def __enter__(self) -> Pairs:
        return self

    def __exit__(self, *error: object) -> None:
        self._pairs = iter(())


class DictStore:
    """As much of a store as the workloads call, over a dict; notes how many records each commit made visible."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.commits: list[int] = []

    def get(self, key: bytes) -> bytes | None:
        return self.pairs.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.pairs[key] = value

    def put_all(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.pairs.update(pairs)

    def commit(self) -> None:
        self.commits.append(len(self.pairs))

    def range(self, start: bytes, end: None) -> Pairs:
        return Pairs(sorted(pair for pair in self.pairs.items() if pair[0] >= start))


def workload(name: str, records: int = 1_000, seed: int = 5, **sizes: int) -> Ycsb:
    return Ycsb(core_workload(name), records, seed, **sizes)


@pytest.mark.parametrize(
    ("name", "mix", "distribution"),
    [
        ("A", {READ: 0.5, UPDATE: 0.5}, "zipfian"),
        ("B", {READ: 0.95, UPDATE: 0.05}, "zipfian"),
        ("C", {READ: 1.0}, "zipfian"),
        ("D", {READ: 0.95, INSERT: 0.05}, "latest"),
        ("E", {SCAN: 0.95, INSERT: 0.05}, "zipfian"),
        ("F", {READ: 0.5, READ_MODIFY_WRITE: 0.5}, "zipfian"),
    ],
)
def test_a_workload_mixes_operations_as_its_definition_says(
    name: str, mix: dict[OperationKind, float], distribution: str
) -> None:
    counts = Counter(operation.kind for operation in workload(name).operations(OPERATIONS))
    assert counts.keys() == mix.keys()
    assert {kind: count / OPERATIONS for kind, count in counts.items()} == pytest.approx(mix, abs=0.015)
    assert CORE_WORKLOADS[name].distribution is RequestDistribution(distribution)


@pytest.mark.parametrize("name", CORE_WORKLOADS)
def test_the_same_seed_gives_the_same_records_and_operations(name: str) -> None:
    assert workload(name).operations(2_000) == workload(name).operations(2_000)
    assert list(workload(name).load_records()) == list(workload(name).load_records())
    assert workload(name).operations(2_000) != workload(name, seed=6).operations(2_000)


@pytest.mark.parametrize("name", CORE_WORKLOADS)
def test_an_operation_only_asks_for_records_that_are_there_by_then(name: str) -> None:
    ycsb = workload(name)
    known = {key for key, _ in ycsb.load_records()}
    for operation in ycsb.operations(OPERATIONS):
        assert (operation.key in known) is (operation.kind is not INSERT)
        known.add(operation.key)


@pytest.mark.parametrize("name", CORE_WORKLOADS)
def test_every_write_changes_the_value(name: str) -> None:
    """SQLite does not write a row whose bytes are unchanged, so an unchanged value would measure nothing."""
    ycsb = workload(name)
    values = [value for _, value in ycsb.load_records()]
    values += [operation.value for operation in ycsb.operations(OPERATIONS) if operation.value is not None]
    assert len(set(values)) == len(values)


def test_scans_ask_for_1_to_100_records_each_length_as_often() -> None:
    lengths = [operation.scan_length for operation in workload("E").operations(OPERATIONS) if operation.kind is SCAN]
    assert (min(lengths), max(lengths)) == (1, 100)
    assert sum(lengths) / len(lengths) == pytest.approx(50.5, rel=0.02)


def test_the_latest_distribution_reads_what_was_inserted_last() -> None:
    operations = workload("D").operations(OPERATIONS)
    loaded = {key for key, _ in workload("D").load_records()}
    late_reads = [operation for operation in operations[OPERATIONS // 2 :] if operation.kind is READ]
    assert sum(operation.key not in loaded for operation in late_reads) / len(late_reads) > 0.6


def test_zipfian_requests_favour_a_few_keys() -> None:
    counts = Counter(operation.key for operation in workload("C").operations(OPERATIONS))
    assert sum(count for _, count in counts.most_common(10)) / OPERATIONS > 0.1


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(16, 100), (8, 8), (12, 9), (40, 4_096)])
def test_keys_and_values_have_the_length_asked_for_and_keys_stay_apart(key_bytes: int, value_bytes: int) -> None:
    pairs = list(workload("A", key_bytes=key_bytes, value_bytes=value_bytes).load_records())
    assert {(len(key), len(value)) for key, value in pairs} == {(key_bytes, value_bytes)}
    assert len({key for key, _ in pairs}) == 1_000


@pytest.mark.parametrize("sizes", [{"key_bytes": 7}, {"value_bytes": 7}, {"records": 1}])
def test_sizes_that_cannot_keep_the_promises_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        workload("A", **sizes).operations(1)


def test_keys_of_neighbouring_numbers_lie_apart() -> None:
    keys = keys_of(np.arange(100, dtype=np.int64))
    assert keys != sorted(keys)


def test_an_unknown_core_workload_is_a_configuration_error() -> None:
    assert core_workload("f") is CORE_WORKLOADS["F"]
    with pytest.raises(ConfigError):
        core_workload("G")


def test_loading_puts_every_record_and_commits_every_10_000() -> None:
    store: Any = DictStore()
    assert load(store, workload("A", records=LOAD_COMMIT_RECORDS + 5).load_records()) == LOAD_COMMIT_RECORDS + 5
    assert store.commits == [LOAD_COMMIT_RECORDS, LOAD_COMMIT_RECORDS + 5]
    assert store.pairs == dict(workload("A", records=LOAD_COMMIT_RECORDS + 5).load_records())


def test_an_operation_does_what_its_kind_says() -> None:
    store: Any = DictStore()
    store.pairs = {b"b": b"1", b"c": b"2", b"d": b"3"}
    assert apply(YcsbOperation(READ, b"b"), store) == 1
    assert apply(YcsbOperation(READ, b"a"), store) == 0
    assert apply(YcsbOperation(SCAN, b"b", None, 2), store) == 2
    assert apply(YcsbOperation(SCAN, b"c", None, 100), store) == 2
    assert store.pairs == {b"b": b"1", b"c": b"2", b"d": b"3"}
    assert apply(YcsbOperation(UPDATE, b"b", b"4"), store) == 0
    assert apply(YcsbOperation(INSERT, b"e", b"5"), store) == 0
    assert apply(YcsbOperation(READ_MODIFY_WRITE, b"c", b"6"), store) == 1
    assert store.pairs == {b"b": b"4", b"c": b"6", b"d": b"3", b"e": b"5"}
