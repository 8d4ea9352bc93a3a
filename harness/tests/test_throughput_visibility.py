"""A reader on another thread sees a write at once or with the commit, depending on its level."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from harness.experiment import Request, TrialWorker
from harness.experiments.registry import kinds
from harness.experiments.visibility import SIZES, Visibility
from harness.experiments.visibility_measured import seen, seen_of_task
from stores.config import StoreConfig
from stores.interface import IsolationLevel
from stores.registry import backends, open_store

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize("backend", ["rocksdb-direct", "rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-native"])
def test_committed_data_are_seen_with_the_commit_and_others_at_once(backend: str, tmp_path: Path) -> None:
    """Source: KIP-892, "Interactive Queries"."""
    with open_store(backend, tmp_path / "store") as store:
        lags_s = seen(store, 0.5, 2)
        transactional = store.transactional
    assert len(lags_s[COMMITTED]) == len(lags_s[UNCOMMITTED]) > 20
    # A write waits for a quarter of a second on average; a busy machine adds to that, and takes nothing away.
    assert (median(lags_s[COMMITTED]) > 0.15) is transactional
    assert median(lags_s[UNCOMMITTED]) < 0.1
    # The first write of an interval waits for all of it.
    assert (max(lags_s[COMMITTED]) > 0.4) is transactional


def test_what_a_task_writes_is_seen_with_the_commit_by_its_interval_or_at_once(tmp_path: Path) -> None:
    """Source: KIP-892, "Interactive Queries"; the interval is kept by the system's clock."""
    lags_s = seen_of_task("rocksdb-indexed-batch", 0.5, 2, tmp_path)
    assert len(lags_s[COMMITTED]) == len(lags_s[UNCOMMITTED]) > 20
    assert median(lags_s[COMMITTED]) > 0.15
    assert max(lags_s[COMMITTED]) > 0.4
    assert median(lags_s[UNCOMMITTED]) < 0.1


def test_a_night_has_every_backend_at_the_shortest_interval_first_and_begins_only_what_can_end() -> None:
    trials = Visibility().plan(Request("night"))
    names = [trial.backend for trial in trials[: len(backends())]]
    assert sorted(names) == sorted(backends())
    assert names[0] == StoreConfig().backend
    assert [trial.intervals_s for trial in trials] == [(each,) for each in (0.02, 0.1, 1.0) for _ in names]
    costs_s = list(map(Visibility().cost_s, trials))
    assert costs_s == sorted(costs_s)
    assert 20 < costs_s[-1] < 30


def test_there_is_a_row_for_each_interval_and_level(tmp_path: Path) -> None:
    (trial,) = Visibility().plan(Request("smoke"))
    rows = list(Visibility().run(trial, TrialWorker(tmp_path)))
    assert [(row["commit_interval_s"], row["committed_by"], row["isolation_level"]) for row in rows] == [
        (interval_s, committed_by, str(level))
        for interval_s in SIZES["smoke"][0][0]
        for committed_by in ("writer", "task")
        for level in IsolationLevel
    ]
    for row in rows:
        assert set(row) == {*kinds()["visibility"], "kind"}
        assert 0 <= row["lag_p50_s"] <= row["lag_p99_s"] <= row["lag_max_s"]
    assert Visibility().plan(Request("smoke", backends=("lmdb-indexed-batch",))) == []
