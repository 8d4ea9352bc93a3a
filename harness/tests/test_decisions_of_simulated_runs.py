"""Picks of runs whose true medians are known, with the noise of recorded rounds: how many are wrong, how many decided.

Each check must fail for a decision that is bolder than that of ``harness.report.decision``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import pytest

from harness.report import decision
from harness.report.decision import INDIFFERENCE
from harness.tests.simulated_runs import Values, drawn_contests, is_wrong, noise, recorded, true_medians

NEEDS = 8
RECORDINGS = sorted(recorded()["recordings"])
ROUNDS = [3, 5, 8]
MANY = [pytest.param(rounds, 100, marks=pytest.mark.long) for rounds in ROUNDS]
Truth = Mapping[str, Values]


@dataclass
class Tally:
    """The picks of some runs, of which ``decisive`` decide at least six of eight needs."""

    picks: int = 0
    wrong_picks: int = 0
    wrong_runs: int = 0
    decisive: int = 0


def tally(recording: str, rounds: int, runs: int, truth_of: Callable[[Random], Truth]) -> Tally:
    """Draw runs. The seed is the number of rounds."""
    random, deviations, result = Random(rounds), noise(recording), Tally()
    for _ in range(runs):
        truth = truth_of(random)
        found = drawn_contests(truth, deviations, rounds, random)
        assert len(found) == NEEDS
        decided = [contest for contest in found if contest.ranking is not None and contest.ranking.is_decided]
        wrong = sum(is_wrong(contest, truth) for contest in decided)
        result.picks += len(decided)
        result.wrong_picks += wrong
        result.wrong_runs += wrong > 0
        result.decisive += len(decided) >= NEEDS - 2
    return result


def as_recorded(random: Random) -> Truth:
    return true_medians()


def just_apart(random: Random) -> Truth:
    """The hardest case: by each figure one backend, drawn at random, is just more than 10 % better than all others."""
    more = 1 + INDIFFERENCE + 0.01
    return {
        cell: {
            measure: dict.fromkeys(values, 1.0)
            | {random.choice(sorted(values)): more if measure == "records_per_s" else 1 / more}
            for measure, values in measures.items()
        }
        for cell, measures in true_medians().items()
    }


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize(("rounds", "runs"), [(5, 15), *MANY])
def test_picks_are_wrong_in_less_than_one_run_in_a_hundred(recording: str, rounds: int, runs: int) -> None:
    result = tally(recording, rounds, runs, as_recorded)
    assert result.picks > 3 * runs
    assert result.wrong_runs < 0.01 * runs


@pytest.mark.parametrize(("rounds", "runs"), [(5, 15), *MANY])
def test_less_than_one_pick_in_a_hundred_is_wrong_where_rivals_are_just_apart(rounds: int, runs: int) -> None:
    result = tally("idle", rounds, runs, just_apart)
    assert result.picks > 5 * runs
    assert result.wrong_picks < 0.01 * result.picks


def test_three_rounds_of_an_idle_machine_decide_six_of_eight_needs() -> None:
    """The other two, tail latency and the time to open, need more rounds: their best rivals are nearly equal."""
    assert tally("idle", 3, 30, as_recorded).decisive > 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"),
    [("CONFIDENCE", 0.8), ("_split_confidence", lambda intervals: decision.CONFIDENCE), ("INDIFFERENCE", 0.2)],
    ids=["with a confidence of 80 %", "for one interval instead of all", "with twice the indifference"],
)
def test_a_bolder_decision_is_detected(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, name, value)
    result = tally("idle", 3, 100, just_apart)
    assert result.wrong_picks > 0.01 * result.picks


def test_without_indifference_few_needs_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "INDIFFERENCE", 0.0)
    assert tally("idle", 3, 15, as_recorded).decisive == 0
