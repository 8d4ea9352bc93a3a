"""Figures of a report, computed from raw rows: grouping, medians and order, for any kind of rows.

Pure functions from rows to plain dicts, in an order that depends on their content only.

The interval of a median is that of order statistics: from the k-th lowest to the k-th highest repeat. It assumes
nothing about the distribution, and needs no seed. The number of repeats below the true median is binomial, so the
interval of n repeats contains it with a probability of 1 - 2 * P(Binomial(n, 1/2) < k). The narrowest interval of at
least 95 % is taken. With five repeats this is the lowest to the highest at 93.75 %, the most that five can give.
Source: H. A. David, H. N. Nagaraja, "Order Statistics", 3rd edition, section 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb, exp
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from harness.report.decision import pair_means, signed_rank
from harness.report.rows import Row

Figure = dict[str, Any]
"""One line of a report's tables, computed from rows. ``kind`` names its kind."""
Figures = Mapping[str, Sequence[Figure]]
"""The figures of a run by kind; a kind without figures has an empty list."""

BASELINE = "rocksdb-direct"
"""The backend without isolation, against which others are compared."""


def grouped(rows: Iterable[Row], names: Sequence[str]) -> list[tuple[Figure, list[Row]]]:
    """Return the rows that share their values under ``names``, with these values, in the values' order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: _sortable(item[0]))
    return [(dict(zip(names, key, strict=True)), group) for key, group in ordered]


def in_order(figures: Iterable[Figure], *first: str) -> list[Figure]:
    """Return the figures, ordered by their values under the names ``first``, and then by all others."""
    return sorted(figures, key=lambda figure: _sortable(tuple(figure[name] for name in (*first, *sorted(figure)))))


def distinct(figures: Sequence[Figure], *names: str) -> list[tuple[Any, ...]]:
    """Return the distinct combinations of values that figures have under ``names``, in their order."""
    return list(dict.fromkeys(tuple(figure[name] for name in names) for figure in figures))


def values(rows: Iterable[Row], name: str) -> list[float]:
    """Return the values of a column, without nulls."""
    return [row[name] for row in rows if row.get(name) is not None]


def _sortable(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value if value is not None else 0) for value in key)


CONFIDENCE = 0.95
REPEATS_MIN = 5
"""With fewer repeats there is no interval."""
LEAST = 0.01
"""No compared interval is narrower than this share of its value, to each side: repeats that are
equal to the byte do not make the next run equal."""
_RESAMPLES = 20_000


class Interval(NamedTuple):
    """A median of repeats, and the interval in which the true median is, in the unit of the repeats."""

    low: float
    median: float
    high: float
    coverage: float
    """The probability that the interval contains the true median."""

    def at_least(self, share: float = LEAST) -> Interval:
        """Return the interval, widened to ``share`` of its median to each side if it is narrower."""
        low, high = self.median / (1 + share), self.median * (1 + share)
        return self._replace(low=min(low, self.low), high=max(high, self.high))


def interval(repeats: Sequence[float]) -> Interval | None:
    """Return the interval of the median of ``repeats``; None if there are fewer than five."""
    count = len(repeats)
    if count < REPEATS_MIN:
        return None
    ordered, rank = sorted(repeats), _rank(count)
    return Interval(ordered[rank - 1], median(ordered), ordered[count - rank], coverage(count, rank))


_STUDENT_T = {3: 4.303, 4: 3.182}
"""The 97.5 % quantiles of Student's t with one degree of freedom less than there are repeats.

Source: NIST/SEMATECH, "e-Handbook of Statistical Methods", section 1.3.6.7.2.
"""


def ratio_ends(repeats: Sequence[float]) -> Interval | None:
    """Return the interval of the median of ratios; None if there are fewer than three.

    It is that of a signed-rank test of their logarithms, which takes them to lie alike on both sides of the true one.
    Order statistics need half as many repeats again for an interval as narrow. For five repeats both are the lowest to
    the highest. Three or four are too few: their logarithms are taken as normal, and the interval is Student's.
    """
    count = len(repeats)
    if count < min(_STUDENT_T) or min(repeats) <= 0:
        return None
    logs, middle = np.log(repeats), median(repeats)
    if count in _STUDENT_T:
        centre, half = float(logs.mean()), _STUDENT_T[count] * float(logs.std(ddof=1)) / count**0.5
        return Interval(exp(centre - half), middle, exp(centre + half), CONFIDENCE)
    rank = signed_rank(count, CONFIDENCE)
    if not rank:
        return interval(repeats)
    means = sorted(pair_means(logs).tolist())
    return Interval(min(exp(means[rank - 1]), middle), middle, max(exp(means[-rank]), middle), CONFIDENCE)


def _rank(count: int) -> int:
    return max([k for k in range(1, count // 2 + 1) if coverage(count, k) >= CONFIDENCE], default=1)


def ratio_interval(
    above: Sequence[float],
    below: Sequence[float],
    seed: int,
    confidence: float = CONFIDENCE,
    deviations: Sequence[float] = (),
) -> Interval:
    """Return the ratio of the medians of two groups of repeats, ``above`` over ``below``, with its interval.

    It is the percentile bootstrap: the repeats of each group are drawn again, with replacement, 20,000 times. A few
    repeats cannot give a high confidence. So as many are also drawn from ``deviations`` (``log_deviations``) of many
    groups, and the interval covers both. Source: B. Efron, R. J. Tibshirani, "An Introduction to the Bootstrap",
    sections 9.4 and 13.3.
    """
    random = np.random.default_rng(seed)
    ratio, tail = median(above) / median(below), (1 - confidence) / 2

    def medians(drawn_from: Sequence[float], count: int) -> Any:
        # As np.median along this axis, in half its time: the rows are short.
        ordered = np.sort(random.choice(np.asarray(drawn_from, float), (_RESAMPLES, count)), axis=1)
        return (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2

    samples = [medians(above, len(above)) / medians(below, len(below))]
    if deviations:
        samples.append(ratio * np.exp(medians(deviations, len(above)) - medians(deviations, len(below))))
    ends = [np.quantile(ratios, (tail, 1 - tail)) for ratios in samples]
    return Interval(float(min(low for low, _ in ends)), ratio, float(max(high for _, high in ends)), confidence)


def log_deviations(groups: Iterable[Sequence[float]]) -> list[float]:
    """Return how far each repeat is from its group's mean, in logarithms, of all groups together.

    They are scaled up, because a mean of few repeats lies nearer to them than the true one.
    """
    deviations: list[float] = []
    for repeats in groups:
        logs = np.log(np.asarray(repeats, float))
        deviations += ((logs - logs.mean()) * (len(repeats) / (len(repeats) - 1)) ** 0.5).tolist()
    return deviations


def columns(figure_name: str) -> tuple[str, str]:
    """Return the names under which a figure keeps the ends of the interval of one of its medians."""
    return f"{figure_name}_from", f"{figure_name}_to"


def rounds_column(name: str) -> str:
    """Return the name under which a figure keeps the values of one of its columns by round, as JSON."""
    return f"{name}_rounds"


def rounds(figure: Mapping[str, Any], name: str) -> dict[int, float]:
    """Return the values of a column by the number of the round; none if the figure has none."""
    by_round = json.loads(figure.get(rounds_column(name)) or "{}")
    return {int(number): value for number, value in by_round.items()}


def with_interval(figure: Mapping[str, Any], name: str, shown: Callable[[float | None], str], unit: str = "") -> str:
    """Return a median as text, with its interval in brackets if the figure has one that is wider than its digits."""
    low, high = (shown(figure.get(column)) for column in columns(name))
    middle = f"{shown(figure.get(name))}{unit}"
    return middle if low == high else f"{middle} ({low} to {high})"


def coverage(count: int, rank: int) -> float:
    """Return the probability that the true median is between the ``rank``-th lowest and highest of ``count`` values."""
    outside: int = sum(comb(count, below) for below in range(rank))
    return float(1 - 2 * outside / 2**count)
