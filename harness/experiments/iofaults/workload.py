"""The commits of a writer process, and the state after each of them: pure functions of a seed, without a store.

Each commit overwrites, deletes and adds keys. The value of one key is the commit's number, so no two states are equal.
Every fifth commit is large: it spills to a staging store and fills a write buffer. Every seventh deletes a range.

Stores with a retention have passing records beside these. Each commit advances the stream time by one segment, with a
record that stays. It also writes a late record into the oldest live segment, which expires two commits later.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from harness.typed_maps import FIRST_MS, RETENTION_MS, SEGMENT_MS, SEGMENTS, place

State = Mapping[bytes, bytes]

COMMITS = 20
"""The default number of commits of a writer process."""
_KEYS = 48
LARGE_EVERY = 5
"""Each commit whose number is a multiple of this is large. Under a tight memory bound it spills."""
_LARGE_VALUES, _LARGE_BYTES = 6, 4500
_RANGE_EVERY = 7
NUMBER_KEY = b"number"
_LATER_KEY = b"written-afterwards"
PASSING_KINDS = ("window", "session")
"""The kinds of stores with a retention."""
_LIVES_COMMITS = 2
_TICK, _BRIEF = b"tick-", b"brief-"
_VALUE = b"passing" * 9


class IoChange(NamedTuple):
    """One call of a commit: a put, a delete (``value`` None), or with ``end``, a delete of ``key`` to ``end``."""

    key: bytes
    value: bytes | None
    end: bytes | None = None


@cache
def changes(seed: int, number: int) -> tuple[IoChange, ...]:
    """Return the calls of commit ``number`` in order; the first commit is 1."""
    choose = random.Random(f"commit {seed} {number}")
    calls = []
    if number % _RANGE_EVERY == 0:
        start = choose.randrange(_KEYS - 8)
        calls.append(IoChange(_key(start), None, _key(start + 7)))
    for key in choose.sample(range(_KEYS), 7):
        value = choose.randbytes(choose.choice((0, 9, 40, 90, 250)))
        calls.append(IoChange(_key(key), None if choose.random() < 0.2 else value))
    if number % LARGE_EVERY == 0:
        for key in choose.sample(range(_KEYS), _LARGE_VALUES):
            calls.append(IoChange(_key(key), choose.randbytes(_LARGE_BYTES)))
    else:
        calls.append(IoChange(_key(choose.randrange(_KEYS)), choose.randbytes(1500)))
    return (*calls, IoChange(NUMBER_KEY, str(number).encode()))


@cache
def model(seed: int, number: int) -> State:
    """Return the state after commit ``number``; 0 is the empty store."""
    if number == 0:
        return MappingProxyType({})
    state = dict(model(seed, number - 1))
    for change in changes(seed, number):
        _apply(state, change)
    return MappingProxyType(state)


def models(seed: int, commits: int) -> list[State]:
    """Return the states after 0, 1, ... ``commits`` commits."""
    return [model(seed, number) for number in range(commits + 1)]


def values_ever(seed: int, commits: int) -> dict[bytes, list[tuple[int, bytes | None]]]:
    """Return each key's values in order, with the number of the commit that wrote each; None for a deletion.

    A store without isolation may show any of them. Every key begins with (0, None).
    """
    values: dict[bytes, list[tuple[int, bytes | None]]] = {
        key: [(0, None)] for key in (NUMBER_KEY, *(_key(number) for number in range(_KEYS)))
    }
    for number in range(1, commits + 1):
        for change in changes(seed, number):
            for key in _touched(change, values):
                values[key].append((number, change.value))
    return values


def afterwards(number: int) -> State:
    """Return the pairs of a verifier's commit ``number`` (1 or 2), which shows that writes still work."""
    return {_LATER_KEY + str(number).encode(): b"later" * 40 * number}


def _touched(change: IoChange, keys: Mapping[bytes, object]) -> Iterator[bytes]:
    if change.end is None:
        yield change.key
    else:
        yield from (key for key in keys if change.key <= key <= change.end)


def _apply(state: dict[bytes, bytes], change: IoChange) -> None:
    if change.end is not None:
        for key in [key for key in state if change.key <= key <= change.end]:
            del state[key]
    elif change.value is None:
        state.pop(change.key, None)
    else:
        state[change.key] = change.value


def _key(number: int) -> bytes:
    return b"key-%03d" % number


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
    """Return the values of the passing records of ``commits`` commits, as ``values_ever`` does."""
    values: dict[bytes, list[tuple[int, bytes | None]]] = {}
    for number in range(1, commits + 1):
        values[_TICK + b"%d" % number] = [(0, None), (number, _VALUE)]
        values[_BRIEF + b"%d" % number] = [(0, None), (number, _VALUE), (number + _LIVES_COMMITS + 1, None)]
    return values
