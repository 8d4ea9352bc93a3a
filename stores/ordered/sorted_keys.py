"""A sorted set of keys, with additions of one key and removals of a range.

They lie in blocks, as in a B-tree of two levels: a change moves the keys of one block, and never all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Self

BLOCK_KEYS = 1024
"""The number of keys of a new block. A block with twice as many is split."""


class SortedKeys:
    """A set of keys in order. For one thread at a time."""

    __slots__ = ("_firsts", "_length", "blocks")

    def __init__(self) -> None:
        self.blocks: list[list[bytes]] = []
        """All keys, ascending within each block and from block to block. No block is empty. Callers must not change it.
        """
        self._firsts: list[bytes] = []
        self._length = 0

    @classmethod
    def of(cls, blocks: Iterable[list[bytes]]) -> Self:
        """Return a set of keys that are in order, in blocks of any size. It has copies of them."""
        made = cls()
        for block in blocks:
            for at in range(0, len(block), BLOCK_KEYS):
                made.blocks.append(block[at : at + BLOCK_KEYS])
                made._firsts.append(block[at])
            made._length += len(block)
        return made

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys, ascending."""
        return chain.from_iterable(self.blocks)

    def last_to(self, key: bytes) -> bytes | None:
        """Return the last key up to and including ``key``; None if there is none."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        return block[bisect_right(block, key) - 1]

    def add(self, key: bytes) -> None:
        """Add a key that is not there yet."""
        self._length += 1
        if not self.blocks:
            self.blocks.append([key])
            self._firsts.append(key)
            return
        at = max(0, bisect_right(self._firsts, key) - 1)
        block = self.blocks[at]
        insort(block, key)
        if len(block) >= 2 * BLOCK_KEYS:
            self.blocks[at : at + 1] = [block[:BLOCK_KEYS], block[BLOCK_KEYS:]]
            self._firsts.insert(at + 1, block[BLOCK_KEYS])
        self._firsts[at] = block[0]

    def pieces(self, start: bytes | None, end: bytes | None, *, end_open: bool) -> list[tuple[list[bytes], int, int]]:
        """Return the keys from ``start`` to ``end``, ascending, as blocks with the bounds of the range in them."""
        first = 0 if start is None else max(0, bisect_right(self._firsts, start) - 1)
        cut = bisect_left if end_open else bisect_right
        beyond = len(self.blocks) if end is None else cut(self._firsts, end)
        pieces = []
        for at in range(first, beyond):
            block = self.blocks[at]
            low = bisect_left(block, start) if start is not None and at == first else 0
            high = cut(block, end) if end is not None and at == beyond - 1 else len(block)
            if low < high:
                pieces.append((block, low, high))
        return pieces

    def between(self, start: bytes | None, end: bytes | None, *, end_open: bool = False) -> list[bytes]:
        """Return the keys from ``start`` to ``end``, ascending, in a new list."""
        return [key for block, low, high in self.pieces(start, end, end_open=end_open) for key in block[low:high]]

    def remove_between(self, start: bytes | None, end: bytes | None) -> list[bytes]:
        """Remove the keys from ``start`` to ``end``, both included; return them, ascending."""
        removed: list[bytes] = []
        pieces = self.pieces(start, end, end_open=False)
        if not pieces:
            return removed
        at = bisect_right(self._firsts, pieces[0][0][0]) - 1
        kept: list[list[bytes]] = []
        for block, low, high in pieces:
            removed += block[low:high]
            del block[low:high]
            if block:
                kept.append(block)
        self._length -= len(removed)
        self.blocks[at : at + len(pieces)] = kept
        self._firsts[at : at + len(pieces)] = [block[0] for block in kept]
        return removed
