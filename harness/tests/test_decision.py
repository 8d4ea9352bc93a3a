"""A decision among rivals: what few rounds decide, what they leave open, and what makes no difference."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harness.experiments.needs import RivalCell, needs_so_far
from harness.experiments.throughput.experiment import Throughput
from harness.report.decision import Deviations, Ranking, decide
from harness.report.figures import Figure
from harness.tests.made_up_rows import made_up_rows


def measured(rates: dict[str, float], rounds: int, noise: float, seed: int = 1) -> dict[str, dict[int, float]]:
    """Rates by round: each round has a speed of its own, and each measurement an error besides it."""
    random = Random(seed)
    speeds = [random.uniform(0.5, 1.0) for _ in range(rounds)]
    return {
        name: {number: rate * speed * random.lognormvariate(0, noise) for number, speed in enumerate(speeds)}
        for name, rate in rates.items()
    }


def decided(rivals: dict[str, dict[int, float]], *, more_is_better: bool = True) -> Ranking:
    return decide(rivals, Deviations.of([rivals]), more_is_better=more_is_better)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_few_rounds_decide_a_difference_of_three_times(rounds: int) -> None:
    for seed in range(20):
        rivals = measured({"fast": 300.0, "slow": 100.0, "slower": 90.0}, rounds, 0.1, seed)
        assert decided(rivals) == Ranking("fast", rounds)
        assert decided(dict(reversed(rivals.items())), more_is_better=False).best in ("slow", "slower")


def test_one_round_decides_nothing() -> None:
    rivals = measured({"fast": 300.0, "slow": 100.0}, 1, 0.1)
    assert not decided(rivals).is_decided
    assert not decide({"alone": {0: 1.0}}, Deviations((), 0), more_is_better=True).is_decided
    assert decide({"alone": {0: 1.0, 1: 2.0}}, Deviations((), 0), more_is_better=True) == Ranking("alone", 2)


def test_rivals_within_a_tenth_are_as_good_when_rounds_are_alike() -> None:
    rivals = measured({"best": 105.0, "as good": 100.0, "worse": 80.0}, 4, 0.002)
    assert decided(rivals) == Ranking("best", 4, ties=("as good",))


def test_a_rival_that_may_be_a_tenth_better_is_open_and_one_that_may_only_be_worse_is_unclear() -> None:
    rivals = measured({"best": 101.0, "rival": 100.0, "slow": 30.0}, 3, 0.2)
    assert decided(rivals) == Ranking("best", 3, open=("rival",))
    deviations = Deviations([0.01] * 50, 50)
    rivals = {"best": {0: 100.0, 1: 100.0}, "rival": {0: 93.0, 1: 93.0}}
    assert decide(rivals, deviations, more_is_better=True) == Ranking("best", 2, ties=("rival",))
    rivals = {"best": {0: 100.0, 1: 100.0}, "rival": {0: 88.0, 1: 101.0}}
    assert decide(rivals, deviations, more_is_better=True) == Ranking("best", 2, unclear=("rival",))


def test_the_first_that_is_decided_is_the_best_one() -> None:
    """Medians of different rounds are not those of the rounds that rivals share: these decide."""
    best = dict.fromkeys(range(6), 100.0)
    once_lucky = {0: 60.0, 1: 60.0, 7: 110.0, 8: 110.0, 9: 110.0}
    decision = decide({"once lucky": once_lucky, "best": best}, Deviations([0.01] * 20, 20), more_is_better=True)
    assert decision == Ranking("best", 6)


def test_from_eleven_rounds_on_the_rounds_of_a_pair_decide_alone() -> None:
    rivals = measured({"best": 103.0, "rival": 100.0}, 11, 0.01)
    disturbed = Deviations([2.0] * 50, 50)
    assert decide(rivals, disturbed, more_is_better=True) == Ranking("best", 11, ties=("rival",))
    fewer = {name: {number: values[number] for number in range(7)} for name, values in rivals.items()}
    assert not decide(fewer, disturbed, more_is_better=True).is_decided


def test_a_rival_without_a_common_round_is_open() -> None:
    rivals = {"best": {0: 100.0, 1: 100.0}, "stranger": {2: 10.0, 3: 10.0}}
    assert decide(rivals, Deviations([0.01], 20), more_is_better=True) == Ranking("best", 2, open=("stranger",))


def figures_by(rows: list[dict[str, Any]]) -> list[Figure]:
    return Throughput().figures({"throughput": rows})["throughput"]


def figures_of(rounds: int, faster: dict[str, float] | None = None) -> list[Figure]:
    rows = [row for row in made_up_rows()["throughput"] if row["repeat"] < rounds]
    for row in rows:
        row["records_per_s"] *= (faster or {}).get(row["backend"], 1.0) ** (row["repeat"] % 2)
    return figures_by(rows)


def test_needs_so_far_name_the_cells_that_further_rounds_measure() -> None:
    levels = [(each.durability, each.decided, each.open_cells) for each in needs_so_far([])]
    assert levels == [(level, False, ()) for level in ("CHANGELOG", "PROCESS", "DISK", *["CHANGELOG"] * 4)]
    (first, *_) = needs_so_far(figures_of(1))
    assert not first.decided
    assert first.open_cells[0] == RivalCell("rocksdb-indexed-batch", "CHANGELOG", "count", 1_000)
    assert len(first.open_cells) == 4
    needs = needs_so_far(figures_of(4))
    assert [each.decided for each in needs] == [each.durability != "PROCESS" for each in needs]
    assert not any(each.open_cells for each in needs)
    disturbed = needs_so_far(figures_of(4, {"lmdb-indexed-batch": 2.1}))
    assert {each.backend for each in disturbed[0].open_cells} == {"rocksdb-indexed-batch", "lmdb-indexed-batch"}


def test_a_short_round_counts_until_all_backends_of_its_cell_have_a_longer_one() -> None:
    rows = [row for row in made_up_rows()["throughput"] if row["repeat"] < 3]
    for row in rows:
        row["records"] = 10_000 if row["repeat"] == 0 else 100_000
    late = [row for row in rows if row["backend"] != "lmdb-indexed-batch" or row["repeat"] == 0]
    for measurements, repeats in ((rows, {2}), (late, {1, 3})):
        figures = figures_by(measurements)
        assert {figure["repeats"] for figure in figures} == repeats
        assert {figure["end_state"] for figure in figures} == {"equal"}
    rows[0]["end_state"] = "different"
    wrong = [figure for figure in figures_by(rows) if figure["end_state"] == "different"]
    assert [(figure["backend"], figure["repeats"]) for figure in wrong] == [(rows[0]["backend"], 2)]
