"""Staged writes that have left memory, in an engine beside the regular one: keys behind a token, values with a tag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from stores.buffer import MISSING, Layer, Missing
from stores.engines.engine import Engine, Scan, Writes
from stores.merge import Staged, StagedWrites, chunks_of
from stores.ranges import Bounds, KeyRanges

TOKEN_BYTES = 8
"""Length of the token before each key, where transactions follow each other in one engine."""
_VALUE, _TOMBSTONE = b"\x01", b"\x00"


class Spill:
    """What of one transaction is in ``engine``. Each write goes there in parts of about ``part_bytes``: nothing of it
    counts before the strategy says so."""

    def __init__(self, engine: Engine, token: bytes, part_bytes: int) -> None:
        self.engine, self.token = engine, token
        self._part_bytes = part_bytes
        self._empty = True
        self.ranges = KeyRanges()
        """The range deletes that came before what is here, or among it: they hide what is committed."""
        self.pins: set[Scan] = set()
        """Scans that readers have open."""

    def add(self, layers: Sequence[Layer]) -> None:
        """Lay ``layers``, oldest first, over what is here. May be repeated where it raised, as ``Engine.write``."""
        for layer in layers:
            # A range matters where something older is.
            if layer.ranges and not self._empty:
                self._write(self._bounds_of(layer), {})
            self._empty = False
            writes = layer.staged.writes
            part: dict[bytes, bytes | None] = {}
            num_bytes = 0
            for key in chain.from_iterable(layer.staged.merge(None, None)):
                value = writes[key]
                part[self.token + key] = tagged(value)
                num_bytes += len(key) + len(value or b"")
                if num_bytes >= self._part_bytes:
                    self._write((), part)
                    part, num_bytes = {}, 0
            if part:
                self._write((), part)

    def hide(self, layers: Sequence[Layer]) -> None:
        """Let the ranges of ``layers``, which are here now, hide what is committed. No reader may look meanwhile."""
        for layer in layers:
            self.ranges.update(layer.ranges)

    def as_writes(self, layers: Sequence[Layer]) -> list[Writes]:
        """``layers`` as ``add`` would write them where nothing is here yet, for one write."""
        return [
            Writes(
                self._bounds_of(layer) if number else (),
                {self.token + key: tagged(value) for key, value in layer.staged.writes.items()},
            )
            for number, layer in enumerate(layers)
        ]

    def pairs_between(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, int]]:
        """The keys of ``start <= key < end`` that have a write here, with the bytes of key and value."""
        if start is not None and end == start + b"\x00":
            # Of one key, a lookup costs less than a scan.
            value = self.get(start)
            if not isinstance(value, Missing):
                yield start, len(start) + len(value or b"")
            return
        scan = self.scan(start, end, end_open=True)
        try:
            for pairs in chunks_of(scan):
                for key, kept in pairs:
                    yield key[len(self.token) :], len(key) - len(self.token) + len(kept) - 1
        finally:
            scan.close()

    def get(self, key: bytes) -> bytes | Missing | None:
        """The write of ``key`` that is here, None for a delete, MISSING where there is none."""
        kept = self.engine.get(self.token + key)
        return MISSING if kept is None else untagged(kept)

    def lookup(self, key: bytes) -> bytes | Missing | None:
        """As ``get``, and None where a range delete hides what is committed under ``key``."""
        value = self.get(key)
        return None if value is MISSING and key in self.ranges else value

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False) -> Scan:
        """The writes of a range as they are kept, to be given to ``SpilledWrites``."""
        first, last = self._bounds(start, end)
        return self.engine.scan(first, last, end_open=end_open, reverse=reverse)

    def writes(self) -> Iterator[Staged]:
        """All writes, ascending."""
        for pairs in chunks_of(self.scan(None, None)):
            for key, kept in pairs:
                yield key[len(self.token) :], untagged(kept)

    def _write(self, ranges: Sequence[Bounds], writes: dict[bytes, bytes | None]) -> None:
        self.engine.write([Writes(ranges, writes)], {}, durable=False)

    def _bounds_of(self, layer: Layer) -> list[Bounds]:
        return [self._bounds(start, end) for start, end in layer.ranges]

    def _bounds(self, start: bytes | None, end: bytes | None) -> Bounds:
        """``start`` and ``end`` as keys of the engine; no key of its own is a bare token."""
        if not self.token:
            return start, end
        return self.token + (start or b""), after(self.token) if end is None else self.token + end


class SpilledWrites(StagedWrites):
    """Writes of a spill, in the order of ``scan``, which is one of its own."""

    def __init__(self, scan: Scan, token: bytes, *, reverse: bool) -> None:
        self._scan, self._key_from, self._reverse = scan, len(token), reverse
        self._next: list[Staged] = []

    def take_to(self, key: bytes) -> Iterator[list[Staged]]:
        while self._fill():
            cut = sum(staged[0] >= key if self._reverse else staged[0] <= key for staged in self._next)
            taken, self._next = self._next[:cut], self._next[cut:]
            if taken:
                yield taken[::-1] if self._reverse else taken
            if self._next:
                break

    def take_some(self) -> list[Staged]:
        self._fill()
        taken, self._next = self._next, []
        return taken[::-1] if self._reverse else taken

    def _fill(self) -> bool:
        if not self._next:
            self._next = [(key[self._key_from :], untagged(kept)) for key, kept in self._scan.fetch()]
        return bool(self._next)


def after(token: bytes) -> bytes:
    """The end of the keys behind ``token``; it is no key itself. A token begins with a zero, so there is always one."""
    return (int.from_bytes(token, "big") + 1).to_bytes(TOKEN_BYTES, "big")


def tagged(value: bytes | None) -> bytes:
    """A staged value, or a delete, as it is kept."""
    return _TOMBSTONE if value is None else _VALUE + value


def untagged(kept: bytes) -> bytes | None:
    """The staged value, or None for a delete."""
    return kept[1:] if kept[:1] == _VALUE else None
