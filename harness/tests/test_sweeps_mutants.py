"""The sweeps see what they are there to see: mutants are convicted by the fault they belong to, and by no other."""

from __future__ import annotations

import pytest

from harness.checkers.prefix import Found, Remains
from harness.sweeps.case import VARIANTS, to_json
from harness.sweeps.conviction import case_of, convict
from harness.sweeps.gate import is_wrong
from harness.sweeps.mutants import MUTANTS, build_in
from harness.sweeps.plan import Convicted
from harness.sweeps.slices import Slice, explore
from harness.sweeps.subjects import CHECKPOINT
from harness.sweeps.workshop import Workshop
from stores.errors import ConfigError

SEED = 3


def test_every_mutant_has_a_subject_and_a_fault_that_exists() -> None:
    for name, mutant in MUTANTS.items():
        assert mutant.subjects(), name
        assert mutant.fault in VARIANTS
        assert not mutant.variant or mutant.variant in VARIANTS[mutant.fault]


RESULTS: dict[str, set[Found]] = {
    "no-sync": {Found.LOST},
    "early-acknowledgement": {Found.LOST},
    "offsets-before": {Found.TORN},
    "offsets-after": {Found.TORN},
    "write-per-key": {Found.TORN},
    "unsynced-marker": {Found.TORN, Found.NOTICED},
    "unsynced-marker-folder": {Found.TORN},
    "marker-removed-early": {Found.LOST, Found.TORN},
    "decided-before-seal": {Found.NOTICED},
    "offsets-before-copy": {Found.TORN},
    "unsynced-spill": {Found.NOTICED},
    "unsynced-spill-folders": {Found.NOTICED},
    "swallowed-error": {Found.LOST, Found.TORN, Found.PHANTOM},
    "unsynced-rename": {Found.LOST},
    "checkpoint-in-place": {Found.NOTICED},
    "unmarked-creation": {Found.NOTICED},
    "unsynced-store-name": {Found.LOST},
    "trusted-log": {Found.LOST},
    "unchecked-record": {Found.PHANTOM},
    "unchecked-checkpoint": {Found.PHANTOM},
    "trusted-meta-pages": {Found.LOST},
    "migration-noted-first": {Found.PHANTOM, Found.TORN},
    "adopted-before-import": {Found.TORN, Found.NOTICED},
    "removed-in-place": {Found.PHANTOM, Found.TORN},
    "unsynced-process-id": {Found.PHANTOM},
}
"""What each mutant is found out by."""
QUICKEST = dict.fromkeys(("unsynced-spill", "unsynced-spill-folders"), "lmdb-indexed-batch")
"""The subject in which it takes the fewest states, where that is not the last one."""


def test_every_mutant_is_tried_here() -> None:
    assert set(RESULTS) == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_convicted_by_its_fault(mutant: str) -> None:
    conviction = convict(mutant, QUICKEST.get(mutant, MUTANTS[mutant].subjects()[-1]), SEED, points_max=60)
    assert conviction.row is not None
    assert conviction.row["result"] in RESULTS[mutant]
    assert conviction.states >= 1


def test_kills_can_not_see_that_nothing_is_synced() -> None:
    subject = MUTANTS["no-sync"].subjects()[-1]
    conviction = convict("no-sync", subject, SEED, fault="kill", points_max=12)
    assert conviction.row is None
    assert conviction.states == 12


@pytest.mark.parametrize("fault", ["power", "kill"])
def test_where_no_judge_gets_to_a_verdict_nothing_is_shown_about_a_mutant(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workshop, "look", lambda *given, **named: Remains(trouble="died"))
    wanted = Convicted("unsynced-rename", CHECKPOINT, fault, SEED, found=fault == "power", points_max=4)
    (row,) = explore(Slice(0, "", SEED, to_json(case_of(wanted.mutant, CHECKPOINT, fault)), convicted=wanted))
    assert (row["result"], row["expected"], row["states"]) == (Found.HARNESS_ERROR, False, 0)
    assert is_wrong(row)


def test_a_mutant_is_judged_at_the_level_that_promises_most() -> None:
    assert {case_of(name, mutant.subjects()[0]).level for name, mutant in MUTANTS.items()} == {"DISK"}


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(ConfigError):
        build_in("no-such", "lmdb-indexed-batch")
