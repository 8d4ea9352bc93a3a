"""What a window or session store keeps in marks: its stream time, what it has dropped, and which segments are old.

They are read where they are needed and not remembered: so they are right after a rollback, a restore and an opening,
and at each level of a view.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from stores.errors import StoreCorruptedError
from stores.records.data_marks import SegmentMarks
from stores.records.escaped_keys import packed, unpacked

DROPPED: Final = "dropped"
"""The first segment that was not dropped: there is nothing before it."""
SEQUENCE: Final = "sequence"
"""The number of the next duplicate."""
OLD_SEGMENTS: Final = "old_segments"
"""The segments of a timestamped store whose values have no timestamps: they are older than the upgrade."""

_RUNS_MAX = 2048
"""So many runs take half of what a mark may have."""


def number(marked: SegmentMarks, name: str) -> int:
    """The number in a mark, 0 where it is not set."""
    mark = marked.mark(name)
    return 0 if mark is None else unpacked(mark)


Runs = tuple[tuple[int, int], ...]
"""Segments as first and last of each run, ascending."""


@lru_cache(maxsize=64)
def runs_of(mark: bytes | None) -> Runs:
    """The runs that the mark of the old segments holds. Raises: StoreCorruptedError."""
    if mark is None:
        return ()
    if len(mark) % 16:
        raise StoreCorruptedError(
            "the list of a store's old segments can't be read: wipe the store and restore it from its changelog"
        )
    return tuple((unpacked(mark[at : at + 8]), unpacked(mark[at + 8 : at + 16])) for at in range(0, len(mark), 16))


def mark_of(runs: Runs) -> bytes | None:
    """The mark that holds ``runs``, None for no run."""
    return b"".join(packed(first) + packed(last) for first, last in runs) or None


def runs_from(segments: Iterable[int]) -> Runs:
    """Runs of ascending ``segments``. Where they are too many for a mark they become one: what lies between the
    segments is then old, too, and has nothing yet."""
    runs: list[tuple[int, int]] = []
    for segment in segments:
        if runs and runs[-1][1] + 1 >= segment:
            runs[-1] = (runs[-1][0], segment)
        else:
            runs.append((segment, segment))
    return tuple(runs) if len(runs) <= _RUNS_MAX else ((runs[0][0], runs[-1][1]),)


def runs_without(runs: Runs, first: int) -> Runs:
    """What of ``runs`` is at or behind the segment ``first``."""
    return tuple((max(low, first), high) for low, high in runs if high >= first)


def is_old(segment: int, runs: Runs) -> bool:
    """Whether ``segment`` is in ``runs``."""
    return any(first <= segment <= last for first, last in runs)
