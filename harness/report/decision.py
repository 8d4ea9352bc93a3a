"""A decision among rivals that were measured in the same rounds: the best of them, and those that are as good.

What slows the machine in a round slows all rivals of that round. So they are compared in pairs, by the ratios of their
values within rounds. The ratio of a pair is the median of the geometric means of each two of its rounds: an outlier
does not move it much, and it needs fewer rounds than a median of ratios.

A few rounds of one pair cannot give a high confidence, but those of all pairs of a run can. So the interval of a pair
is as wide as a bootstrap says that draws as many deviations from all of them. Some pairs vary more than others: the
interval also contains all rounds of the pair, or the interval of a sign test once there are rounds enough for it. The
confidence of 99 % holds for all intervals of one rival (Bonferroni).

A difference of less than 10 % makes no difference for a user. So a rival is the best one if no other may be better by
more than that. One that is neither better nor worse by more than that is as good.

Sources: J. L. Hodges, E. L. Lehmann, "Estimates of Location Based on Rank Tests", 1963; B. Efron, R. J. Tibshirani, "An
Introduction to the Bootstrap", section 9.4; R. E. Bechhofer, "A Single-Sample Multiple Ranking Procedure for Ranking
Means", 1954, for the zone of indifference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, log1p
from typing import Any, NamedTuple

import numpy as np

from harness.report.figures import rank

CONFIDENCE = 0.99
"""The probability that no interval of a decision lies beside its true ratio."""
INDIFFERENCE = 0.10
"""Rivals are as good if their ratio is less than this share above or below 1."""
ROUNDS_MIN = 2
"""One round decides nothing."""
_RESAMPLES = 20_000
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


def decide(rivals: Mapping[str, Rounds], deviations: Sequence[float], *, more_is_better: bool) -> Ranking:
    """Return the first of ``rivals`` that is decided; the first one, with what is open, if none is.

    They are in the order of their medians, the best first; there is at least one. ``deviations`` are those of all pairs
    of the run (``pair_deviations``). The same values give the same decision.
    """
    pairs = _Pairs(rivals, deviations, more_is_better)
    decisions = [_decision(name, rivals, pairs) for name in rivals]
    return next((each for each in decisions if each.is_decided), decisions[0])


def pair_deviations(cells: Iterable[Mapping[str, Rounds]]) -> list[float]:
    """Return how far the ratio of each pair in each round is from the mean of the pair, in logarithms.

    ``cells`` have rivals by name. Deviations are scaled up, because a mean of few rounds lies nearer to them than the
    true one.
    """
    deviations: list[float] = []
    for rivals in cells:
        for one, other in combinations(rivals.values(), 2):
            ratios = _log_ratios(one, other)
            if (count := len(ratios)) > 1:
                deviations += ((ratios - ratios.mean()) * (count / (count - 1)) ** 0.5).tolist()
    return deviations


def _log_ratios(above: Rounds, below: Rounds) -> Any:
    shared = sorted(above.keys() & below.keys())
    return np.log([above[number] for number in shared]) - np.log([below[number] for number in shared])


def _centre(logs: Any) -> Any:
    """Return the median of the means of each two values, and of each with itself, along the last axis."""
    one, other = np.triu_indices(logs.shape[-1])
    return np.median((logs[..., one] + logs[..., other]) / 2, axis=-1)


class _Ratio(NamedTuple):
    """The interval of the logarithm of a ratio."""

    low: float
    high: float


class _Pairs:
    """The ratios of all pairs of some rivals."""

    def __init__(self, rivals: Mapping[str, Rounds], deviations: Sequence[float], more_is_better: bool) -> None:
        self._rivals, self._sign = rivals, 1 if more_is_better else -1
        self._confidence = 1 - (1 - CONFIDENCE) / max(1, len(rivals) - 1)
        self._deviations = np.asarray([*deviations, *(-each for each in deviations)], float)
        self._half_widths: dict[int, float] = {}

    def better(self, one: str, other: str) -> _Ratio:
        """Return how many times better ``one`` is than ``other``; from 0 to infinity without a common round."""
        ratios = np.sort(self._sign * _log_ratios(self._rivals[one], self._rivals[other]))
        count = len(ratios)
        if not count or not self._deviations.size:
            return _Ratio(-inf, inf)
        outside = rank(count, self._confidence) - 1
        centre, half_width = float(_centre(ratios)), self._half_width(count)
        low, high = float(ratios[outside]), float(ratios[count - 1 - outside])
        return _Ratio(min(low, centre - half_width), max(high, centre + half_width))

    def _half_width(self, count: int) -> float:
        """Return how far the centre of so many deviations is from 0, at the confidence of an interval."""
        if count not in self._half_widths:
            drawn = np.random.default_rng(_SEED).choice(self._deviations, (_RESAMPLES, count))
            self._half_widths[count] = float(np.quantile(_centre(drawn), (1 + self._confidence) / 2))
        return self._half_widths[count]


def _decision(best: str, rivals: Mapping[str, Rounds], pairs: _Pairs) -> Ranking:
    others = {name: pairs.better(name, best) for name in rivals if name != best}
    zone = log1p(INDIFFERENCE)
    not_better = {name: ratio for name, ratio in others.items() if ratio.high <= zone}
    ties = tuple(name for name, ratio in not_better.items() if ratio.low >= -zone)
    return Ranking(
        best,
        len(rivals[best]),
        ties,
        tuple(name for name in others if name not in not_better),
        tuple(name for name, ratio in not_better.items() if name not in ties and ratio.high >= 0),
    )
