"""What keys held before: how a scan of an open transaction stays what it was while the transaction is written to.

The other way round from the indexed batch: there the staged writes are laid over what is older, here what was there
before is laid over what is newer. A scan is given the newest layer, empty, and only from then on, and as long as such a
scan is open, a write first notes there what its key held. A scan shows what is there now, with its own layer and all
newer ones laid over it, of which the oldest knows best.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stores.buffer import Layer
from stores.engines.engine import Scan
from stores.merge import Pair

_FETCH_FIRST, _FETCH = 32, 512


class LiveScan:
    """How far a scan of the open transaction has got, and where its undo begins."""

    def __init__(self, layer: Layer, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool) -> None:
        self.layer = layer
        self.start, self.end, self.end_open, self.reverse = start, end, end_open, reverse
        self.fetch_most = _FETCH_FIRST
        self.below: Scan | None = None
        """A scan of what is committed, since this one has parted from the transaction."""
        self.rest: Iterator[list[Pair]] | None = None
        """Where the pairs come from since then."""
        self.released = False

    def release(self) -> None:
        """Give up what is held. From any thread, also from a finaliser."""
        self.released = True
        if self.below is not None:
            self.below.close()

    def covers(self, chunk: list[Pair], *, ended: bool) -> tuple[bytes | None, bytes | None, bool]:
        """The stretch of keys that ``chunk`` is all of: its start, its end, and whether the end is open."""
        if ended:
            return self.start, self.end, self.end_open
        if self.reverse:
            return chunk[-1][0], self.end, self.end_open
        return self.start, chunk[-1][0], False

    def go_on_after(self, key: bytes) -> None:
        """All pairs up to that of ``key`` have been handed out, or are about to be."""
        self.fetch_most = min(2 * self.fetch_most, _FETCH)
        if self.reverse:
            self.end, self.end_open = key, True
        else:
            self.start = key + b"\x00"


class Undo:
    """Layers of what keys held before, oldest first, as long as scans need them. Used by one thread at a time."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        """Empty where no scan is open: nothing has to be noted then."""
        self._released: deque[Layer] = deque()

    def pin(self) -> Layer:
        """The layer for a scan that is made now."""
        if not self.layers or self.layers[-1].staged.writes:
            self.layers.append(Layer())
        newest = self.layers[-1]
        newest.pins += 1
        return newest

    def release(self, layer: Layer) -> None:
        """A scan no longer needs its layer. From any thread, also from a finaliser: it takes no lock."""
        self._released.append(layer)

    def settle(self) -> None:
        """Forget the layers that no scan needs, and merge each that has no scan of its own into the one before."""
        if not self._released:
            return
        while self._released:
            self._released.popleft().pins -= 1
        kept: list[Layer] = []
        for layer in self.layers:
            if layer.pins:
                kept.append(layer)
            elif kept:
                older = kept[-1].staged.writes
                for key, value in layer.staged.writes.items():
                    older.setdefault(key, value)
        self.layers = kept

    def is_noted(self, key: bytes) -> bool:
        """Whether the newest layer, which is there, has what ``key`` held."""
        return key in self.layers[-1].staged.writes

    def note(self, key: bytes, value: bytes | None) -> None:
        """A key that is about to be written holds ``value``; None where there is none."""
        self.layers[-1].staged.writes[key] = value

    def since(self, layer: Layer) -> list[Layer]:
        """The layers of a scan that was given ``layer``, newest first."""
        return self.layers[self.layers.index(layer) :][::-1]
