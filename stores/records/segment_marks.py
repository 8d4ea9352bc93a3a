"""The marks of a window or session store: its stream time, its first segment that is not dropped, and old segments.

They are read at each use and not cached: so they are correct after a rollback, a restore and an opening, and at each
isolation level of a view.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from stores.errors import StoreCorruptedError
from stores.records.data_marks import SegmentMarks
from stores.records.escaped_keys import packed, unpacked

DROPPED: Final = "dropped"
"""The first segment that was not dropped. There is no record before it."""
SEQUENCE: Final = "sequence"
"""The number of the next duplicate."""
OLD_SEGMENTS: Final = "old_segments"
"""The segments of a timestamped store whose values have no timestamps: they are older than the upgrade."""

_RUNS_MAX = 2048
"""The most runs in a mark: they take half of a mark's maximum size."""


def number(marked: SegmentMarks, name: str) -> int:
    """Return the number in a mark, 0 if it is not set."""
    mark = marked.mark(name)
    return 0 if mark is None else unpacked(mark)


Runs = tuple[tuple[int, int], ...]
"""Segments as the first and the last one of each run, ascending."""


@lru_cache(maxsize=64)
def runs_of(mark: bytes | None) -> Runs:
    """Return the runs in the mark of the old segments. Raises: StoreCorruptedError."""
    if mark is None:
        return ()
    if len(mark) % 16:
        raise StoreCorruptedError(
            "the list of a store's old segments can't be read: wipe the store and restore it from its changelog"
        )
    return tuple((unpacked(mark[at : at + 8]), unpacked(mark[at + 8 : at + 16])) for at in range(0, len(mark), 16))


def mark_of(runs: Runs) -> bytes | None:
    """Return the mark for ``runs``, None for no run."""
    return b"".join(packed(first) + packed(last) for first, last in runs) or None


def runs_from(segments: Iterable[int]) -> Runs:
    """Return the runs of ascending ``segments``.

    If they are too many for a mark, they become one run: the segments in between, which are empty, then count as old.
    """
    runs: list[tuple[int, int]] = []
    for segment in segments:
        if runs and runs[-1][1] + 1 >= segment:
            runs[-1] = (runs[-1][0], segment)
        else:
            runs.append((segment, segment))
    return tuple(runs) if len(runs) <= _RUNS_MAX else ((runs[0][0], runs[-1][1]),)


def runs_without(runs: Runs, first: int) -> Runs:
    """Return ``runs`` without the segments before ``first``."""
    return tuple((max(low, first), high) for low, high in runs if high >= first)


def is_old(segment: int, runs: Runs) -> bool:
    """Return True if ``segment`` is in ``runs``."""
    return any(first <= segment <= last for first, last in runs)
