"""The commits that a victim makes, and the state after each of them: pure functions of a seed, no store involved.

Every commit leaves a state like no other's: it overwrites, deletes and adds keys, and one key always tells its
number. Every fifth is large, so that a second store is spilled to and a write buffer fills; some remove a range.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

State = Mapping[bytes, bytes]

COMMITS = 20
"""How many commits a victim makes unless told otherwise."""
_KEYS = 48
LARGE_EVERY = 5
"""Every so many commits one is large: where a bound on memory is tight, it is spilled."""
_LARGE_VALUES, _LARGE_BYTES = 6, 4500
_RANGE_EVERY = 7
NUMBER_KEY = b"number"
_LATER_KEY = b"written-afterwards"


class Change(NamedTuple):
    """One call of a commit: a put, a delete (``value`` None), or, with ``end``, the removal of ``key`` to ``end``."""

    key: bytes
    value: bytes | None
    end: bytes | None = None


@cache
def changes(seed: int, number: int) -> tuple[Change, ...]:
    """What commit ``number`` (the first is 1) does, in order."""
    choose = random.Random(f"commit {seed} {number}")
    made = []
    if number % _RANGE_EVERY == 0:
        start = choose.randrange(_KEYS - 8)
        made.append(Change(_key(start), None, _key(start + 7)))
    for key in choose.sample(range(_KEYS), 7):
        value = choose.randbytes(choose.choice((0, 9, 40, 90, 250)))
        made.append(Change(_key(key), None if choose.random() < 0.2 else value))
    if number % LARGE_EVERY == 0:
        for key in choose.sample(range(_KEYS), _LARGE_VALUES):
            made.append(Change(_key(key), choose.randbytes(_LARGE_BYTES)))
    else:
        made.append(Change(_key(choose.randrange(_KEYS)), choose.randbytes(1500)))
    return (*made, Change(NUMBER_KEY, str(number).encode()))


@cache
def model(seed: int, number: int) -> State:
    """The state after commit ``number``; 0 is the empty store."""
    if number == 0:
        return MappingProxyType({})
    state = dict(model(seed, number - 1))
    for change in changes(seed, number):
        _apply(state, change)
    return MappingProxyType(state)


def models(seed: int, commits: int) -> list[State]:
    """The states after 0, 1, ... ``commits`` commits."""
    return [model(seed, number) for number in range(commits + 1)]


def values_ever(seed: int, commits: int) -> dict[bytes, list[tuple[int, bytes | None]]]:
    """By key: each value it was given, in order, with the number of the commit that gave it; None for a removal.

    What a store that keeps nothing apart may show of a key. Every key begins with (0, None).
    """
    given: dict[bytes, list[tuple[int, bytes | None]]] = {
        key: [(0, None)] for key in (NUMBER_KEY, *(_key(number) for number in range(_KEYS)))
    }
    for number in range(1, commits + 1):
        for change in changes(seed, number):
            for key in _touched(change, given):
                given[key].append((number, change.value))
    return given


def afterwards(number: int) -> State:
    """What a judge adds in its commit ``number`` (1 or 2) to see that a store takes writes again."""
    return {_LATER_KEY + str(number).encode(): b"later" * 40 * number}


def _touched(change: Change, keys: Mapping[bytes, object]) -> Iterator[bytes]:
    if change.end is None:
        yield change.key
    else:
        yield from (key for key in keys if change.key <= key <= change.end)


def _apply(state: dict[bytes, bytes], change: Change) -> None:
    if change.end is not None:
        for key in [key for key in state if change.key <= key <= change.end]:
            del state[key]
    elif change.value is None:
        state.pop(change.key, None)
    else:
        state[change.key] = change.value


def _key(number: int) -> bytes:
    return b"key-%03d" % number
