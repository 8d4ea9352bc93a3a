"""Ordered collections without input or output: ranges of keys, sorted keys, a sorted map."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice, starmap
from typing import Final, Generic, NamedTuple, Self, TypeVar

BLOCK_KEYS = 1024
"""The number of keys of a new block. A block with twice as many is split."""


class SortedKeys:
    """A set of keys in order, with additions of one key and removals of a range. For one thread at a time.

    They lie in blocks, as in a B-tree of two levels: a change moves the keys of one block, and never all of them.
    """

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
        keys = cls()
        for block in blocks:
            for at in range(0, len(block), BLOCK_KEYS):
                keys.blocks.append(block[at : at + BLOCK_KEYS])
                keys._firsts.append(block[at])
            keys._length += len(block)
        return keys

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
        keys: list[bytes] = []
        pieces = self.pieces(start, end, end_open=False)
        if not pieces:
            return keys
        at = bisect_right(self._firsts, pieces[0][0][0]) - 1
        blocks: list[list[bytes]] = []
        for block, low, high in pieces:
            keys += block[low:high]
            del block[low:high]
            if block:
                blocks.append(block)
        self._length -= len(keys)
        self.blocks[at : at + len(pieces)] = blocks
        self._firsts[at : at + len(pieces)] = [block[0] for block in blocks]
        return keys


Bounds = tuple[bytes | None, bytes | None]
"""A key range of a range delete or a scan, inclusive at both ends. ``None`` leaves an end open."""


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


def prefix_range(prefix: bytes) -> ScanRange:
    """Return the range of the keys with ``prefix``."""
    start, end = prefix_bounds(prefix)
    return ScanRange(start, end, end_open=True)


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
        gaps: list[Bounds] = []
        for start, end in stretches:
            low: bytes | None = start or b""
            before = self._starts.last_to(low or b"")
            if before is not None and _reaches(self._ends[before], low or b""):
                low = _behind(self._ends[before])
            if low is not None:
                for next_start in self._starts.between(low, end, end_open=True):
                    if low != next_start:
                        gaps.append((low or None, next_start))
                    low = _behind(self._ends[next_start])
                    if low is None:
                        break
            if low is not None and (end is None or low < end):
                gaps.append((low or None, end))
        return gaps


def _reaches(end: bytes | None, key: bytes) -> bool:
    return end is None or end >= key


def _behind(end: bytes | None) -> bytes | None:
    """Return the first key after a range that ends with ``end``; None if it has no end."""
    return None if end is None else end + b"\x00"


Value = TypeVar("Value")

SORTED_AT_ONCE: Final = 2048
"""The number of keys that are sorted in one call, during which all other threads wait."""
RUN_KEYS: Final = 8192
"""The maximum length of merged runs. Merging two takes no longer than sorting ``SORTED_AT_ONCE`` keys."""
_PIECE_KEYS_FIRST, _PIECE_KEYS_MAX = 64, 4096
"""The number of keys that a scan merges at a time, at first and later."""
_KEYS_OF_EACH = 4
"""The minimum number of keys that it merges of each run."""


class _Order(NamedTuple):
    """The order of a map's keys. It is replaced as a whole, so that readers on other threads see a consistent one."""

    keys: SortedKeys
    runs: tuple[list[bytes], ...] = ()
    """Sorted lists that never change, of keys that are not in ``keys``."""
    num_keys: int = 0
    """The number of keys in either. They are the first ones of the map, since a dict keeps the order of insertion."""


_UNORDERED: Final = _Order(SortedKeys())
"""The order of every new map: most maps are never read in order. Its keys never change."""


class SortedMap(Generic[Value]):
    """A map whose entries are in ``writes``, which callers read and assign. ``discard_range`` deletes entries.

    A write costs one dict assignment. New keys are sorted when a scan needs it, or when ``cut`` is called. They are
    sorted in *runs*, lists of a few thousand keys that may overlap, so that no single step takes long. A scan merges
    the runs a piece at a time. Only the removal of keys needs a single order of all keys, which is then kept
    (``SortedKeys``).

    (Kafka's implementation of KIP-892 keeps a sorted tree instead and pays at every write.)

    One thread writes. While it does not, any number of threads may read in order (``merge``, ``keys_between``).
    """

    __slots__ = ("_order", "writes")

    def __init__(self, writes: dict[bytes, Value] | None = None) -> None:
        self.writes: dict[bytes, Value] = {} if writes is None else writes
        self._order = _UNORDERED

    def copy(self) -> Self:
        """Return an independent map with the same keys and values."""
        other = type(self)(dict(self.writes))
        order = self._order
        other._order = order._replace(keys=SortedKeys.of(order.keys.blocks))
        return other

    def num_fresh(self) -> int:
        """Return the number of keys that are not sorted yet."""
        return len(self.writes) - self._order.num_keys

    def is_partly_ordered(self) -> bool:
        """Return True if any key is sorted."""
        return self._order.num_keys > 0

    def num_unordered(self) -> int:
        """Return the number of keys that are not in the single order, which a removal of a range needs."""
        return len(self.writes) - len(self._order.keys)

    def cut(self) -> None:
        """Sort all new keys into runs. Two threads that do this at the same time get the same result."""
        self._cut()

    def _cut(self) -> _Order:
        order = self._order
        fresh = len(self.writes) - order.num_keys
        if fresh:
            runs = list(order.runs)
            newest = islice(reversed(self.writes), fresh)
            while run := list(islice(newest, SORTED_AT_ONCE)):
                run.sort()
                # Merge while the last run is at most twice as long: so each key is merged a few times, into few runs.
                while runs and len(runs[-1]) <= 2 * len(run) and len(runs[-1]) + len(run) <= RUN_KEYS:
                    run = runs.pop() + run
                    run.sort()
                runs.append(run)
            self._order = order = _Order(order.keys, tuple(runs), order.num_keys + fresh)
        return order

    def is_mostly_unordered(self) -> bool:
        """Return True if rebuilding the single order is cheaper than adding the new keys one by one."""
        return 8 * self.num_unordered() >= len(self._order.keys)

    def reorder(self) -> None:
        """Rebuild the single order of all keys, in short steps. For the writing thread; others may read meanwhile."""
        order = self._cut()
        self._order = _Order(SortedKeys.of(self.merge(None, None)), (), order.num_keys)

    def order_some(self, count: int) -> None:
        """Add up to ``count`` more keys to the single order. No thread may read meanwhile."""
        keys, runs, num_keys = self._cut()
        if runs:
            if not keys:
                keys = SortedKeys()
            for key in runs[-1][-count:]:
                keys.add(key)
            rest = runs[-1][:-count]
            self._order = _Order(keys, (*runs[:-1], rest) if rest else runs[:-1], num_keys)

    def merge(
        self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False
    ) -> Iterator[list[bytes]]:
        """Return the keys from ``start`` to ``end``, a list at a time; ``end`` itself only if not ``end_open``.

        The lists come in the order of the scan; each list is ascending in both directions. They have the keys of the
        time of the call. Each is merged when it is requested, and the first ones are short: stopping early is cheap.
        """
        order = self._cut()
        cut = bisect_left if end_open else bisect_right
        pieces = []
        for run in order.runs:
            low = 0 if start is None else bisect_left(run, start)
            high = len(run) if end is None else cut(run, end)
            if low < high:
                pieces.append(_Piece(run, low, high))
        blocks = order.keys.pieces(start, end, end_open=end_open)
        if reverse:
            blocks.reverse()
        return _merged(pieces, starmap(_Piece, blocks), reverse=reverse)

    def keys_between(self, start: bytes | None, end: bytes | None, *, end_open: bool = False) -> list[bytes]:
        """Return a new list of the keys from ``start`` to ``end``, ascending; ``end`` only if not ``end_open``."""
        if not self.writes:
            return []
        return [key for keys in self.merge(start, end, end_open=end_open) for key in keys]

    def discard_range(self, start: bytes | None, end: bytes | None) -> list[tuple[bytes, Value]]:
        """Remove the keys from ``start`` to ``end``, both included; return the removed entries, ascending."""
        writes, order = self.writes, self._order
        if not writes or (start is not None and start == end and start not in writes):
            return []
        if start == end and start is not None and not order.num_keys:
            return [(start, writes.pop(start))]
        if self.num_unordered() and self.is_mostly_unordered():
            self.reorder()
        while self.num_unordered():
            self.order_some(RUN_KEYS)
        keys, _, num_keys = self._order
        pairs = [(key, writes.pop(key)) for key in keys.remove_between(start, end)]
        self._order = _Order(keys, (), num_keys - len(pairs))
        return pairs

    def discard(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self.discard_range(key, key)


class _Piece:
    """A sorted list, and the range in it that a scan has not returned yet."""

    __slots__ = ("high", "keys", "low")

    def __init__(self, keys: list[bytes], low: int, high: int) -> None:
        self.keys, self.low, self.high = keys, low, high

    def last_of(self, count: int) -> bytes:
        """Return the last of the first ``count`` keys."""
        return self.keys[min(self.low + count, self.high) - 1]

    def take_to(self, bound: bytes, count: int) -> list[bytes]:
        """Take the keys up to ``bound``, which are at most ``count``."""
        low = self.low
        self.low = bisect_right(self.keys, bound, low, min(low + count, self.high))
        return self.keys[low : self.low]

    def first_of(self, count: int) -> bytes:
        """Return the first of the last ``count`` keys."""
        return self.keys[max(self.high - count, self.low)]

    def take_from(self, bound: bytes, count: int) -> list[bytes]:
        """Take the keys from ``bound`` on, which are at most ``count``."""
        high = self.high
        self.high = bisect_left(self.keys, bound, max(high - count, self.low), high)
        return self.keys[self.high : high]


def _merged(pieces: list[_Piece], blocks: Iterator[_Piece], *, reverse: bool) -> Iterator[list[bytes]]:
    """Merge ``pieces``, and ``blocks``, which follow each other: a few keys of each at a time."""
    size = _PIECE_KEYS_FIRST
    block = next(blocks, None)
    while pieces or block is not None:
        open_pieces = pieces if block is None else [*pieces, block]
        count = max(_KEYS_OF_EACH, size // len(open_pieces))
        merged: list[bytes] = []
        if reverse:
            bound = max([piece.first_of(count) for piece in open_pieces])
            for piece in open_pieces:
                merged += piece.take_from(bound, count)
        else:
            bound = min([piece.last_of(count) for piece in open_pieces])
            for piece in open_pieces:
                merged += piece.take_to(bound, count)
        if len(open_pieces) > 1:
            merged.sort()
        size = min(2 * size, _PIECE_KEYS_MAX)
        yield merged
        pieces = [piece for piece in pieces if piece.low < piece.high]
        if block is not None and block.low == block.high:
            block = next(blocks, None)
