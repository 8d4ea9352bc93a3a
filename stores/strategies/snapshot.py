"""The snapshot of a scan of uncommitted data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stores.batch.buffer import IndexedBatch, Layer
from stores.batch.merge import Pair, chunks_of, lay_over
from stores.engines.engine import Engine, Scan
from stores.ordered.ranges import KeyRanges, ScanRange
from stores.strategies.spilled import Spill, SpilledWrites


class HeldState:
    """A snapshot of a range of the uncommitted state: committed data, the spill and frozen layers, in merge order.

    It is released once, on any thread. No chunk may be read after that.
    """

    __slots__ = ("_batch", "_bounds", "_committed", "_layers", "_reverse", "_spilled")

    def __init__(
        self,
        committed: Scan,
        spilled: tuple[Spill, Scan, KeyRanges] | None,
        batch: IndexedBatch,
        layers: tuple[Layer, ...],
        bounds: ScanRange,
        *,
        reverse: bool,
    ) -> None:
        self._committed, self._spilled, self._batch, self._layers = committed, spilled, batch, layers
        self._bounds, self._reverse = bounds, reverse

    def chunks(self) -> Iterator[list[Pair]]:
        """Yield the merged pairs in order. Nothing is sorted before the first step."""
        start, end, end_open, _ = self._bounds
        reverse = self._reverse
        chunks = chunks_of(self._committed)
        if self._spilled is not None:
            spill, scan, hidden = self._spilled
            chunks = lay_over(chunks, SpilledWrites(scan, spill.token, reverse=reverse), hidden, reverse=reverse)
        for layer in self._layers:
            staged = layer.scan(start, end, end_open=end_open, reverse=reverse)
            chunks = lay_over(chunks, staged, layer.ranges, reverse=reverse)
        yield from chunks

    def release(self) -> None:
        """Release the scans and the layers. May be called on any thread."""
        self._committed.close()
        if self._spilled is not None:
            spill, scan, _ = self._spilled
            scan.close()
            spill.pins.discard(scan)
        self._batch.release(self._layers)


def hold(
    engine: Engine, spill: Spill | None, batch: IndexedBatch, ranges: Sequence[ScanRange], *, reverse: bool
) -> list[HeldState]:
    """Return a snapshot of each of ``ranges``, all of the same state. No staged or spilled write may go meanwhile."""
    committed = engine.scans(ranges, reverse=reverse)
    spilled: list[tuple[Spill, Scan, KeyRanges] | None] = []
    try:
        for start, end, end_open, _ in ranges:
            if spill is None:
                spilled.append(None)
                continue
            scan = spill.scan(start, end, end_open=end_open, reverse=reverse)
            spill.pins.add(scan)
            hidden = KeyRanges()
            hidden.update(spill.ranges)
            spilled.append((spill, scan, hidden))
    except BaseException:
        for scan in committed:
            scan.close()
        for kept in spilled:
            if kept is not None:
                kept[1].close()
                kept[0].pins.discard(kept[1])
        raise
    layers = batch.freeze(len(ranges))
    return [
        HeldState(below, kept, batch, layers, bounds, reverse=reverse)
        for below, kept, bounds in zip(committed, spilled, ranges, strict=True)
    ]
