"""Runs that are drawn from recorded rounds: the true medians of their rivals are known, their noise is recorded.

``recorded_rounds.json`` says how, when and where its rounds were measured. Each has the values of all backends in one
round of one cell. A drawn round has the deviations that two recorded rounds have for all backends and measures, mixed
at random: what backends have in common in a round stays. What a round has not measured comes from another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import cos, exp, log, pi, sin
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

from harness.experiments.needs import Contest, contests
from harness.report.decision import INDIFFERENCE
from harness.report.figures import Figure, rounds_column

FILE = Path(__file__).with_name("recorded_rounds.json")
OPENINGS = 5
"""The openings in each round of a run."""
Values = Mapping[str, Mapping[str, float]]
"""A value by measure and backend."""
Cells = Mapping[str, Sequence[Values]]
"""The rounds of each cell: of a level and a number of records per commit, or of the opening of stores."""
OPENING = "opening"


@cache
def recorded() -> Any:
    """Return the content of the file."""
    return json.loads(FILE.read_text())


def true_medians() -> dict[str, dict[str, dict[str, float]]]:
    """Return the medians of each cell and measure, of the first recording that has them."""
    cells: dict[str, dict[str, dict[str, float]]] = {}
    for recording in recorded()["recordings"].values():
        for cell, rounds in recording["cells"].items():
            for measure in rounds[0]:
                cells.setdefault(cell, {}).setdefault(measure, _medians(rounds, measure))
    return cells


def _medians(rounds: Sequence[Values], measure: str) -> dict[str, float]:
    return {backend: median(each[measure][backend] for each in rounds) for backend in rounds[0][measure]}


def noise(recording: str) -> list[Values]:
    """Return the deviations of each round from the means of its cell, in logarithms.

    They are scaled up, because a mean of few rounds lies nearer to them than the true one. Measures that a recording
    lacks have the noise of the others.
    """
    own = _rounds(recorded()["recordings"][recording]["cells"])
    measures = {measure for each in own for measure in each}
    others = [
        each for name, of in recorded()["recordings"].items() if name != recording for each in _rounds(of["cells"])
    ]
    more = [{measure: each[measure] for measure in each if measure not in measures} for each in others]
    return own + [each for each in more if each]


def _rounds(cells: Cells) -> list[Values]:
    return [_deviations(rounds, each) for rounds in cells.values() if len(rounds) > 1 for each in rounds]


def _deviations(rounds: Sequence[Values], of: Values) -> Values:
    scale = (len(rounds) / (len(rounds) - 1)) ** 0.5
    return {
        measure: {
            backend: scale * (log(value) - mean(log(each[measure][backend]) for each in rounds))
            for backend, value in values.items()
        }
        for measure, values in of.items()
    }


def drawn_contests(
    truth: Mapping[str, Values], deviations: Sequence[Values], rounds: int, random: Random, openings: int = OPENINGS
) -> list[Contest]:
    """Return the decisions of a run of so many rounds, whose rivals have the medians ``truth``.

    Each round has so many ``openings`` of each store.
    """
    figures: dict[str, list[Figure]] = {"throughput": [], OPENING: [], "crash": []}
    for cell, measures in truth.items():
        kind = OPENING if cell.startswith(OPENING) else "throughput"
        count = rounds * openings if kind == OPENING else rounds
        drawn = [_mixed(measures, deviations, random) for _ in range(count)]
        figures[kind] += [_figure(cell, backend, measures, drawn) for backend in next(iter(measures.values()))]
    return contests(figures, recorded()["backends"])


def _figure(cell: str, backend: str, measures: Values, drawn: Sequence[Values]) -> Figure:
    level, number = cell.removeprefix(f"{OPENING} ").split()
    figure: Figure = {"cell": cell, "backend": backend, "durability": level, "workload": "count", "partitions": 2}
    figure |= {"records": int(number), "records_per_commit": int(number), "repeats": len(drawn), "end_state": "equal"}
    for measure, values in measures.items():
        by_round = {number: values[backend] * exp(each[measure][backend]) for number, each in enumerate(drawn)}
        figure |= {measure: median(by_round.values()), rounds_column(measure): json.dumps(by_round)}
    return figure


def _mixed(measures: Values, deviations: Sequence[Values], random: Random) -> Values:
    """Return the sum of two rounds with weights on a circle: covariances stay, and no two rounds are equal."""
    angle = random.uniform(0, 2 * pi)
    one, other = (_drawn(measures, deviations, random) for _ in range(2))
    return {
        measure: {name: cos(angle) * one[measure][name] + sin(angle) * other[measure][name] for name in values}
        for measure, values in measures.items()
    }


def _drawn(measures: Values, deviations: Sequence[Values], random: Random) -> dict[str, dict[str, float]]:
    """Return the deviations of a round that has most of these measures, completed by those of other rounds."""
    most = max(len(each.keys() & measures.keys()) for each in deviations)
    one = random.choice([each for each in deviations if len(each.keys() & measures.keys()) == most])
    drawn: dict[str, dict[str, float]] = {}
    for measure, values in measures.items():
        pool = [each[measure] for each in deviations if measure in each]
        of_round = one[measure] if measure in one else random.choice(pool)
        drawn[measure] = {
            name: of_round[name] if name in of_round else random.choice([each[name] for each in pool if name in each])
            for name in values
        }
    return drawn


def is_wrong(contest: Contest, truth: Mapping[str, Values]) -> bool:
    """Return True for a pick that a rival truly beats by more than 10 %, or a tie that is truly worse by more."""
    ranking, measure = contest.ranking, contest.need.measure
    if ranking is None or not ranking.is_decided:
        return False
    sign, medians = 1 if measure.more_is_better else -1, truth[contest.figures[0]["cell"]][measure.name]
    names = [figure["backend"] for figure in contest.figures]
    advantages = {name: sign * log(medians[name] / medians[ranking.best]) for name in names}
    zone = log(1 + INDIFFERENCE)
    return max(advantages.values()) > zone or any(advantages[name] < -zone for name in ranking.ties)
