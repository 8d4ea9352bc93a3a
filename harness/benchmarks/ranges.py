"""Range deletes of one transaction: each must cost the same, however many there are."""

from __future__ import annotations

from harness.benchmarks.load import Pairs
from stores import KeyValueStore

RANGES = "ranges"


def delete_ranges(store: KeyValueStore, pairs: Pairs) -> None:
    """Stage each pair, and delete the range from the key before to just behind it."""
    before = pairs[-1][0]
    for key, value in pairs:
        store.put(key, value)
        store.delete_range(before, before + b"\xff")
        before = key
