"""Cases that thresholds rest on are measured first, side by side, and more often while their ratio is not clear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from harness.experiment import Request
from harness.experiments.microbench.case import (
    EXPIRE,
    INDEXED,
    Case,
    commits_of,
)
from harness.experiments.microbench.claim import RatioClaim, cases, claims, limits
from harness.experiments.microbench.claim import rounds_of as rounds_of_case
from harness.experiments.microbench.experiment import Microbench, MicrobenchTrial
from harness.experiments.microbench.run import _compared, _plan, planned
from harness.tests.made_up_rows import timed_rounds


def test_what_is_compared_is_measured_first_side_by_side_and_five_times() -> None:
    chosen = cases("default")
    plan = _plan(chosen, (5, 5, 1), Random(1))
    order = [(case, batch.repeat) for batch in plan for case in batch.cases]
    assert len(set(order)) == len(order)
    assert {case for case, _ in order} == set(chosen)
    gates, in_open_claims = _of_thresholds(chosen), _of_claims(chosen, with_threshold=False)
    first, second = 5 * len(gates), 5 * len(gates) + 5 * len(in_open_claims)
    assert Counter(case for case, _ in order[:first]) == Counter(dict.fromkeys(gates, 5))
    assert Counter(case for case, _ in order[first:second]) == Counter(dict.fromkeys(in_open_claims, 5))
    assert Counter(case for case, _ in order[second:]) == Counter(set(chosen) - gates - in_open_claims)
    assert [batch.for_thresholds for batch in plan for _ in batch.cases] == [
        place < first for place in range(len(order))
    ]
    for claim in claims():
        both = {claim.subject, claim.yardstick}
        if both <= set(chosen):
            part = gates if claim.at_least else in_open_claims
            group = _group(claim.subject, [case for case in chosen if case in part])
            own = [batch for batch in plan if both & set(batch.cases) and batch.for_thresholds is bool(claim.at_least)]
            assert len(own) == 5
            for batch in own:
                places = [batch.cases.index(case) for case in group]
                assert max(places) - min(places) == len(places) - 1
    assert _plan(chosen, (5, 5, 1), Random(1)) == plan
    assert _plan(chosen, (5, 5, 1), Random(2)) != plan
    assert len({batch.cases for batch in plan[:5]}) > 1


def test_three_repeats_of_a_batch_come_one_after_the_other_and_further_ones_in_rounds() -> None:
    plan = planned("default", 1)
    assert [batch.repeat for batch in plan[:6]] == [0, 1, 2] * 2
    assert set(plan[0].cases) == set(plan[2].cases)
    assert not set(plan[0].cases) & set(plan[3].cases)
    fourth = next(place for place, batch in enumerate(plan) if batch.repeat == 3)
    assert set(plan[fourth].cases) == set(plan[0].cases)
    assert set(plan[fourth + 1].cases) == set(plan[3].cases)


def test_the_cases_of_thresholds_come_first_in_all_their_repeats() -> None:
    plan = planned("default", 1)
    gates = _of_thresholds(cases("default"))
    last = next(place for place, batch in enumerate(plan) if not set(batch.cases) <= gates)
    measured = [case for batch in plan[:last] for case in batch.cases]
    assert Counter(measured) == Counter(dict.fromkeys(gates, 5))


@pytest.mark.parametrize(("profile", "most"), [("default", 5), ("night", 15)])
def test_a_night_has_more_repeats_for_thresholds_and_no_seed_is_that_of_another_night(profile: str, most: int) -> None:
    seeds = [{trial.seed for trial in Microbench().plan(Request(profile, seed=seed))} for seed in (1, 2)]
    assert not seeds[0] & seeds[1]
    repeats = Counter(
        name for trial in Microbench().plan(Request(profile)) if trial.for_thresholds for name in trial.cases
    )
    assert set(repeats.values()) == {most}


def _of_claims(chosen: list[Case], *, with_threshold: bool) -> set[Case]:
    own = [claim for claim in claims() if bool(claim.at_least) is with_threshold]
    return {case for claim in own for case in (claim.subject, claim.yardstick)} & set(chosen)


def _of_thresholds(chosen: list[Case]) -> set[Case]:
    return {limit.subject for limit in limits()} | _of_claims(chosen, with_threshold=True)


CLEAR, NEAR = [2.0, 2.1, 1.9], [0.7, 1.2, 1.6]


def _gated_rounds(ratios_by_claim: Mapping[RatioClaim, list[float]]) -> list[dict[str, Any]]:
    """Rows in which each claim has these ratios to its threshold, and every limit is far from its own."""
    seconds: dict[str, list[float]] = {limit.subject.id: [limit.most_s / 5] * 3 for limit in limits()}
    for claim, of_repeats in ratios_by_claim.items():
        work = claim.subject.records / claim.yardstick.records
        seconds[claim.yardstick.id] = [1.0] * 3
        seconds[claim.subject.id] = [work / (claim.at_least or 1) / ratio for ratio in of_repeats]
    return [{**line, "profile": "night"} for line in timed_rounds(seconds)]


def _trial(repeat: int, *compared: RatioClaim, for_thresholds: bool = True) -> MicrobenchTrial:
    names = [case.id for claim in compared for case in (claim.subject, claim.yardstick)]
    return MicrobenchTrial(tuple(names), "night", 7_000 + repeat, for_thresholds)


def _thresholds(text: str) -> list[RatioClaim]:
    return [claim for claim in claims() if claim.at_least and claim.text.startswith(text)]


def test_only_ratios_that_are_not_clear_are_measured_more_than_three_times() -> None:
    claim, other, _ = _thresholds("get_many and put_many of 1,000 records")
    needed = Microbench().still_needed
    rows = _gated_rounds({claim: NEAR, other: CLEAR})
    assert needed(_trial(2, claim, other), rows) == _trial(2, claim, other)
    assert needed(_trial(3, claim, other), rows) == _trial(3, claim)
    assert needed(_trial(3, claim, other), _gated_rounds({claim: CLEAR, other: CLEAR})) is None
    assert needed(_trial(3, claim, other), _gated_rounds({other: CLEAR})) == _trial(3, claim)
    # A yardstick whose backend is left out has nothing to be compared with.
    alone = replace(_trial(3, claim), cases=(claim.yardstick.id,))
    assert needed(alone, []) is None


def test_a_limit_is_measured_until_it_is_clear() -> None:
    limit, trial = next(limits()), MicrobenchTrial((next(limits()).subject.id,), "night", 7_003, True)
    near = timed_rounds({limit.subject.id: [limit.most_s / ratio for ratio in NEAR]})
    assert Microbench().still_needed(trial, [{**line, "profile": "night"} for line in near]) == trial
    assert Microbench().still_needed(trial, _gated_rounds({})) is None


def test_a_ratio_at_one_level_does_not_stand_for_that_at_another() -> None:
    process, disk = _thresholds("put and commit of 1,000 records, against sorted putmulti")
    rows = _gated_rounds({process: CLEAR, disk: NEAR})
    assert Microbench().still_needed(_trial(3, process, disk), rows) == _trial(3, disk)


@pytest.mark.parametrize("profile", ["default", "night"])
def test_all_ratios_without_a_threshold_keep_all_their_repeats(profile: str) -> None:
    """Some of their cases are those of thresholds as well, which may be clear long before."""
    gates = {claim: CLEAR for claim in claims() if claim.at_least}
    rows = [{**line, "profile": profile} for line in _gated_rounds(gates)]
    planned_trials = Microbench().plan(Request(profile))
    kept = [trial for trial in planned_trials if Microbench().still_needed(trial, rows) == trial]
    measured = {case.id for case in cases(profile)}
    for claim in claims():
        both = {claim.subject.id, claim.yardstick.id}
        if claim.at_least is None and both <= measured:
            assert len({trial.seed for trial in kept if both <= set(trial.cases)}) >= 5, claim.text
    assert [trial.seed % 1_000 for trial in planned_trials if trial not in kept and trial.seed % 1_000 < 3] == []


def test_both_sides_of_a_ratio_have_as_many_rounds() -> None:
    for claim in claims():
        if claim.at_least and claim.subject.suite != EXPIRE:
            rounds = rounds_of_case(claim.subject)
            assert rounds == rounds_of_case(claim.yardstick)
            assert rounds == 12 or claim.subject.rounds
    assert rounds_of_case(commits_of("lmdb-native", 1_000)) == 3
    assert rounds_of_case(commits_of(INDEXED, 200_000)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_cases_over_the_same_staged_records_come_one_after_the_other(seed: int) -> None:
    plan = planned("default", seed)
    fills = [[case.fill for case in batch.cases if case.fill] for batch in plan if batch.repeat == 0]
    for batch in fills:
        changes = sum(before != after for before, after in pairwise(batch))
        assert changes == max(0, len(set(batch)) - 1)


def _group(member: Case, chosen: list[Case]) -> list[Case]:
    return next(group for group in _compared(chosen) if member.id in [case.id for case in group])
