"""Records that come and go beside the workload's own, in stores with a retention: time passes, and some expire.

Each commit moves the stream time on by a segment, with a record that stays, and has a late one, in the oldest segment
that still lives: it is gone with that two commits later. Pure functions of a commit's number, no store involved.
"""

from __future__ import annotations

from harness.sweeps.workload import NUMBER_KEY, State
from harness.typed_maps import FIRST_MS, RETENTION_MS, SEGMENT_MS, SEGMENTS, place

PASSING_KINDS = ("window", "session")
"""The kinds of stores with a retention."""
_LIVES_COMMITS = 2
_TICK, _BRIEF = b"tick-", b"brief-"
_VALUE = b"passing" * 9


def passing_place(key: bytes) -> int:
    """Where a key lies: the workload's own in the segments before the first commit's."""
    for name, offset_ms in ((_TICK, 0), (_BRIEF, _LIVES_COMMITS * SEGMENT_MS + 1 - RETENTION_MS)):
        if key.startswith(name):
            return FIRST_MS + (SEGMENTS + int(key[len(name) :])) * SEGMENT_MS + offset_ms
    return place(key)


def passing_changes(number: int) -> State:
    """What commit ``number`` puts beside the workload's own changes, in this order."""
    return {_TICK + b"%d" % number: _VALUE, _BRIEF + b"%d" % number: _VALUE}


def with_passing(state: State) -> State:
    """``state`` and what else is there after its commit, by the number that it tells; itself where it tells none."""
    number = int(state.get(NUMBER_KEY, 0))
    ticks = {_TICK + b"%d" % each: _VALUE for each in range(1, number + 1)}
    brief = {_BRIEF + b"%d" % each: _VALUE for each in range(max(1, number - _LIVES_COMMITS), number + 1)}
    return {**state, **ticks, **brief}


def passing_ever(commits: int) -> dict[bytes, list[tuple[int, bytes | None]]]:
    """As ``workload.values_ever``, of what passes within so many commits."""
    given: dict[bytes, list[tuple[int, bytes | None]]] = {}
    for number in range(1, commits + 1):
        given[_TICK + b"%d" % number] = [(0, None), (number, _VALUE)]
        given[_BRIEF + b"%d" % number] = [(0, None), (number, _VALUE), (number + _LIVES_COMMITS + 1, None)]
    return given
