"""The comparison of a record cache with the indexed batch: the cache keeps to its bound, and both kinds do the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiments.memory import record_cache
from harness.experiments.memory.record_cache import BATCH, CACHE, RecordCache, work


def test_the_cache_drops_the_least_recently_used_records_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cache, "CACHE_BYTES", 3 * (record_cache.ENTRY_BYTES + 2))
    cache = RecordCache()
    missed = []

    def otherwise(key: bytes) -> bytes:
        missed.append(key)
        return b"1"

    for key in (b"a", b"b", b"c", b"a", b"d", b"a", b"b"):
        assert cache.get(key, otherwise) == b"1"
    assert missed == [b"a", b"b", b"c", b"d", b"b"]
    cache.put(b"a", None)
    assert cache.get(b"a", otherwise) is None


@pytest.mark.parametrize("kind", [BATCH, CACHE])
def test_each_kind_works_through_all_records(kind: str, tmp_path: Path) -> None:
    micros, _ = work(kind, 2_000, tmp_path / "store")
    assert micros > 0
