"""Openings with a cold page cache: one row for each state of the cache, and none for a backend without files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment import Request, TrialWorker
from harness.experiments import cold_cache_measured
from harness.experiments.cold_cache import ColdCache, ColdCacheTrial
from stores.registry import backends


def test_there_is_a_row_for_a_warm_and_one_for_a_cold_page_cache(tmp_path: Path) -> None:
    rows = list(
        ColdCache().run(ColdCacheTrial("lmdb-indexed-batch", 1, records=1_000, repeats=1), TrialWorker(tmp_path))
    )
    assert [(row["cache"], row["records"]) for row in rows] == [("warm", 1_000), ("cold", 1_000)]
    for row in rows:
        assert set(row) == {*ColdCache.columns["cold_opening"], "kind"}
        assert row["open_s"] > 0
        assert row["first_get_s"] > 0
    page = ColdCache().page(ColdCache().figures({"cold_opening": rows}), {}, {})
    assert page is not None
    assert "lmdb-indexed-batch" in "".join(page.body)


def test_each_file_is_dropped_from_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    monkeypatch.setattr("os.posix_fadvise", lambda file, *_: dropped.append(file))
    (tmp_path / "data").mkdir()
    for name in ("a", "data/b"):
        (tmp_path / name).write_bytes(b"x")
    cold_cache_measured.drop_from_cache(tmp_path)
    assert len(dropped) == 2


def test_a_backend_without_files_is_left_out() -> None:
    planned = {trial.backend for trial in ColdCache().plan(Request())}
    assert planned == {name for name, backend in backends().items() if backend.persistent}
