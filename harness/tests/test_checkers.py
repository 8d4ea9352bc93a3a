"""Each checker passes sound evidence and detects the damage that it exists for. No process runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.checkers.evidence import (
    Acknowledged,
    Change,
    Evidence,
    Expected,
    FellBack,
    FoundStore,
    LaterProcess,
    Log,
    LogRecord,
    RestoredStore,
    Result,
    State,
    Verdict,
    worst,
)
from harness.experiments.crash.run import CHECKERS

RECORDS = (
    LogRecord(0, b"a", b"0"),
    LogRecord(1, b"b", b"0"),
    LogRecord(3, b"a", b"1"),
    LogRecord(4, b"b", None),
)
CHANGES = (
    Change(0, "left", b"a", b"0"),
    Change(0, "left", b"b", b"0"),
    Change(1, "left", b"a", b"1"),
    Change(1, "left", b"b", None),
    Change(2, "left", b"c", b"2"),
)
OUTPUTS = ((b"0", b"x"), (b"1", b"y"), (b"2", b"z"))
FIRST: State = {b"a": b"0", b"b": b"0"}
SECOND: State = {b"a": b"1"}
THIRD: State = {b"a": b"1", b"c": b"2"}
LAST = LogRecord(6, b"c", b"2")


def found(state: State = FIRST, committed_offset: int | None = 1, **claims: bool) -> FoundStore:
    defaults = {"transactional": True, "manages_offsets": True, "persistent": True}
    return FoundStore(state, committed_offset, **(defaults | claims))


def evidence(
    found_store: FoundStore | None = None, restored: RestoredStore | None = None, **changed: object
) -> Evidence:
    """A process was killed between changelog and store: the log has two inputs, of which one was acknowledged."""
    life = LaterProcess(
        Log({"left": RECORDS}, (), 2),
        (Acknowledged(1, {"left": 2}),),
        {"left": found_store or found()},
        {"left": restored or RestoredStore(SECOND, 2, False)},
    )
    outputs = tuple(LogRecord(at, key, value) for at, (key, value) in enumerate(OUTPUTS))
    sound = Evidence(
        exactly_once=True,
        durability="PROCESS",
        expected=Expected(3, CHANGES, OUTPUTS),
        lives=(life,),
        final={"left": THIRD},
        final_log=Log({"left": (*RECORDS, LAST)}, outputs, 3),
    )
    return replace(sound, **changed)  # type: ignore[arg-type]


def results(given: Evidence) -> dict[str, Result]:
    return {name: check(given).result for name, check in CHECKERS.items()}


def anomalies(given: Evidence) -> set[str]:
    return {name for name, result in results(given).items() if result is Result.ANOMALY}


def test_sound_evidence_is_valid_to_every_checker() -> None:
    assert set(results(evidence()).values()) == {Result.VALID}


def test_a_state_that_is_ahead_of_its_committed_offset_is_not_atomic() -> None:
    assert anomalies(evidence(found(SECOND, 1))) == {"atomicity"}


def test_half_of_a_commit_is_not_atomic() -> None:
    assert "atomicity" in anomalies(evidence(found({b"a": b"1", b"b": b"0"}, 1)))


def test_a_committed_offset_inside_a_commit_is_not_atomic() -> None:
    assert "atomicity" in anomalies(evidence(found({b"a": b"1", b"b": b"0"}, 3)))


def test_a_store_may_be_inside_a_commit_once_a_restore_was_cut_short() -> None:
    sound = evidence(found({b"a": b"1", b"b": b"0"}, 3), RestoredStore(SECOND, 1, False))
    cut_short = replace(sound.lives[0], found={"left": found()})
    assert anomalies(replace(sound, lives=(cut_short, *sound.lives))) == set()


def test_a_store_that_leads_its_changelog_is_not_atomic() -> None:
    assert anomalies(evidence(found(SECOND, 6), RestoredStore(SECOND, 0, False))) == {"atomicity"}


def test_a_store_that_keeps_nothing_must_come_back_empty() -> None:
    memory = {"persistent": False}
    assert anomalies(evidence(found({}, None, **memory), RestoredStore(SECOND, 4, False))) == set()
    assert "atomicity" in anomalies(evidence(found(FIRST, 1, **memory), RestoredStore(SECOND, 2, False)))


def test_a_position_that_the_state_does_not_reflect_is_not_atomic() -> None:
    assert anomalies(evidence(replace(found(), position=0))) == set()
    assert anomalies(evidence(replace(found(), position=1))) == {"atomicity"}


def test_a_store_that_lost_an_acknowledged_commit_is_not_durable() -> None:
    """Source: KIP-892, ``commit``, at the levels that promise it."""
    lost = evidence(found({}, None), RestoredStore(SECOND, 2, False))
    assert anomalies(lost) == {"durability"}
    assert anomalies(replace(lost, durability="DISK")) == {"durability"}
    assert anomalies(replace(lost, durability="CHANGELOG")) == set()


def test_a_log_that_lost_acknowledged_input_is_not_durable_at_any_level() -> None:
    sound = evidence()
    life = replace(sound.lives[0], acknowledged=(Acknowledged(3, {"left": 2}),))
    assert anomalies(replace(sound, lives=(life,), durability="CHANGELOG")) == {"durability"}


def test_a_write_that_nothing_committed_is_detected() -> None:
    assert "uncommitted" in anomalies(evidence(found({**FIRST, b"c": b"2"}, 1)))


def test_a_direct_store_may_hold_uncommitted_writes_until_it_is_restored() -> None:
    """Source: KAFKA-20685, a background flush before an abort."""
    direct = {"transactional": False, "manages_offsets": False}
    dirty = found({**FIRST, b"c": b"2"}, None, **direct)
    assert anomalies(evidence(dirty, RestoredStore(SECOND, 4, True))) == set()
    assert anomalies(evidence(dirty, RestoredStore(THIRD, 4, False))) == {"uncommitted", "convergence"}


def test_a_restore_that_skips_a_record_does_not_converge() -> None:
    assert anomalies(evidence(restored=RestoredStore({b"a": b"1", b"b": b"0"}, 1, False))) == {"convergence"}


def test_a_final_state_that_the_input_does_not_lead_to_does_not_converge() -> None:
    assert anomalies(evidence(final={"left": SECOND})) == {"convergence"}


def test_input_that_was_never_processed_does_not_converge() -> None:
    short = replace(evidence().final_log, next_input=2)
    assert anomalies(evidence(final_log=short)) == {"convergence"}


@pytest.mark.parametrize("picked", [(0, 1), (0, 1, 2, 2), (0, 2, 1), ()])
def test_outputs_that_are_lost_doubled_or_out_of_order_are_detected(picked: tuple[int, ...]) -> None:
    """Source: KIP-129, exactly once."""
    wrong = tuple(LogRecord(at, *OUTPUTS[number]) for at, number in enumerate(picked))
    assert anomalies(evidence(final_log=replace(evidence().final_log, outputs=wrong))) == {"outputs"}


def test_at_least_once_may_repeat_outputs_but_not_lose_one() -> None:
    """Source: KIP-129, at least once."""
    sound = evidence(exactly_once=False)
    repeated = tuple(LogRecord(at, *OUTPUTS[number]) for at, number in enumerate((0, 1, 1, 2)))
    lost = tuple(LogRecord(at, *OUTPUTS[number]) for at, number in enumerate((0, 2)))
    assert anomalies(replace(sound, final_log=replace(sound.final_log, outputs=repeated))) == set()
    assert anomalies(replace(sound, final_log=replace(sound.final_log, outputs=lost))) == {"outputs"}


def test_a_restore_that_replays_more_than_is_in_doubt_is_detected() -> None:
    """Source: KIP-892, "Motivation"."""
    assert anomalies(evidence(restored=RestoredStore(SECOND, 4, False))) == {"bounded_restore"}


def test_a_store_that_lost_an_acknowledged_commit_may_not_make_up_for_it_by_replaying_more() -> None:
    assert "bounded_restore" in anomalies(evidence(found({}, None), RestoredStore(SECOND, 4, False)))


def test_a_transactional_store_that_is_wiped_is_detected() -> None:
    """Source: KIP-844, transactional stores keep their data after a crash."""
    assert anomalies(evidence(found({}, None), RestoredStore(SECOND, 4, True), durability="CHANGELOG")) == {
        "bounded_restore"
    }


def test_missing_evidence_is_unknown_and_never_valid() -> None:
    cut = evidence(missing="the process never came to its end")
    assert set(results(cut).values()) == {Result.UNKNOWN}


def test_an_anomaly_counts_even_where_evidence_is_missing() -> None:
    assert anomalies(evidence(found(SECOND, 1), missing="the process never came to its end")) == {"atomicity"}


def test_anomaly_outweighs_unknown_which_outweighs_valid() -> None:
    verdicts = [
        Verdict("one", Result.VALID),
        Verdict("two", Result.UNKNOWN, "why"),
        Verdict("three", Result.ANOMALY, "what"),
    ]
    assert worst(verdicts) is Result.ANOMALY
    assert worst(verdicts[:2]) is Result.UNKNOWN
    assert worst(verdicts[:1]) is Result.VALID
    assert worst([]) is Result.UNKNOWN


def fell_back(state: State = FIRST, next_input: int = 1, *, wiped: bool = False, reason: str = "") -> Evidence:
    """A process had one commit acknowledged, and returned to it."""
    kept = RestoredStore(state, 0, wiped, reason)
    return replace(evidence(), fallen_back=(FellBack(next_input, 1, {"left": kept}, frozenset({"left"})),))


def test_a_return_to_the_last_commit_is_valid_and_to_any_other_state_is_not() -> None:
    """Source: KIP-892, "Error Handling"."""
    assert anomalies(fell_back()) == set()
    assert anomalies(fell_back(SECOND, 2)) == set()
    for wrong in (fell_back(SECOND), fell_back({}), fell_back({}, 0), fell_back(FIRST, 2)):
        assert anomalies(wrong) == {"fallback"}


def test_a_store_that_could_have_been_rolled_back_must_not_be_wiped() -> None:
    """Source: KIP-892, "Error Handling", 3."""
    wiped = fell_back(wiped=True, reason="it was late")
    assert anomalies(wiped) == {"fallback"}
    mixed = replace(wiped.fallen_back[0], transactional=frozenset())
    assert anomalies(replace(wiped, fallen_back=(mixed,))) == set()
    untold = replace(mixed, stores=fell_back(wiped=True).fallen_back[0].stores)
    assert anomalies(replace(wiped, fallen_back=(untold,))) == {"fallback"}


def test_under_at_least_once_a_state_may_be_ahead_of_the_input() -> None:
    assert anomalies(replace(fell_back(SECOND), exactly_once=False)) == set()


def test_a_store_that_its_changelog_no_longer_reaches_must_be_wiped_with_a_reason_and_restored_from_what_is_left() -> (
    None
):
    """Source: KIP-892, "Error Handling", 2."""

    def left_behind(restored: RestoredStore) -> Evidence:
        sound = evidence(restored=restored)
        return replace(sound, lives=(replace(sound.lives[0], truncated=True),))

    assert anomalies(left_behind(RestoredStore(SECOND, 1, True, "out of range"))) == set()
    for wrong in (
        RestoredStore(SECOND, 1, False),
        RestoredStore(SECOND, 1, True),
        RestoredStore(SECOND, 2, True, "out of range"),
    ):
        assert anomalies(left_behind(wrong)) == {"bounded_restore"}
    assert anomalies(evidence(restored=RestoredStore(SECOND, 1, True, "out of range"))) == {"bounded_restore"}
