"""A store's calls of its engines are counted per get and per byte put, and agree with its strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from harness.experiment import Request, TrialWorker
from harness.experiments.amplification import Amplification, AmplificationTrial
from harness.experiments.amplification_measured import STAGED
from harness.experiments.registry import kinds
from stores.registry import Backend, StoreBackend, backends
from stores.tests.minimal_store import DirectWithOffsets


def rows_of(backend: str) -> list[dict[str, Any]]:
    """The rows of a small transaction and of a large one."""
    return list(Amplification().run(AmplificationTrial(backend, 1), TrialWorker(Path())))


def lookups(row: dict[str, object]) -> list[object]:
    return [row[f"lookups_{place}"] for place in ("staged", "just_committed", "committed", "absent")]


def test_a_direct_store_looks_once_and_writes_once_whatever_is_open() -> None:
    rows = rows_of("rocksdb-direct")
    assert [row["staged_records"] for row in rows] == list(STAGED)
    for row in rows:
        assert lookups(row) == [1, 1, 1, 1]
        assert row["bytes_written"] == row["bytes_put"]


@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("-indexed-batch")])
def test_an_indexed_batch_asks_its_engine_for_nothing_that_it_has_in_memory(backend: str) -> None:
    """A persistent store looks into two engines after a spill, and writes twice."""
    small, large = rows_of(backend)
    for row in (small,) if backends()[backend].persistent else (small, large):
        assert (row["lookups_staged"], row["lookups_committed"], row["lookups_absent"]) == (0, 1, 1)
        assert row["bytes_written"] == row["bytes_put"]
    if backends()[backend].persistent:
        assert 0 < large["lookups_staged"] <= 1
        assert lookups(large)[1:] == [1, 2, 2]
        assert 2 <= large["bytes_written"] / large["bytes_put"] < 2.2


@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("-native")])
def test_a_native_store_asks_its_engine_for_all_and_writes_once(backend: str) -> None:
    for row in rows_of(backend):
        assert lookups(row) == [1, 1, 1, 1]
        assert row["bytes_written"] == row["bytes_put"]


def test_a_dual_store_writes_twice_and_once_it_has_spilled_looks_into_both_stores() -> None:
    """Source: KIP-844, the disadvantages of its secondary store."""
    small, large = rows_of("rocksdb-dual-store")
    assert lookups(small) == [0, 1, 1, 1]
    assert 0 < large["lookups_staged"] <= 1
    assert lookups(large)[1:] == [2, 2, 2]
    for row in (small, large):
        assert 2 <= row["bytes_written"] / row["bytes_put"] < 2.2


def test_a_store_without_an_engine_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cast("dict[str, Backend]", backends())
    monkeypatch.setitem(known, "their-own", StoreBackend("their-own", load_store=lambda: DirectWithOffsets))
    assert Amplification().plan(Request(backends=("their-own",))) == []


def test_the_rows_are_the_same_on_every_run_and_fit_their_columns() -> None:
    rows = rows_of("memory-indexed-batch")
    assert rows == rows_of("memory-indexed-batch")
    assert set(rows[0]) == {*kinds()["amplification"], "kind", "seed"}
