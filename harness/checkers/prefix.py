"""After a fault a store is at one of its commits, from the last acknowledged to the last attempted one.

The promised part of that depends on the durability level and on the fault; ``demand`` defines it in one place.
Source: KIP-892, "Consistency Problem"; KIP-844, ``recover``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from harness.checkers.evidence import State

Given = Mapping[bytes, Sequence[tuple[int, bytes | None]]]
"""Each key's values in order, with the number of the commit that wrote each; (0, None) comes first."""
DETECTING = (
    "StoreCorruptedError",
    "StoreIncompatibleError",
    "StoreTooNewError",
    "TaskCorruptedError",
    "ChangelogError",
    "ChangelogLostError",
)
"""Errors that say that the state cannot be trusted. The caller wipes it and restores it from the changelog."""


class Found(StrEnum):
    """The result of a trial. ``VALID`` keeps every promise; ``DETECTED`` only where detection is enough."""

    VALID = "valid"
    DETECTED = "detected"
    """A typed error said that the state cannot be trusted. After a wipe and a restore the state was correct."""
    LOST = "lost"
    """The state of a commit before the last acknowledged one."""
    TORN = "torn"
    """The state of no commit, or one whose offset or position is that of another commit."""
    PHANTOM = "phantom"
    """Data that no attempted commit had written."""
    HANGING = "hanging"
    """A process did not end before its deadline, twice."""
    DEADLY = "deadly"
    """The process that used the store was killed by a signal that the harness did not send."""
    LEAKED_EXCEPTION = "leaked_exception"
    """The caller got an exception that is not of the library."""
    REFUSED = "refused"
    """A typed error that does not report corruption, although no fault was active any more."""
    UNUSABLE = "unusable"
    """The state was read or restored correctly, but later commits were not kept."""
    UNRESTORED = "unrestored"
    """The corruption was detected, but wiping and restoring did not lead to the restored state."""
    HARNESS_ERROR = "harness_error"
    """The verifier process died, was too late or raised, so there is no verdict."""


@dataclass(frozen=True, slots=True)
class Promised:
    """The acknowledgements to a writer process, in order: commit numbers, 0 for none.

    ``broken`` is an anomaly found while it lived; ``trouble`` is the reason why the harness could not run it.
    """

    acknowledged: int = 0
    attempted: int = 0
    broken: tuple[Found, str] | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Remains:
    """The observations of a verifier process, as plain values; None for those that it did not reach.

    ``offset`` and ``position`` are numbers of commits. ``error`` names one of the library's errors and ``stage`` the
    call that raised it: ``open``, ``read``, ``verify``, ``afterwards``. ``leaked`` is any other exception. ``ending``
    is set if the verifier returned nothing: ``deadline`` or ``signal N``. ``later`` is the state after two more commits
    and a reopening, ``added`` the data of these commits. ``added_number`` is the number of the second one;
    ``later_offset`` and ``later_position`` were read after it.

    ``restored`` is the state after wiping and restoring ``wanted``. ``restored_offset`` is its number, which must be
    ``wanted_number``. In this case too, ``later`` is the state after two more commits.
    """

    state: State | None = None
    offset: int | None = None
    position: int | None = None
    error: str = ""
    error_detail: str = ""
    stage: str = ""
    leaked: str = ""
    ending: str = ""
    trouble: str = ""
    added: State = field(default_factory=dict)
    later: State | None = None
    added_number: int | None = None
    later_offset: int | None = None
    later_position: int | None = None
    wanted: State | None = None
    wanted_number: int | None = None
    restored: State | None = None
    restored_offset: int | None = None


class Demand(NamedTuple):
    """The promises that a store must keep in a case."""

    keeps: bool
    """True if no acknowledged commit may be missing."""
    may_detect: bool
    """True if a typed error at opening is accepted instead of a correct state."""
    transactional: bool = True
    """True if uncommitted writes must not be visible, and data must match its offset."""


class PrefixFinding(NamedTuple):
    """``number`` is the commit that was found, or None; ``expected`` is True if the promises were kept.

    ``detected_at`` is the stage at which corruption was reported: see ``Remains.stage``.
    """

    found: Found
    number: int | None
    expected: bool
    detail: str = ""
    detected_at: str = ""


def breach(found: Found, detail: str, number: int | None = None) -> PrefixFinding:
    """Return the finding that a promise was broken, or that there is no verdict."""
    return PrefixFinding(found, number, False, detail)


def demand(level: str, fault: str, *, transactional: bool = True) -> Demand:
    """Return the promises of a store at ``level`` after ``fault``: kill, error, power or damage.

    DISK keeps every acknowledged commit, PROCESS unless the power is lost, and CHANGELOG never: there an earlier commit
    is accepted, and so is an error that the state cannot be trusted. A store with corruption at rest was closed before.
    It must be correct, or report the corruption, at every level.
    """
    if fault == "damage":
        return Demand(True, True, transactional)
    keeps = level == "DISK" or (level == "PROCESS" and fault != "power")
    return Demand(keeps, not keeps, transactional)


def promised(notes: Sequence[str], *, keeps: bool) -> Promised:
    """Fold a writer's acknowledgement log: ``attempt N``, ``ack N``, ``open N``, ``leaked ...``, ``visible ...``.

    Lines ``of ...`` and ``end`` promise nothing. Raises: ValueError for any other line, so that a garbled one is never
    taken for a promise.
    """
    acknowledged = attempted = 0
    broken: tuple[Found, str] | None = None
    for note in notes:
        kind, _, rest = note.partition(" ")
        if kind == "attempt":
            attempted = int(rest)
        elif kind == "ack":
            acknowledged = int(rest)
        elif kind == "open":
            reached = int(rest)
            if keeps and reached < acknowledged:
                broken = broken or (Found.LOST, f"reopened at commit {reached}, {acknowledged} was acknowledged")
            if reached > attempted:
                broken = broken or (Found.PHANTOM, f"reopened at commit {reached}, {attempted} was the last attempted")
            acknowledged = attempted = reached
        elif kind == "leaked":
            broken = broken or (Found.LEAKED_EXCEPTION, rest)
        elif kind == "visible":
            broken = broken or (Found.PHANTOM, rest)
        elif kind not in ("of", "end"):
            raise ValueError(f"a writer noted {note!r}")
    return Promised(acknowledged, attempted, broken)


def check_prefix(
    demanded: Demand, promises: Promised, remains: Remains, models: Sequence[State], given: Given
) -> PrefixFinding:
    """Check a store after a fault. ``models`` are the states after 0, 1, ... commits; ``given`` has all values."""
    trouble = promises.trouble or remains.trouble
    if trouble:
        return breach(Found.HARNESS_ERROR, trouble)
    if promises.broken is not None:
        return breach(*promises.broken)
    if remains.ending:
        found = Found.HANGING if remains.ending == "deadline" else Found.DEADLY
        return breach(found, f"the process that opened it ended: {remains.ending}")
    if remains.leaked:
        return breach(Found.LEAKED_EXCEPTION, remains.leaked)
    # An error that comes only after everything was read does not excuse a wrong state.
    if remains.error and (remains.state is None or (remains.error in DETECTING and remains.stage != "afterwards")):
        return _refusal(demanded, remains)
    if remains.state is None:
        return breach(Found.HARNESS_ERROR, "the verifier process reported neither a state nor an error")
    if demanded.transactional:
        verdict = _whole(demanded, promises, remains, models, given)
    else:
        verdict = _key_by_key(demanded, promises, remains.state, given)
    if verdict.found is not Found.VALID:
        return verdict
    return _refusal(demanded, remains) if remains.error in DETECTING else _usable(demanded, remains, verdict)


def _refusal(demanded: Demand, remains: Remains) -> PrefixFinding:
    text = f"{remains.error}: {remains.error_detail}"
    if remains.error not in DETECTING:
        return breach(Found.REFUSED, text)
    if remains.wanted is None or remains.restored != remains.wanted:
        return breach(Found.UNRESTORED, text)
    if demanded.transactional and (remains.restored_offset or 0) != (remains.wanted_number or 0):
        detail = f"{text}; restored to commit {remains.wanted_number}, its offset says {remains.restored_offset}"
        return breach(Found.UNRESTORED, detail)
    if unkept := _unkept_afterwards(demanded, remains, remains.restored):
        return breach(Found.UNUSABLE, f"{text}; restored, and then {unkept}")
    return PrefixFinding(Found.DETECTED, None, demanded.may_detect, text, remains.stage)


def _whole(
    demanded: Demand, promises: Promised, remains: Remains, models: Sequence[State], given: Given
) -> PrefixFinding:
    state = remains.state
    assert state is not None
    number = next((number for number, model in enumerate(models) if model == state), None)
    if number is None:
        strange = _strange(state, given, promises.attempted)
        if strange:
            return breach(Found.PHANTOM, strange)
        reported = remains.offset or 0
        return breach(Found.TORN, f"no commit; its offset says {reported}: {_differs(state, models, reported)}")
    for what, kept in (("offset", remains.offset), ("position", remains.position)):
        if (kept or 0) != number:
            return breach(Found.TORN, f"the state of commit {number}, but its {what} says {kept or 0}", number)
    if number > promises.attempted:
        return breach(Found.PHANTOM, f"commit {number}; {promises.attempted} was the last attempted", number)
    if demanded.keeps and number < promises.acknowledged:
        return breach(Found.LOST, f"commit {number}; {promises.acknowledged} was acknowledged", number)
    return PrefixFinding(Found.VALID, number, True)


def _key_by_key(demanded: Demand, promises: Promised, state: State, given: Given) -> PrefixFinding:
    """Check a store without isolation: each key has one of its values, none older than the last acknowledged one."""
    strange = _strange(state, given, promises.attempted + 1)
    if strange:
        return breach(Found.PHANTOM, strange)
    floor = promises.acknowledged if demanded.keeps else 0
    for key, values in sorted(given.items()):
        last_kept = max(at for at, (number, _) in enumerate(values) if number <= floor)
        if state.get(key) not in [value for number, value in values[last_kept:] if number <= promises.attempted + 1]:
            return breach(Found.LOST, f"key {key!r} has an older value than commit {floor} gave it")
    return PrefixFinding(Found.VALID, None, True)


def _usable(demanded: Demand, remains: Remains, verdict: PrefixFinding) -> PrefixFinding:
    if remains.error:
        detail = f"{remains.error}: {remains.error_detail}"
        return breach(Found.UNUSABLE, detail, verdict.number)
    assert remains.state is not None
    unkept = _unkept_afterwards(demanded, remains, remains.state)
    return breach(Found.UNUSABLE, unkept, verdict.number) if unkept else verdict


def _unkept_afterwards(demanded: Demand, remains: Remains, before: State) -> str:
    """Return the anomaly of the two commits that were made after ``before``, or ""."""
    if remains.later != {**before, **remains.added}:
        return "two more commits were made, and after reopening they were not what is there"
    reported = (remains.later_offset, remains.later_position)
    if demanded.transactional and reported != (remains.added_number, remains.added_number):
        return f"commit {remains.added_number} was made, and after reopening its offset and position say {reported}"
    return ""


def _strange(state: State, given: Given, attempted: int) -> str:
    for key, value in sorted(state.items()):
        if value not in [each for number, each in given.get(key, ()) if number <= attempted]:
            return f"key {key!r} has {value[:16]!r}, which no commit up to {attempted} gave it"
    return ""


def _differs(state: State, models: Sequence[State], number: int) -> str:
    if not 0 <= number < len(models):
        return "there is no such commit"
    wrong = sorted(key for key in state.keys() | models[number].keys() if state.get(key) != models[number].get(key))
    return f"{len(wrong)} keys differ from that, first {wrong[0]!r}" if wrong else "equal"
