from __future__ import annotations

from collections.abc import Callable
from math import exp
from random import Random
from typing import Any

import pytest

from harness.report.figures import CONFIDENCE, REPEATS_MIN, coverage, interval, ratio_ends
from harness.report.ratios import is_clear, ratio_of


def test_fewer_than_five_repeats_have_no_interval() -> None:
    assert REPEATS_MIN == 5
    assert [interval(range(count)) is None for count in range(7)] == [True] * 5 + [False] * 2


def test_five_repeats_have_the_lowest_to_the_highest_and_its_true_coverage() -> None:
    found = interval([5.0, 1.0, 4.0, 2.0, 3.0])
    assert found == (1.0, 3.0, 5.0, 0.9375)


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6)])
def test_the_narrowest_interval_of_the_asked_coverage_is_taken(count: int, rank: int) -> None:
    found = interval(range(count))
    assert found is not None
    assert (found.low, found.high) == (rank - 1, count - rank)
    assert found.coverage >= CONFIDENCE > coverage(count, rank + 1)


@pytest.mark.parametrize("count", [5, 9])
def test_the_interval_contains_the_true_median_as_often_as_it_says(count: int) -> None:
    seed = 1
    print("seed", seed)
    random, trials = Random(seed), 4_000
    intervals = [interval([random.expovariate(1) for _ in range(count)]) for _ in range(trials)]
    true_median = 0.6931471805599453
    held = sum(each is not None and each.low <= true_median <= each.high for each in intervals)
    assert held / trials == pytest.approx(coverage(count, 1 if count == 5 else 2), abs=0.015)


def test_an_interval_is_widened_only_where_it_is_narrower_than_the_least_share() -> None:
    same = interval([100.0] * 5)
    assert same is not None
    assert same.at_least()[:3] == pytest.approx((100 / 1.01, 100.0, 101.0))
    wide = interval([50.0, 90.0, 100.0, 110.0, 150.0])
    assert wide is not None
    assert wide.at_least() == wide


def test_ratios_have_an_interval_from_three_repeats_on() -> None:
    assert ratio_ends([1.0, 1.1]) is None
    repeats = [1.0, 1.1, 1.2, 1.3, 1.4]
    assert ratio_ends(repeats) == interval(repeats)


@pytest.mark.parametrize(
    ("count", "confidence"), [(3, CONFIDENCE), (4, CONFIDENCE), (6, 0.969), (9, 0.961), (15, 0.952)]
)
def test_the_interval_of_ratios_contains_the_true_one_as_often_as_it_says(count: int, confidence: float) -> None:
    # From six on ranks decide, which are whole numbers.
    print("seed", count)
    random = Random(count)
    draws = [[random.lognormvariate(0.0, 0.2) for _ in range(count)] for _ in range(4_000)]
    ends = [ratio_ends(draw) for draw in draws]
    share = sum(end is not None and end.low <= 1.0 <= end.high for end in ends) / len(ends)
    assert share == pytest.approx(confidence, abs=0.012)


@pytest.mark.parametrize(
    ("at_least", "repeats", "cpu_repeats", "clear"),
    [
        (None, [1.0], [], True),
        (1.0, [2.0, 2.0], [], False),
        (1.0, [2.0, 2.1, 1.9], [], True),
        (4.0, [2.0, 2.1, 1.9], [], True),
        # Beside the threshold, but not twice as far.
        (1.7, [2.0, 2.1, 1.9, 2.0, 2.0], [], True),
        (1.85, [2.0, 2.1, 1.9, 2.0, 2.0], [], False),
        (2.15, [2.0, 2.1, 1.9, 2.0, 2.0], [], False),
        (2.3, [2.0, 2.1, 1.9, 2.0, 2.0], [], True),
        # CPU time decides where there is some.
        (1.0, [0.5, 0.5, 0.5], [1.0, 1.1, 0.9], False),
        (1.0, [1.0, 1.1, 0.9], [0.5, 0.5, 0.5], True),
    ],
)
def test_a_ratio_is_clear_if_twice_its_interval_is_beside_the_threshold(
    at_least: float | None, repeats: list[float], cpu_repeats: list[float], clear: bool
) -> None:
    assert is_clear({"at_least": at_least, **ratio_of(repeats, 0, cpu_repeats)}) is clear


def test_a_ratio_that_is_repeated_until_it_is_clear_is_seldom_on_the_wrong_side() -> None:
    """Half of the decisions about a ratio at its threshold are wrong. Ending at the first one makes twice as many."""
    decided = [sum(_decided(run, ends_at) for run in range(400)) / 400 for ends_at in (is_clear, _is_beside)]
    assert decided[0] <= 0.06 < decided[1]


def _is_beside(row: dict[str, Any]) -> bool:
    return not row["ratio_from"] < row["at_least"] <= row["ratio_to"]


def _decided(seed: int, is_over: Callable[[dict[str, Any]], bool]) -> bool:
    random, repeats = Random(seed), list[float]()
    while len(repeats) < 15:
        repeats.append(exp(random.gauss(0, 0.06)))
        if len(repeats) >= 3 and is_over({"at_least": 1.0, **ratio_of(repeats)}):
            break
    return _is_beside({"at_least": 1.0, **ratio_of(repeats)})
