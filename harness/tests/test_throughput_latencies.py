"""Puts and commits are timed apart, each call once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.answer.results import all_figures
from harness.experiment import Request, TrialWorker
from harness.experiments.latencies import COMMITS, LATENCIES, REPORT, Latencies
from harness.experiments.latencies_measured import RECORDS_PER_COMMIT, percentiles_us, timed
from harness.experiments.registry import kinds
from harness.report.drawing import draw
from stores.registry import open_store


def test_each_put_and_each_commit_is_timed_once_and_no_warming_up(tmp_path: Path) -> None:
    with open_store("memory-indexed-batch", tmp_path / "store") as store:
        found = timed(store, 3, 1)
        assert store.approximate_num_uncommitted_bytes() == 0
    assert (len(found.puts_ns), len(found.commits_ns)) == (3 * RECORDS_PER_COMMIT, 3)
    assert min(*found.puts_ns, *found.commits_ns) > 0


def test_percentiles_are_right_to_three_digits() -> None:
    told = percentiles_us(range(1_000, 1_001_000, 1_000))
    wanted = {"p50_us": 500, "p90_us": 900, "p99_us": 990, "p999_us": 999, "max_us": 1_000}
    assert told.keys() == wanted.keys()
    assert all(abs(told[name] / wanted[name] - 1) < 0.002 for name in wanted)


def test_there_is_a_row_for_the_puts_and_one_for_the_commits_of_a_backend(tmp_path: Path) -> None:
    (trial,) = Latencies().plan(Request("smoke", backends=("memory-indexed-batch",)))
    rows = list(Latencies().run(trial, TrialWorker(tmp_path)))
    number = COMMITS["smoke"]
    assert [(row["operation"], row["operations"]) for row in rows] == [
        ("put", number * RECORDS_PER_COMMIT),
        ("commit", number),
    ]
    for row in rows:
        assert set(row) == {*kinds()["latency"], "kind"}
        assert 0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= row["p999_us"] <= row["max_us"]


def test_medians_are_held_against_the_backend_without_isolation(tmp_path: Path) -> None:
    shared = {"durability": "CHANGELOG", "records_per_commit": 1_000, "operations": 9, "kind": "latency"}
    slow = dict.fromkeys(("p90_us", "p99_us", "p999_us", "max_us"), 100.0)
    made: list[dict[str, Any]] = [
        {**shared, **slow, "backend": backend, "operation": operation, "p50_us": median}
        for backend, operation, median in (
            ("lmdb-native", "commit", 60.0),
            ("lmdb-native", "put", 1.0),
            ("rocksdb-direct", "commit", 20.0),
            ("rocksdb-direct", "put", 4.0),
        )
    ]
    figures = all_figures({"latency": made})
    table = LATENCIES.table(figures)
    assert [(row[0], row[1], row[-1]) for row in table.rows] == [
        ("put", "lmdb-native", "0.25"),
        ("put", "rocksdb-direct", "1.00"),
        ("commit", "lmdb-native", "3.00"),
        ("commit", "rocksdb-direct", "1.00"),
    ]
    assert draw(REPORT.page(figures).plots, tmp_path) == ["put-and-commit-latency.svg"]
    assert LATENCIES.table(all_figures({"latency": made[:2]})).rows[0][-1] == "-"
