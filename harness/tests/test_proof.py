"""A claim about speed compares the medians of repeats, and does not hold without a measurement."""

from __future__ import annotations

from typing import Any

from harness.experiments.throughput.plan import ThroughputGrid
from harness.scenario import AtLeast

CLAIM = ThroughputGrid("count", 10, at_least=(AtLeast("lmdb-indexed-batch", "rocksdb-direct", 0.5),))


def figure(backend: str, median: float, fastest: float, **settings: Any) -> dict[str, Any]:
    shared = {"workload": "count", "durability": "CHANGELOG", "partitions": 2, "records_per_commit": 1_000}
    return {**shared, "backend": backend, "records_per_s": median, "records_per_s_high": fastest, **settings}


def test_one_fast_repeat_does_not_save_a_claim_and_a_fast_one_of_the_yardstick_does_not_break_it() -> None:
    yardstick = figure("rocksdb-direct", 900.0, 2_000.0)
    assert CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 450.0, 500.0)]}) == []
    assert len(CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 449.0, 2_000.0)]})) == 1


def test_only_figures_of_equal_settings_are_compared() -> None:
    yardstick = figure("rocksdb-direct", 900.0, 1_000.0)
    elsewhere = figure("lmdb-indexed-batch", 1.0, 1.0, records_per_commit=100)
    assert CLAIM.missed({"throughput": [yardstick, figure("lmdb-indexed-batch", 800.0, 800.0), elsewhere]}) == []
    assert len(CLAIM.missed({"throughput": [yardstick, elsewhere]})) == 1
