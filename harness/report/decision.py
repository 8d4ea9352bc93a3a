"""A decision among rivals that were measured in the same rounds: the best of them, and those that are as good.

What slows the machine in a round slows all rivals of that round. So they are compared in pairs, by the ratios of their
values within rounds. The ratio of a pair is the median of the geometric means of each two of its rounds: an outlier
does not move it much, and it needs fewer rounds than a median of ratios.

A few rounds of one pair cannot give a high confidence, but those of all pairs of a run can. So the interval of a pair
is as wide as a bootstrap says that draws as many deviations from all of them, and wider if they are few. Some pairs
vary more than others: the interval also contains that of a signed-rank test over the rounds of the pair, at 95 %. With
some eleven rounds that test alone gives the confidence of 99 %. It holds for all intervals of one rival together
(Bonferroni).

A difference of less than 10 % makes no difference for a user. So a rival is the best one if no other may be better by
more than that. One that is neither better nor worse by more than that is as good.

Sources: J. L. Hodges, E. L. Lehmann, "Estimates of Location Based on Rank Tests", 1963; F. Wilcoxon, "Individual
Comparisons by Ranking Methods", 1945; B. Efron, R. J. Tibshirani, "An Introduction to the Bootstrap", section 9.4;
R. E. Bechhofer, "A Single-Sample Multiple Decision Procedure for Ranking Means of Normal Populations", 1954, for the
zone of indifference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import inf, log1p
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.99
"""The probability that no interval of a decision lies beside its true ratio."""
_LOW_CONFIDENCE = 0.95
"""That of an interval of the rounds of one pair, beside the interval of the deviations of all pairs."""
INDIFFERENCE = 0.10
"""Rivals are as good if their ratio is less than this share above or below 1."""
ROUNDS_MIN = 2
"""One round decides nothing."""
_RESAMPLES = 10_000
_SEED = 1

Rounds = Mapping[int, float]
"""The value of a rival in each round that measured it, by the number of the round. All values are above 0."""


@dataclass(frozen=True)
class Ranking:
    """A rival, and what its ratios to all others say.

    ``ties`` are as good. ``open`` may be better by more than 10 %: as long as there are some, nothing is decided.
    ``unclear`` are not better by more than that, and may be worse by more. All others are worse.
    """

    best: str
    rounds: int
    """The number of rounds that measured it."""
    ties: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    @property
    def is_decided(self) -> bool:
        """True if no rival may be better by more than 10 %."""
        return self.rounds >= ROUNDS_MIN and not self.open


class Deviations:
    """The distances of the ratios of pairs in single rounds from those of the pairs, in logarithms, on either side.

    ``freedom`` is the number of values that are independent: few of them say little about how large others may be.
    """

    def __init__(self, values: Iterable[float], freedom: int) -> None:
        one_side = list(values)
        self._freedom = freedom
        self._values = np.asarray([*one_side, *(-each for each in one_side)], float)
        self._half_widths: dict[tuple[int, float], float] = {}

    @classmethod
    def of(cls, cells: Iterable[Mapping[str, Rounds]]) -> Deviations:
        """Return those of all pairs of each cell; a cell has its rivals by name.

        They are scaled up, because a mean of few rounds lies nearer to them than the true one.
        """
        values: list[float] = []
        freedom = 0
        for rivals in cells:
            freedom += max(0, len(rivals) - 1) * max(0, max(map(len, rivals.values()), default=0) - 1)
            for one, other in combinations(rivals.values(), 2):
                ratios = _log_ratios(one, other)
                if (count := len(ratios)) > 1:
                    values += ((ratios - ratios.mean()) * (count / (count - 1)) ** 0.5).tolist()
        return cls(values, freedom)

    def half_width(self, count: int, confidence: float) -> float:
        """Return how far the centre of ``count`` rounds is from the true one, at most, with this confidence."""
        if not self._values.size or not self._freedom:
            return inf
        if (count, confidence) not in self._half_widths:
            drawn = np.random.default_rng(_SEED).choice(self._values, (_RESAMPLES, count))
            self._half_widths[count, confidence] = float(
                np.quantile(np.median(pair_means(drawn), axis=-1), (1 + confidence) / 2)
            )
        return self._half_widths[count, confidence]


def _student(confidence: float, freedom: int) -> float:
    """Return how much wider an interval of Student's t is than that of the normal distribution.

    Source: M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.5, first two terms.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return 1 + (z**2 + 1) / (4 * freedom) + (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)


def decide(rivals: Mapping[str, Rounds], deviations: Deviations, *, more_is_better: bool) -> Ranking:
    """Return the first of ``rivals`` that is decided; the first one, with what is open, if none is.

    They are in the order of their medians, the best first; there is at least one. ``deviations`` are those of all cells
    of the run. The same values give the same decision.
    """
    sign, confidence = 1 if more_is_better else -1, _split_confidence(len(rivals) - 1)

    def ranking(best: str) -> Ranking:
        ratios = {
            name: _ratio(sign * _log_ratios(rivals[name], rivals[best]), deviations, confidence)
            for name in rivals
            if name != best
        }
        return _ranking(best, len(rivals[best]), ratios)

    first, *others = rivals
    of_first = ranking(first)
    if of_first.is_decided:
        return of_first
    return next((each for each in map(ranking, others) if each.is_decided), of_first)


def _split_confidence(intervals: int) -> float:
    """Return the confidence of each of some intervals, so that all of them together have ``CONFIDENCE``."""
    return 1 - (1 - CONFIDENCE) / max(1, intervals)


class _Ratio(NamedTuple):
    """The interval of the logarithm of a ratio, above 0 where the rival is better."""

    low: float
    high: float


def _ratio(logs: Any, deviations: Deviations, confidence: float) -> _Ratio:
    """Return the interval of the ratio of a pair, from its logarithm in each round."""
    count, means = len(logs), np.sort(pair_means(logs))
    if not count:
        return _Ratio(-inf, inf)
    alone = signed_rank(count, confidence)
    outside = (alone or signed_rank(count, _LOW_CONFIDENCE) or 1) - 1
    low, high = float(means[outside]), float(means[-1 - outside])
    if alone:
        return _Ratio(low, high)
    centre, half_width = float(np.median(means)), deviations.half_width(count, confidence)
    return _Ratio(min(low, centre - half_width), max(high, centre + half_width))


@cache
def signed_rank(count: int, confidence: float) -> int:
    """Return the highest k whose interval, from the k-th lowest to the k-th highest mean, has ``confidence``.

    0 if none has it. It is that of Wilcoxon's signed-rank test, for ratios that lie alike above and below the true one.
    """
    sums = [1]  # The number of subsets of the ranks so far, by their sum.
    for place in range(1, count + 1):
        longer = [*sums, *[0] * place]
        sums = [longer[total] + (sums[total - place] if total >= place else 0) for total in range(len(longer))]
    tail, outside = 0, 0
    for total, subsets in enumerate(sums):
        tail += subsets
        if 1 - 2 * tail / 2**count < confidence:
            break
        outside = total + 1
    return outside


def _log_ratios(above: Rounds, below: Rounds) -> Any:
    shared = sorted(above.keys() & below.keys())
    return np.log([above[number] for number in shared]) - np.log([below[number] for number in shared])


def pair_means(logs: Any) -> Any:
    """Return the means of each two values, and of each with itself, along the last axis."""
    one, other = np.triu_indices(logs.shape[-1])
    return (logs[..., one] + logs[..., other]) / 2


def _ranking(best: str, rounds: int, ratios: Mapping[str, _Ratio]) -> Ranking:
    zone = log1p(INDIFFERENCE)
    not_better = {name: ratio for name, ratio in ratios.items() if ratio.high <= zone}
    ties = tuple(name for name, ratio in not_better.items() if ratio.low >= -zone)
    return Ranking(
        best,
        rounds,
        ties,
        tuple(name for name in ratios if name not in not_better),
        tuple(name for name, ratio in not_better.items() if name not in ties and ratio.high >= 0),
    )
