from __future__ import annotations

from random import Random

import pytest

from harness.report.figures import CONFIDENCE, REPEATS_MIN, coverage, interval, ratio_ends


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


@pytest.mark.parametrize("count", [3, 4])
def test_the_interval_of_few_ratios_contains_the_true_one_as_often_as_it_says(count: int) -> None:
    print("seed", count)
    random = Random(count)
    draws = [[random.lognormvariate(0.0, 0.2) for _ in range(count)] for _ in range(4_000)]
    ends = [ratio_ends(draw) for draw in draws]
    share = sum(end is not None and end.low <= 1.0 <= end.high for end in ends) / len(ends)
    assert share == pytest.approx(CONFIDENCE, abs=0.012)
