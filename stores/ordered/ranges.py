"""Key ranges of range deletes and scans, inclusive at both ends. ``None`` leaves an end open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stores.ordered.sorted_keys import SortedKeys

Bounds = tuple[bytes | None, bytes | None]


class ScanRange(NamedTuple):
    """The keys of a scan: from ``start`` to ``end``, and ``end`` itself only if not ``end_open``.

    ``family`` is 1 for the second of an engine's two data families (``stores.engines.families``).
    """

    start: bytes | None
    end: bytes | None
    end_open: bool = False
    family: int = 0

    def rest_after(self, key: bytes, *, reverse: bool) -> ScanRange:
        """Return the part that is left of a scan, descending if ``reverse``, which has returned ``key``."""
        return self._replace(end=key, end_open=True) if reverse else self._replace(start=key + b"\x00")


WHOLE: Final = ScanRange(None, None)
"""All keys."""


def prefix_bounds(prefix: bytes) -> Bounds:
    """Return half-open bounds of the keys with ``prefix``: ``start <= key < end``; end is None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return prefix or None, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


_NO_KEYS: Final = SortedKeys()
"""The starts of every set without a range. They never change."""


class KeyRanges:
    """A set of keys, as ranges that are disjoint and ascending. Overlapping ranges are merged."""

    __slots__ = ("_ends", "_num_bytes", "_starts")

    def __init__(self) -> None:
        self._starts = _NO_KEYS
        self._ends: dict[bytes, bytes | None] = {}
        self._num_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Bounds]:
        """The ranges as bounds, ascending."""
        return iter([(start or None, self._ends[start]) for start in self._starts])

    def __contains__(self, key: bytes) -> bool:
        if not self._ends:
            return False
        start = self._starts.last_to(key)
        if start is None:
            return False
        end = self._ends[start]
        return end is None or key <= end

    def reach_into(self, low: bytes, high: bytes) -> bool:
        """Return True if any key from ``low`` to ``high``, both included, is in a range."""
        start = self._starts.last_to(high)
        return start is not None and _reaches(self._ends[start], low)

    def num_bytes(self) -> int:
        """Return the bytes of all bounds together."""
        return self._num_bytes

    def add(self, start: bytes | None, end: bytes | None) -> None:
        """Add the keys from ``start`` to ``end``; none if ``start`` is after ``end``."""
        low, high = start or b"", end
        if high is not None and low > high:
            return
        if not self._ends:
            self._starts = SortedKeys()
        before = self._starts.last_to(low)
        if before is not None and _reaches(self._ends[before], low):
            low = before
        for swallowed in self._starts.remove_between(low, high):
            end_there = self._ends.pop(swallowed)
            self._num_bytes -= len(swallowed) + len(end_there or b"")
            if end_there is None or (high is not None and end_there > high):
                high = end_there
        self._starts.add(low)
        self._ends[low] = high
        self._num_bytes += len(low) + len(high or b"")

    def update(self, other: KeyRanges) -> None:
        """Add every range of ``other``."""
        for start, end in other:
            self.add(start, end)

    def gaps(self, stretches: Iterable[Bounds]) -> list[Bounds]:
        """Return the parts of ``stretches`` that are in no range. Both are half-open: ``start <= key < end``."""
        found: list[Bounds] = []
        for start, end in stretches:
            low: bytes | None = start or b""
            before = self._starts.last_to(low or b"")
            if before is not None and _reaches(self._ends[before], low or b""):
                low = _behind(self._ends[before])
            if low is not None:
                for next_start in self._starts.between(low, end, end_open=True):
                    if low != next_start:
                        found.append((low or None, next_start))
                    low = _behind(self._ends[next_start])
                    if low is None:
                        break
            if low is not None and (end is None or low < end):
                found.append((low or None, end))
        return found


def _reaches(end: bytes | None, key: bytes) -> bool:
    return end is None or end >= key


def _behind(end: bytes | None) -> bytes | None:
    """Return the first key after a range that ends with ``end``; None if it has no end."""
    return None if end is None else end + b"\x00"
