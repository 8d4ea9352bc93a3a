"""Commits that only the limit on the memory of writes causes come in time, and are reported with that cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.answer.results import all_figures
from harness.experiment import Request, TrialWorker
from harness.experiments.memory import early_commits
from harness.experiments.memory.experiment import EarlyCommits
from harness.experiments.registry import kinds

LIMIT_BYTES = 64 << 10


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_commits, "LIMITS", (LIMIT_BYTES, -1))
    monkeypatch.setattr(early_commits, "EVENTS", 4_000)


def test_a_task_without_an_interval_commits_before_each_limit_and_only_for_it(tmp_path: Path) -> None:
    """Source: KIP-892, "In-memory Transaction Buffers"; the commit before the limit is beyond it."""
    experiment = EarlyCommits()
    planned = experiment.plan(Request("smoke"))
    rows = [row for trial in planned for row in experiment.run(trial, TrialWorker(tmp_path))]
    assert set(rows[0]) == {*kinds()["early_commit"], "kind", "seed"}
    found = {row["limit_bytes"]: row for row in rows}
    free, bounded = found[None], found[LIMIT_BYTES]
    assert (free["commits"], free["predicted"], free["exceeded"]) == (1, 0, 0)
    assert bounded["exceeded"] == 0
    assert bounded["predicted"] == bounded["commits"] - 1 >= free["uncommitted_max_bytes"] // LIMIT_BYTES > 1
    assert 0.99 * LIMIT_BYTES < bounded["uncommitted_max_bytes"] <= LIMIT_BYTES
    assert free["records"] == bounded["records"] == 4_000
    assert experiment.failures({}, {"early_commit": rows}) == []


def test_an_exceeded_limit_is_reported() -> None:
    row = {"backend": "b", "limit_bytes": 10, "uncommitted_max_bytes": 11}
    rows = [row, {**row, "uncommitted_max_bytes": 10}, {**row, "limit_bytes": None}]
    assert len(EarlyCommits().failures({}, {"early_commit": rows})) == 1


def test_backends_that_were_not_asked_for_are_left_out() -> None:
    assert EarlyCommits().plan(Request(backends=("lmdb-indexed-batch",))) == []


def test_a_rate_is_compared_with_the_same_backend_without_a_limit() -> None:
    columns = dict.fromkeys(kinds()["early_commit"], 1)
    row = {**columns, "kind": "early_commit", "backend": "b", "durability": "CHANGELOG", "limit_bytes": None}
    rows = [
        {**row, "records_per_s": 200.0, "uncommitted_max_bytes": 30},
        {**row, "limit_bytes": 10, "records_per_s": 90.0, "uncommitted_max_bytes": 8},
        {**row, "limit_bytes": 10, "records_per_s": 110.0, "uncommitted_max_bytes": 9},
        {**row, "backend": "c", "limit_bytes": 10, "records_per_s": 50.0},
    ]
    figures = {
        (figure["backend"], figure["limit_bytes"]): figure
        for figure in all_figures({"early_commit": rows})["early_commit"]
    }
    assert figures["b", None]["against_none"] == 1.0
    assert figures["b", 10]["against_none"] == 0.5
    assert figures["b", 10]["uncommitted_max_bytes"] == 9
    assert figures["c", 10]["against_none"] is None
