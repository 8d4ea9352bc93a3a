"""A claim about speed compares the fastest repeats, and does not hold without a measurement."""

from __future__ import annotations

from typing import Any

from harness.scenario import AtLeast, ThroughputScenario

CLAIM = ThroughputScenario("count", at_least=(AtLeast("lmdb-indexed-batch", "rocksdb-direct", 0.5),))


def figure(backend: str, median: float, fastest: float, **settings: Any) -> dict[str, Any]:
    shared = {"workload": "count", "durability": "CHANGELOG", "partitions": 2, "records_per_commit": 1_000}
    return {**shared, "backend": backend, "records_per_s": median, "records_per_s_high": fastest, **settings}


def test_a_slow_repeat_does_not_break_a_claim_and_a_slow_fastest_one_does() -> None:
    yardstick = figure("rocksdb-direct", 900.0, 1_000.0)
    assert CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 100.0, 500.0)]}) == []
    assert len(CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 490.0, 499.0)]})) == 1


def test_only_what_was_measured_alike_is_compared() -> None:
    yardstick = figure("rocksdb-direct", 900.0, 1_000.0)
    elsewhere = figure("lmdb-indexed-batch", 1.0, 1.0, records_per_commit=100)
    assert CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 800.0, 800.0), elsewhere]}) == []
    assert len(CLAIM.missed({"throughput": [yardstick, elsewhere]})) == 1
