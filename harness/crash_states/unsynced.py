"""The bytes of one file on a disk: the durable ones, and pending changes, any of which may be lost or torn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from harness.crash_states.changes import DataChange
from harness.crash_states.contents import Content


class Rest(StrEnum):
    """The content of the rest of a torn write."""

    MISSING = "missing"
    """Nothing was written after the tear, and the size does not include it."""
    ZEROS = "zeros"
    """Nothing was written after the tear, but the size includes it."""
    BEFORE = "before"
    """The part before the tear was not written; the part after it was."""
    NOISE = "noise"
    """As ``ZEROS``, but with earlier bytes of the disk, for which noise stands. Beyond the model."""


@dataclass(frozen=True, slots=True)
class Tear:
    """A tear of write ``effect``, ``at`` so many of its bytes.

    A negative ``at`` with ``MISSING``: nothing of the write was written, nor so many of the zeros before it.
    """

    effect: int
    at: int
    rest: Rest


def torn(content: Content, change: DataChange, tear: Tear) -> Content:
    """Return ``content`` with the part of the write that reached the disk."""
    effect = change.effect
    head, end = effect.data[: max(tear.at, 0)], effect.offset + len(effect.data)
    if tear.at < 0:
        return content.resized(max(content.size, effect.offset + tear.at))
    if tear.rest is Rest.BEFORE:
        return content.written(effect.offset + tear.at, effect.data[tear.at :])
    size = content.size
    if tear.rest in (Rest.ZEROS, Rest.NOISE):
        content = content.resized(max(size, end))
    if tear.rest is Rest.NOISE:
        start = max(size, effect.offset + tear.at)
        noise = Random(f"{tear.effect} {tear.at}").randbytes(max(end - start, 0))
        content = content.written(start, noise)
    return content.written(effect.offset, head)


class File:
    """One file: its durable content, and its later changes. Changes in ``durable_bits`` are durable on their own."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.changes: list[DataChange] = []
        self.bits = 0
        self.durable_bits = 0
        self._made: dict[int, Content] = {}
        self._made_before: dict[int, Content] = {}

    def add(self, change: DataChange) -> None:
        self.changes.append(change)
        self.bits |= change.bit

    def grown_at(self) -> int:
        """Return the index of the last pending change that extended the file, or -1."""
        pending = (change for change in self.changes if not change.bit & self.durable_bits)
        return max((change.index for change in pending if change.grows), default=-1)

    def turn(self) -> None:
        """Drop cached contents that were used neither at this position nor at the one before."""
        if self._made:
            self._made_before, self._made = self._made, {}

    def with_kept(self, kept: int, tears: tuple[Tear, ...] = ()) -> Content:
        """Return the content with the changes whose bits are ``kept``, and all durable ones."""
        kept = (kept | self.durable_bits) & self.bits
        torn_ones = {1 << tear.effect: tear for tear in tears if kept >> tear.effect & 1} if tears else None
        if not torn_ones:
            return self._made.get(kept) or self._with(kept)
        first = min(torn_ones)
        content = self._with(kept & (first - 1))
        for change in self.changes:
            if change.bit in torn_ones:
                content = torn(content, change, torn_ones[change.bit])
            elif change.bit & kept and change.bit > first:
                content = change.apply(content)
        return content

    def _with(self, kept: int) -> Content:
        # States of adjacent positions differ in their last change, so each is derived from the state without it.
        wanted = kept
        later: list[tuple[DataChange, int]] = []
        for change in reversed(self.changes):
            if not kept or kept in self._made or kept in self._made_before:
                break
            if change.bit & kept:
                later.append((change, kept))
                kept ^= change.bit
        found = self._made.get(kept) or self._made_before.get(kept)
        content = self.content if found is None else found
        for change, bits in reversed(later):
            content = change.apply(content)
            self._made[bits] = content
        self._made[wanted] = content
        return content
