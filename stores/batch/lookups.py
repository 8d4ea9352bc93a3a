"""Lookups of many keys, one level after the other: each level is asked once, for what those above it do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from stores.batch.buffer import MISSING, Missing

Found = bytes | Missing | None
"""A value: None for a delete, MISSING if a level has nothing of the key."""


def looked_up(writes: Mapping[bytes, bytes | None], keys: Sequence[bytes]) -> list[Found]:
    """Return the values of ``keys`` in ``writes``: None for a delete, MISSING if there is no write."""
    # Without bytecode for each key.
    return list(map(writes.get, keys, repeat(MISSING))) if writes else [MISSING] * len(keys)


def filled(
    keys: Sequence[bytes],
    values: list[Found],
    look_up: Callable[[list[bytes]], Sequence[Found]],
) -> list[Found]:
    """Return ``values`` with the results of one ``look_up`` of all ``keys`` whose value is MISSING in their places."""
    left = [key for key, value in zip(keys, values, strict=True) if value is MISSING]
    if not left:
        return values
    below = look_up(left)
    if len(below) == len(values):
        return list(below)
    rest = iter(below)
    return [next(rest) if value is MISSING else value for value in values]
