"""Key ranges, inclusive at both ends, as a range delete and a scan mean them. ``None`` leaves an end open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

Bounds = tuple[bytes | None, bytes | None]


def prefix_bounds(prefix: bytes) -> Bounds:
    """Half-open bounds of the keys that begin with ``prefix``: ``start <= key < end``, end None where there is none."""
    stripped = prefix.rstrip(b"\xff")
    return prefix or None, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class KeyRanges:
    """A set of keys given as ranges: disjoint, ascending, merged where they overlap."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Bounds]:
        """The ranges as bounds, ascending."""
        return iter([(start or None, end) for start, end in zip(self._starts, self._ends, strict=True)])

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._starts, key) - 1
        if at < 0:
            return False
        end = self._ends[at]
        return end is None or key <= end

    def num_bytes(self) -> int:
        """Bytes of all bounds together."""
        return sum(map(len, self._starts)) + sum(len(end) for end in self._ends if end is not None)

    def add(self, start: bytes | None, end: bytes | None) -> None:
        """Add the keys from ``start`` to ``end``; nothing where start lies behind end."""
        low, high = start or b"", end
        if high is not None and low > high:
            return
        first = bisect_right(self._starts, low) - 1
        if first < 0 or not _reaches(self._ends[first], low):
            first += 1
        else:
            low = self._starts[first]
        last = first
        while last < len(self._starts) and (high is None or self._starts[last] <= high):
            end_there = self._ends[last]
            if end_there is None or (high is not None and end_there > high):
                high = end_there
            last += 1
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]

    def update(self, other: KeyRanges) -> None:
        """Add every range of ``other``."""
        for start, end in other:
            self.add(start, end)


def _reaches(end: bytes | None, key: bytes) -> bool:
    return end is None or end >= key
