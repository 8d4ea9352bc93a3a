"""An undo log: it keeps a scan of an open transaction unchanged while the transaction is written to.

An indexed batch merges new writes over older data. An undo log merges old values over newer data. Each scan gets a new,
empty layer. While a scan is open, a write first saves the old value of its key in the newest layer. A scan merges its
own and all newer layers over the current data; the oldest entry of a key wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stores.batch.buffer import Layer
from stores.batch.merge import Pair
from stores.engines.engine import Scan

_FETCH_FIRST, _FETCH = 32, 512


class LiveScan:
    """The progress of a scan of the open transaction, and the layer at which its undo log begins."""

    def __init__(self, layer: Layer, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool) -> None:
        self.layer = layer
        self.start, self.end, self.end_open, self.reverse = start, end, end_open, reverse
        self.fetch_most = _FETCH_FIRST
        self.below: Scan | None = None
        """A scan of committed data, once this scan is detached from the transaction."""
        self.rest: Iterator[list[Pair]] | None = None
        """The remaining pairs, once this scan is detached."""
        self.released = False

    def release(self) -> None:
        """Mark the scan as released and close the scan below. May be called on any thread and by a finalizer."""
        self.released = True
        if self.below is not None:
            self.below.close()

    def covers(self, chunk: list[Pair], *, ended: bool) -> tuple[bytes | None, bytes | None, bool]:
        """Return the range that ``chunk`` covers completely: its start, its end, and whether the end is open."""
        if ended:
            return self.start, self.end, self.end_open
        if self.reverse:
            return chunk[-1][0], self.end, self.end_open
        return self.start, chunk[-1][0], False

    def go_on_after(self, key: bytes) -> None:
        """Continue the scan after ``key``. All pairs up to it have been returned, or are about to be."""
        self.fetch_most = min(2 * self.fetch_most, _FETCH)
        if self.reverse:
            self.end, self.end_open = key, True
        else:
            self.start = key + b"\x00"


class Undo:
    """Layers of old values, oldest first, as long as scans need them. Used by one thread at a time."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        """Empty while no scan is open: then no old value has to be saved."""
        self._released: deque[Layer] = deque()

    def pin(self) -> Layer:
        """Return the layer for a scan that is made now."""
        if not self.layers or self.layers[-1].staged.writes:
            self.layers.append(Layer())
        newest = self.layers[-1]
        newest.pins += 1
        return newest

    def release(self, layer: Layer) -> None:
        """Record that a scan no longer needs its layer. May be called on any thread and by a finalizer: no lock."""
        self._released.append(layer)

    def settle(self) -> None:
        """Drop the layers that no scan needs. Merge a layer without a scan of its own into the next older one."""
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
        """Return whether the newest layer has the old value of ``key``. There must be a layer."""
        return key in self.layers[-1].staged.writes

    def note(self, key: bytes, value: bytes | None) -> None:
        """Save ``value`` as the old value of a key that is about to be written; None if it has none."""
        self.layers[-1].staged.writes[key] = value

    def since(self, layer: Layer) -> list[Layer]:
        """Return the layers of a scan that was given ``layer``, newest first."""
        return self.layers[self.layers.index(layer) :][::-1]
