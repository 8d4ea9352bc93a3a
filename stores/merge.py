"""Laying staged writes over ordered pairs from below, in key order, reading ahead no more than one pair."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from stores.engines.engine import Scan
from stores.ranges import KeyRanges

Pair = tuple[bytes, bytes]


def pairs_of(scan: Scan) -> Iterator[Pair]:
    """The pairs of an engine's scan, one by one."""
    while chunk := scan.fetch():
        yield from chunk


def lay_over(
    below: Iterator[Pair],
    above: Iterator[tuple[bytes, bytes | None]],
    hidden: KeyRanges,
    *,
    reverse: bool,
) -> Iterator[Pair]:
    """``below`` without the ``hidden`` keys, with the pairs of ``above`` in place of its own; None there removes.

    Both are in the same order, descending if ``reverse``.
    """
    if hidden:
        below = (pair for pair in below if pair[0] not in hidden)
    comes_before = operator.gt if reverse else operator.lt
    pair = next(below, None)
    for staged in above:
        key, value = staged
        while pair is not None and comes_before(pair[0], key):
            yield pair
            pair = next(below, None)
        if pair is not None and pair[0] == key:
            pair = next(below, None)
        if value is not None:
            yield staged  # type: ignore[misc]
    if pair is not None:
        yield pair
        yield from below
