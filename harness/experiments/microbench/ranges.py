"""Range deletes of one transaction. Each must cost the same, whatever their number."""

from __future__ import annotations

from harness.experiments.microbench.load import Pairs
from stores import KeyValueStore

RANGES = "ranges"


def delete_ranges(store: KeyValueStore, pairs: Pairs) -> None:
    """Stage each pair, and delete the range that contains the key before it."""
    before = pairs[-1][0]
    for key, value in pairs:
        store.put(key, value)
        store.delete_range(before, before + b"\xff")
        before = key
