"""Exploring runs passes of the profile night until its time is over, each with the next seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import explore
from harness.answer.write import FAILURES, write_failures
from harness.experiment import Failure
from harness.experiments.registry import stages
from harness.interruption import INTERRUPTED
from harness.run import BenchRequest


@pytest.mark.parametrize(
    ("hours", "budgets_s"),
    [(1.0, [3_600]), (3.0, [7_200, 3_600]), (4.01, [7_200, 7_200]), (0.01, [36])],
)
def test_passes_follow_each_other_with_seeds_that_move_on(
    hours: float, budgets_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    passes: list[BenchRequest] = []

    def bench(request: BenchRequest) -> int:
        passes.append(request)
        assert request.budget_s is not None
        now[0] += request.budget_s
        return len(passes) % 2

    monkeypatch.setattr(explore, "bench", bench)
    monkeypatch.setattr("harness.explore.time.monotonic", lambda: now[0])
    assert explore.explore(hours, BenchRequest(backends=("lmdb-native",))) == 1
    assert [request.budget_s for request in passes] == pytest.approx(budgets_s)
    assert {(request.profile, request.moves_on, request.backends) for request in passes} == {
        ("night", True, ("lmdb-native",))
    }


def test_the_stages_that_are_explored_exist() -> None:
    assert set(explore.STAGES) <= set(stages())


def test_each_failure_is_a_file_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    write_failures(tmp_path, [Failure("it was lost", "python -m harness repeat crash '{}'"), Failure("another one")])
    files = sorted((tmp_path / FAILURES).iterdir())
    assert [file.name for file in files] == ["001.txt", "002.txt"]
    assert files[0].read_text() == "it was lost\n  repeat it with: python -m harness repeat crash '{}'\n"
    write_failures(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_ends_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[BenchRequest] = []

    def bench(request: BenchRequest) -> int:
        passes.append(request)
        return INTERRUPTED

    monkeypatch.setattr(explore, "bench", bench)
    assert explore.explore(24, BenchRequest()) == INTERRUPTED
    assert len(passes) == 1
