"""Each verdict on what a fault has left is given where it belongs: a broken observation for every one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.checkers.prefix import Found, PrefixFinding, Promised, Remains, check_prefix, demand, promised

MODELS = [{}, {b"a": b"1"}, {b"a": b"2", b"b": b"2"}, {b"b": b"3"}, {b"b": b"4"}]
GIVEN = {
    b"a": [(0, None), (1, b"1"), (2, b"2"), (3, None)],
    b"b": [(0, None), (2, b"2"), (3, b"3"), (4, b"4")],
}
ADDED = {b"later": b"x"}
TOLD = Promised(acknowledged=2, attempted=3)


def seen(number: int, **changed: Any) -> Remains:
    """The result of a verifier that found commit ``number``, all in order except for the fields ``changed``."""
    state = MODELS[number]
    whole = Remains(state, number, number, added=ADDED, later={**state, **ADDED}, wanted_number=3, restored_offset=3)
    whole = replace(whole, added_number=9, later_offset=9, later_position=9)
    return replace(whole, **changed)


def verdict_on(
    remains: Remains, *, level: str = "DISK", fault: str = "kill", promises: Promised = TOLD
) -> PrefixFinding:
    return check_prefix(demand(level, fault), promises, remains, MODELS, GIVEN)


@pytest.mark.parametrize("number", [2, 3])
def test_a_commit_from_the_acknowledged_to_the_attempted_one_is_valid(number: int) -> None:
    assert verdict_on(seen(number)) == (Found.VALID, number, True, "", "")


def test_an_empty_store_without_offsets_is_commit_zero() -> None:
    assert verdict_on(seen(0, offset=None, position=None), promises=Promised()).found is Found.VALID


DETECTED = {
    "state": None,
    "later": {**MODELS[3], **ADDED},
    "error": "StoreCorruptedError",
    "wanted": MODELS[3],
    "restored": MODELS[3],
}
BROKEN: list[tuple[Found, dict[str, Any]]] = [
    (Found.TORN, {"state": {b"a": b"1", b"b": b"2"}}),
    (Found.TORN, {"offset": 3}),
    (Found.TORN, {"position": 3}),
    (Found.TORN, {"offset": None}),
    (Found.PHANTOM, {"state": {b"a": b"nobody wrote this"}}),
    (Found.PHANTOM, {"state": {b"nobody": b"2"}}),
    (Found.PHANTOM, {"state": {b"b": b"4", b"a": b"2"}}),
    (Found.HANGING, {"ending": "deadline"}),
    (Found.DEADLY, {"ending": "signal 11"}),
    (Found.LEAKED_EXCEPTION, {"leaked": "OSError from close"}),
    (Found.REFUSED, {"state": None, "error": "StoreUnavailableError"}),
    (Found.UNUSABLE, {"later": MODELS[2]}),
    (Found.UNUSABLE, {"later": None, "error": "CommitFailedError"}),
    (Found.UNRESTORED, {**DETECTED, "restored": MODELS[2]}),
    (Found.UNRESTORED, {**DETECTED, "restored": None}),
    (Found.UNRESTORED, {**DETECTED, "restored_offset": 2}),
    (Found.UNUSABLE, {**DETECTED, "later": None}),
    (Found.UNUSABLE, {**DETECTED, "later": {**MODELS[2], **ADDED}}),
    (Found.UNUSABLE, {**DETECTED, "later_offset": 3}),
    (Found.UNUSABLE, {"later_offset": 2}),
    (Found.UNUSABLE, {"later_position": None}),
    (Found.DETECTED, DETECTED),
    (Found.HARNESS_ERROR, {"trouble": "the verifier raised"}),
    (Found.HARNESS_ERROR, {"state": None}),
]


@pytest.mark.parametrize(("found", "changed"), BROKEN)
def test_each_wrong_observation_gets_its_anomaly_and_breaks_the_promise(found: Found, changed: dict[str, Any]) -> None:
    verdict = verdict_on(seen(2, **changed))
    assert (verdict.found, verdict.expected) == (found, False)
    assert verdict.detail


def test_every_verdict_has_an_observation_that_leads_to_it() -> None:
    assert {found for found, _ in BROKEN} | {Found.VALID, Found.LOST} == set(Found)


def test_a_commit_without_an_attempt_is_a_phantom() -> None:
    assert verdict_on(seen(4)) == (Found.PHANTOM, 4, False, "commit 4; 3 was the last attempted", "")


@pytest.mark.parametrize(
    ("level", "fault", "found"),
    [
        ("DISK", "kill", Found.LOST),
        ("DISK", "error", Found.LOST),
        ("DISK", "power", Found.LOST),
        ("PROCESS", "kill", Found.LOST),
        ("PROCESS", "error", Found.LOST),
        ("PROCESS", "power", Found.VALID),
        ("CHANGELOG", "kill", Found.VALID),
        ("CHANGELOG", "power", Found.VALID),
        ("DISK", "damage", Found.LOST),
        ("CHANGELOG", "damage", Found.LOST),
    ],
)
def test_an_earlier_commit_is_lost_only_where_the_level_keeps_it(level: str, fault: str, found: Found) -> None:
    verdict = verdict_on(seen(1), level=level, fault=fault)
    assert (verdict.found, verdict.number, verdict.expected) == (found, 1, found is Found.VALID)


@pytest.mark.parametrize(
    ("level", "fault", "enough"),
    [
        ("DISK", "power", False),
        ("DISK", "damage", True),
        ("PROCESS", "kill", False),
        ("PROCESS", "power", True),
        ("CHANGELOG", "kill", True),
    ],
)
def test_detection_is_enough_where_the_level_does_not_keep(level: str, fault: str, enough: bool) -> None:
    verdict = verdict_on(seen(2, **DETECTED), level=level, fault=fault)
    assert (verdict.found, verdict.expected) == (Found.DETECTED, enough)


@pytest.mark.parametrize("level", ["CHANGELOG", "PROCESS", "DISK"])
def test_a_torn_state_is_wrong_at_every_level(level: str) -> None:
    assert not verdict_on(seen(2, offset=1), level=level, fault="power").expected


DIRECT = demand("DISK", "kill", transactional=False)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({b"a": b"2", b"b": b"2"}, Found.VALID),
        ({b"b": b"4"}, Found.VALID),
        ({b"a": b"2", b"b": b"4"}, Found.VALID),
        ({b"a": b"1", b"b": b"2"}, Found.LOST),
        ({b"a": b"2"}, Found.LOST),
        ({b"a": b"other", b"b": b"2"}, Found.PHANTOM),
    ],
)
def test_a_direct_store_is_judged_key_by_key(state: dict[bytes, bytes], found: Found) -> None:
    remains = Remains(state=state, added=ADDED, later={**state, **ADDED})
    assert check_prefix(DIRECT, TOLD, remains, MODELS, GIVEN).found is found


def test_notes_add_up_to_what_was_promised() -> None:
    assert promised(["open 0", "attempt 1", "ack 1", "attempt 2"], keeps=True) == Promised(1, 2)
    assert promised([], keeps=True) == Promised()


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        (["attempt 1", "ack 1", "open 0"], Found.LOST),
        (["attempt 1", "open 2"], Found.PHANTOM),
        (["attempt 1", "visible commit 1"], Found.PHANTOM),
        (["leaked OSError"], Found.LEAKED_EXCEPTION),
    ],
)
def test_what_was_wrong_while_the_writer_lived_is_the_verdict(notes: list[str], found: Found) -> None:
    promises = promised(notes, keeps=True)
    assert verdict_on(seen(2), promises=promises).found is found


def test_a_reopened_store_may_be_behind_where_the_level_keeps_nothing() -> None:
    assert promised(["attempt 1", "ack 1", "open 0"], keeps=False) == Promised(0, 0)


def test_an_unknown_note_is_never_a_promise() -> None:
    with pytest.raises(ValueError):
        promised(["acknowledged 3"], keeps=True)


def test_trouble_of_the_harness_is_never_a_find() -> None:
    promises = Promised(trouble="the writer was killed from outside")
    assert verdict_on(seen(2, offset=3), promises=promises).found is Found.HARNESS_ERROR
