"""The latency of each put and each commit, timed separately: a store that stages has fast puts and slow commits.

Each backend has its own process. It measures a store alone at level CHANGELOG, which every backend carries. The times
include two reads of the clock per call: about 0.1 microseconds.

Source: KIP-892, "Compatibility, Deprecation, and Migration Plan": lower latency of writes, higher latency of commits.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Any, NamedTuple

from stores.interface import Durability, KeyValueStore, TopicPartition
from stores.registry import open_store

RECORDS_PER_COMMIT = 1_000
PERCENTILES: Mapping[str, float] = {"p50_us": 50.0, "p90_us": 90.0, "p99_us": 99.0, "p999_us": 99.9, "max_us": 100.0}
DEADLINE_S = 300
_WARM_UP_COMMITS = 5
_KEY_BYTES, _VALUE_BYTES = 16, 100
_LATENCY_MAX_NS, _LATENCY_DIGITS = 3_600_000_000_000, 3
_CHANGELOG = TopicPartition("changelog", 0)


class Timed(NamedTuple):
    """The duration of each call in nanoseconds, in order."""

    puts_ns: array[int]
    commits_ns: array[int]


def timed(store: KeyValueStore, commits: int, seed: int) -> Timed:
    """Make ``commits`` commits of records with random keys, after some to warm up, and return their times."""
    choose = Random(seed)
    times = Timed(array("q"), array("q"))
    for number in range(-_WARM_UP_COMMITS, commits):
        pairs = [(choose.randbytes(_KEY_BYTES), choose.randbytes(_VALUE_BYTES)) for _ in range(RECORDS_PER_COMMIT)]
        puts_ns = array("q")
        for key, value in pairs:
            began = perf_counter_ns()
            store.put(key, value)
            puts_ns.append(perf_counter_ns() - began)
        began = perf_counter_ns()
        store.commit({_CHANGELOG: number + _WARM_UP_COMMITS})
        end = perf_counter_ns()
        if number >= 0:
            times.puts_ns.extend(puts_ns)
            times.commits_ns.append(end - began)
    return times


def percentiles_us(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Return the percentiles of ``PERCENTILES`` in microseconds, each with three correct digits."""
    from hdrh.histogram import HdrHistogram  # After the measurement: it is no part of it.

    histogram = HdrHistogram(1, _LATENCY_MAX_NS, _LATENCY_DIGITS)
    for latency_ns in latencies_ns:
        histogram.record_value(min(max(1, latency_ns), _LATENCY_MAX_NS))
    return {name: histogram.get_value_at_percentile(at) / 1_000 for name, at in PERCENTILES.items()}


def measured(backend: str, commits: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return a row for the puts, and one for the commits."""
    level = Durability.CHANGELOG
    with open_store(backend, folder / "store", durability=level) as store:
        times = timed(store, commits, seed)
    rows = [
        {
            "backend": backend,
            "durability": str(level),
            "operation": operation,
            "records_per_commit": RECORDS_PER_COMMIT,
            "operations": len(latencies_ns),
            **percentiles_us(latencies_ns),
        }
        for operation, latencies_ns in (("put", times.puts_ns), ("commit", times.commits_ns))
    ]
    return {"rows": rows}
