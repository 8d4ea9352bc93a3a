"""What a scan of uncommitted data holds on to: all that it shows, as it was when the scan was made."""

from __future__ import annotations

from collections.abc import Iterator

from stores.buffer import IndexedBatch
from stores.engines.engine import Engine, Scan
from stores.merge import Pair, chunks_of, lay_over
from stores.ranges import KeyRanges
from stores.strategies.spilled import Spill, SpilledWrites


class HeldState:
    """A range of the uncommitted state of a moment, from below: what is committed, what was spilled, frozen layers.

    Nothing of it may change while it is made. To be released once, on any thread; its chunks end before.
    """

    __slots__ = ("_batch", "_committed", "_end", "_end_open", "_layers", "_reverse", "_spilled", "_start")

    def __init__(
        self,
        engine: Engine,
        spill: Spill | None,
        batch: IndexedBatch,
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool,
        reverse: bool,
    ) -> None:
        self._batch = batch
        self._start, self._end, self._end_open, self._reverse = start, end, end_open, reverse
        self._committed = engine.scan(start, end, end_open=end_open, reverse=reverse)
        self._spilled: tuple[Spill, Scan, KeyRanges] | None = None
        if spill is not None:
            try:
                spilled = spill.scan(start, end, end_open=end_open, reverse=reverse)
            except BaseException:
                self._committed.close()
                raise
            spill.pins.add(spilled)
            hidden = KeyRanges()
            hidden.update(spill.ranges)
            self._spilled = spill, spilled, hidden
        self._layers = batch.freeze()

    def chunks(self) -> Iterator[list[Pair]]:
        """All in one, in order. Nothing is sorted before the first step."""
        start, end, end_open, reverse = self._start, self._end, self._end_open, self._reverse
        chunks = chunks_of(self._committed)
        if self._spilled is not None:
            spill, scan, hidden = self._spilled
            chunks = lay_over(chunks, SpilledWrites(scan, spill.token, reverse=reverse), hidden, reverse=reverse)
        for layer in self._layers:
            staged = layer.scan(start, end, end_open=end_open, reverse=reverse)
            chunks = lay_over(chunks, staged, layer.ranges, reverse=reverse)
        yield from chunks

    def release(self) -> None:
        """Let go of it all, on any thread."""
        self._committed.close()
        if self._spilled is not None:
            spill, scan, _ = self._spilled
            scan.close()
            spill.pins.discard(scan)
        self._batch.release(self._layers)
