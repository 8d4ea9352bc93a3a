"""Records that expire, beside those of the workload, in stores with a retention.

Each commit advances the stream time by one segment, with a record that stays. It also writes a late record into the
oldest live segment, which expires two commits later. Pure functions of a commit's number, without a store.
"""

from __future__ import annotations

from harness.experiments.iofaults.workload import NUMBER_KEY, State
from harness.typed_maps import FIRST_MS, RETENTION_MS, SEGMENT_MS, SEGMENTS, place

PASSING_KINDS = ("window", "session")
"""The kinds of stores with a retention."""
_LIVES_COMMITS = 2
_TICK, _BRIEF = b"tick-", b"brief-"
_VALUE = b"passing" * 9


def passing_place(key: bytes) -> int:
    """Return the timestamp of a key. The workload's own keys are in the segments before that of the first commit."""
    for name, offset_ms in ((_TICK, 0), (_BRIEF, _LIVES_COMMITS * SEGMENT_MS + 1 - RETENTION_MS)):
        if key.startswith(name):
            return FIRST_MS + (SEGMENTS + int(key[len(name) :])) * SEGMENT_MS + offset_ms
    return place(key)


def passing_changes(number: int) -> State:
    """Return the pairs that commit ``number`` writes after the workload's own changes, in this order."""
    return {_TICK + b"%d" % number: _VALUE, _BRIEF + b"%d" % number: _VALUE}


def with_passing(state: State) -> State:
    """Return ``state`` with the passing records that exist after its commit. A state without a number is unchanged."""
    number = int(state.get(NUMBER_KEY, 0))
    ticks = {_TICK + b"%d" % each: _VALUE for each in range(1, number + 1)}
    brief = {_BRIEF + b"%d" % each: _VALUE for each in range(max(1, number - _LIVES_COMMITS), number + 1)}
    return {**state, **ticks, **brief}


def passing_ever(commits: int) -> dict[bytes, list[tuple[int, bytes | None]]]:
    """Return the values of the passing records of ``commits`` commits, as ``workload.values_ever`` does."""
    given: dict[bytes, list[tuple[int, bytes | None]]] = {}
    for number in range(1, commits + 1):
        given[_TICK + b"%d" % number] = [(0, None), (number, _VALUE)]
        given[_BRIEF + b"%d" % number] = [(0, None), (number, _VALUE), (number + _LIVES_COMMITS + 1, None)]
    return given
