"""Merging staged writes over ordered pairs from below, in key order, a chunk at a time.

All functions work on lists of pairs: pairs between two staged keys move as one slice and not one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

from stores.engines.engine import Scan
from stores.ordered import KeyRanges

Pair = tuple[bytes, bytes]
Staged = tuple[bytes, bytes | None]
"""A staged write; None deletes."""


def chunks_of(scan: Scan) -> Iterator[list[Pair]]:
    """Yield the chunks of an engine's scan."""
    while chunk := scan.fetch():
        yield chunk


class StagedWrites(ABC):
    """An iterator of staged writes in the order of a scan."""

    @abstractmethod
    def take_to(self, key: bytes) -> Iterator[list[Staged]]:
        """Yield the next writes up to and including ``key``, in lists. Each list is ascending in both directions."""

    @abstractmethod
    def take_some(self) -> list[Staged]:
        """Return the next few writes, ascending; an empty list only at the end."""


class MappedWrites(StagedWrites):
    """Staged writes in memory: the values in ``writes`` of ``keys``, which are lists from ``SortedMap.merge``.

    Neither may change meanwhile.
    """

    def __init__(self, keys: Iterator[list[bytes]], writes: Mapping[bytes, bytes | None], *, reverse: bool) -> None:
        self._keys, self._writes, self._reverse = keys, writes, reverse
        self._next: list[bytes] = []
        """A list of keys, ascending. Those from ``_low`` to ``_high`` are not taken yet."""
        self._low = self._high = 0

    def take_to(self, key: bytes) -> Iterator[list[Staged]]:
        while self._fill():
            if self._reverse:
                cut = bisect_left(self._next, key, self._low, self._high)
                writes, self._high = self._next[cut : self._high], cut
            else:
                cut = bisect_right(self._next, key, self._low, self._high)
                writes, self._low = self._next[self._low : cut], cut
            if writes:
                yield self._with_values(writes)
            if self._low < self._high:
                break

    def take_some(self) -> list[Staged]:
        self._fill()
        writes = self._next[self._low : self._high]
        self._low = self._high
        return self._with_values(writes)

    def _fill(self) -> bool:
        if self._low == self._high:
            self._next = next(self._keys, [])
            self._low, self._high = 0, len(self._next)
        return bool(self._next)

    def _with_values(self, keys: list[bytes]) -> list[Staged]:
        return list(zip(keys, map(self._writes.__getitem__, keys), strict=True))


def lay_over(
    below: Iterator[list[Pair]], above: StagedWrites, hidden: KeyRanges, *, reverse: bool
) -> Iterator[list[Pair]]:
    """Merge the writes of ``above`` over the pairs of ``below``, without the ``hidden`` keys of ``below``.

    Both are in the same order, descending if ``reverse``. So is the result, in lists that may be empty.
    """
    for chunk in filter(None, below):
        visible = chunk
        if hidden and hidden.reach_into(*sorted((chunk[0][0], chunk[-1][0]))):
            visible = [pair for pair in chunk if pair[0] not in hidden]
        for staged in above.take_to(chunk[-1][0]):
            cut = _count_to(visible, staged[0][0] if reverse else staged[-1][0], reverse=reverse)
            yield merged(visible[:cut], staged, reverse=reverse)
            visible = visible[cut:]
        yield visible
    while staged := above.take_some():
        yield merged([], staged, reverse=reverse)


def _count_to(chunk: list[Pair], key: bytes, *, reverse: bool) -> int:
    """Return the number of pairs of ``chunk`` up to and including ``key``, in the order of the scan."""
    if reverse:
        return sum(pair[0] >= key for pair in chunk)
    return bisect_left(chunk, (key + b"\x00",))


def merged(chunk: list[Pair], staged: list[Staged], *, reverse: bool) -> list[Pair]:
    """Merge ascending staged writes over a chunk: a write replaces the pair of its key, and None removes it."""
    result: list[Pair]
    if not chunk:
        # Among them may be thousands of deletes: a session gets a new key with each record that it takes.
        result = [(key, value) for key, value in staged if value is not None]
        return result[::-1] if reverse else result
    result, at = [], 0
    if reverse:
        chunk = chunk[::-1]
    for key, value in staged:
        place = bisect_left(chunk, (key,), at)
        result += chunk[at:place]
        at = place + 1 if place < len(chunk) and chunk[place][0] == key else place
        if value is not None:
            result.append((key, value))
    result += chunk[at:]
    if reverse:
        result.reverse()
    return result
