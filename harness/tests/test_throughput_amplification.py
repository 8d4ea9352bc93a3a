"""A store's calls of its engines are counted per get and per byte put, and agree with its strategy."""

from __future__ import annotations

from typing import cast

import pytest

from harness.experiments.amplification.amplification import STAGED, amplification_rows
from harness.experiments.registry import kinds
from stores.registry import Backend, StoreBackend, backends
from stores.tests.minimal_store import DirectWithOffsets


def lookups(row: dict[str, object]) -> list[object]:
    return [row[f"lookups_{place}"] for place in ("staged", "just_committed", "committed", "absent")]


def test_a_direct_store_looks_once_and_writes_once_whatever_is_open() -> None:
    rows = amplification_rows(["rocksdb-direct"], 1)
    assert [row["staged_records"] for row in rows] == list(STAGED)
    for row in rows:
        assert lookups(row) == [1, 1, 1, 1]
        assert row["bytes_written"] == row["bytes_put"]


@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("-indexed-batch")])
def test_an_indexed_batch_asks_its_engine_for_nothing_that_it_has_in_memory(backend: str) -> None:
    """A persistent store looks into two engines after a spill, and writes twice."""
    small, large = amplification_rows([backend], 1)
    for row in (small,) if backends()[backend].persistent else (small, large):
        assert (row["lookups_staged"], row["lookups_committed"], row["lookups_absent"]) == (0, 1, 1)
        assert row["bytes_written"] == row["bytes_put"]
    if backends()[backend].persistent:
        assert 0 < large["lookups_staged"] <= 1
        assert lookups(large)[1:] == [1, 2, 2]
        assert 2 <= large["bytes_written"] / large["bytes_put"] < 2.2


@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("-native")])
def test_a_native_store_asks_its_engine_for_all_and_writes_once(backend: str) -> None:
    for row in amplification_rows([backend], 1):
        assert lookups(row) == [1, 1, 1, 1]
        assert row["bytes_written"] == row["bytes_put"]


def test_a_dual_store_writes_twice_and_once_it_has_spilled_looks_into_both_stores() -> None:
    """Source: KIP-844, the disadvantages of its secondary store."""
    small, large = amplification_rows(["rocksdb-dual-store"], 1)
    assert lookups(small) == [0, 1, 1, 1]
    assert 0 < large["lookups_staged"] <= 1
    assert lookups(large)[1:] == [2, 2, 2]
    for row in (small, large):
        assert 2 <= row["bytes_written"] / row["bytes_put"] < 2.2


def test_a_store_without_an_engine_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cast("dict[str, Backend]", backends())
    monkeypatch.setitem(known, "their-own", StoreBackend("their-own", load_store=lambda: DirectWithOffsets))
    assert amplification_rows(["their-own"], 1) == []


def test_the_rows_are_the_same_on_every_run_and_fit_their_columns() -> None:
    rows = amplification_rows(["memory-indexed-batch"], 1)
    assert rows == amplification_rows(["memory-indexed-batch"], 1)
    assert set(rows[0]) == {*kinds()["amplification"], "kind", "seed"}
