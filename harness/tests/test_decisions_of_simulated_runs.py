"""Picks of runs whose true medians are known, with the noise of recorded rounds: how many are wrong, how many decided.

Each check must fail for a decision that is bolder than that of ``harness.report.decision``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from harness.report import decision
from harness.report.decision import INDIFFERENCE
from harness.report.figures import rounds_column
from harness.tests.record_rounds import recording
from harness.tests.simulated_runs import OPENINGS, Values, drawn_contests, is_wrong, noise, recorded, true_medians

NEEDS = 8
RECORDINGS = [
    name if name == "idle" else pytest.param(name, marks=pytest.mark.long) for name in sorted(recorded()["recordings"])
]
ROUNDS = [3, 5, 8]
MANY = [pytest.param(rounds, 300, marks=pytest.mark.long) for rounds in ROUNDS]
Truth = Mapping[str, Values]


@dataclass
class Tally:
    """The picks of some runs. ``decided`` has the number of decided needs of each, out of eight."""

    picks: int = 0
    wrong_picks: int = 0
    wrong_runs: int = 0
    decided: list[int] = field(default_factory=list)


def tally(
    recording: str, rounds: int, runs: int, truth_of: Callable[[Random], Truth], openings: int = OPENINGS
) -> Tally:
    """Draw runs. The seed is the number of rounds."""
    random, deviations, result = Random(rounds), noise(recording), Tally()
    for _ in range(runs):
        truth = truth_of(random)
        found = drawn_contests(truth, deviations, rounds, random, openings)
        assert len(found) == NEEDS
        decided = [contest for contest in found if contest.ranking is not None and contest.ranking.is_decided]
        wrong = sum(is_wrong(contest, truth) for contest in decided)
        result.picks += len(decided)
        result.wrong_picks += wrong
        result.wrong_runs += wrong > 0
        result.decided.append(len(decided))
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
    result = tally("idle", rounds, runs, just_apart, openings=1)
    assert result.picks > 5 * runs
    assert result.wrong_picks < 0.01 * result.picks


def test_three_rounds_of_an_idle_machine_decide_six_of_eight_needs() -> None:
    """The other two, tail latency and the time to open, need more rounds: their best rivals are nearly equal."""
    assert sum(each >= 6 for each in tally("idle", 3, 30, as_recorded).decided) > 20


@pytest.mark.parametrize("recording", RECORDINGS)
def test_eight_rounds_decide_seven_of_eight_needs(recording: str) -> None:
    """A default bench makes about so many, of what is not decided yet."""
    assert sum(each >= 7 for each in tally(recording, 8, 20, as_recorded).decided) >= 19


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"),
    [("CONFIDENCE", 0.8), ("_split_confidence", lambda intervals: decision.CONFIDENCE), ("INDIFFERENCE", 0.2)],
    ids=["with a confidence of 80 %", "for one interval instead of all", "with twice the indifference"],
)
def test_a_bolder_decision_is_detected(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, name, value)
    result = tally("idle", 3, 300, just_apart, openings=1)
    assert result.wrong_picks > 0.01 * result.picks


def test_without_indifference_few_needs_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "INDIFFERENCE", 0.0)
    assert max(tally("idle", 3, 15, as_recorded).decided) < 6


def test_a_recording_has_the_rivals_of_the_rounds_that_have_measured_all() -> None:
    def figure(kind: str, backend: str, **values: dict[int, float]) -> dict[str, Any]:
        by_round = {rounds_column(name): json.dumps(each) for name, each in values.items()}
        return {
            "kind": kind,
            "backend": backend,
            "durability": "DISK",
            "records_per_commit": 9,
            "records": 7,
            **by_round,
        }

    figures = {
        "throughput": [
            figure("throughput", "a", records_per_s={0: 1.0, 1: 2.0}, bytes_on_disk={0: 5.0, 1: 6.0}),
            figure("throughput", "b", records_per_s={0: 3.0, 1: 4.0}, bytes_on_disk={1: 7.0}),
            figure("throughput", "baseline", records_per_s={0: 9.0}, bytes_on_disk={0: 9.0}),
        ],
        "opening": [figure("opening", "a", ready_s={0: 0.25})],
    }
    assert recording(figures, ["a", "b"]) == {
        "DISK 9": [{"records_per_s": {"a": 2.0, "b": 4.0}, "bytes_on_disk": {"a": 6.0, "b": 7.0}}],
        "opening DISK 7": [{"ready_s": {"a": 0.25}}],
    }
