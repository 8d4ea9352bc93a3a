"""Staged writes that were spilled to a separate engine: scans over them and those in memory, and their commit marker.

In that engine each key has a token as prefix, each value a tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

from stores.batch.buffer import MISSING, IndexedBatch, Layer, Missing
from stores.batch.merge import Pair, Staged, StagedWrites, chunks_of, lay_over
from stores.engines.engine import Engine, Scan, Writes
from stores.failpoints import declare, reach
from stores.files.plain_files import StrangeFileError, atomic_write, parsed_json, read_file
from stores.ordered import WHOLE, Bounds, KeyRanges, ScanRange

TOKEN_BYTES = 8
"""Length of the token before each key, if several transactions use one engine in turn."""
_VALUE, _TOMBSTONE = b"\x01", b"\x00"


class Spill:
    """The spilled writes of one transaction, in ``engine``.

    They are written in parts of about ``part_bytes``. Nothing here is committed until the strategy's commit point.
    """

    def __init__(self, engine: Engine, token: bytes, part_bytes: int) -> None:
        self.engine, self.token = engine, token
        self._part_bytes = part_bytes
        self._empty = True
        self.ranges = KeyRanges()
        """Range deletes of the transaction up to the last spill. They hide committed data."""
        self.pins: set[Scan] = set()
        """The open scans of readers."""

    def add(self, layers: Sequence[Layer]) -> None:
        """Write ``layers``, oldest first, over the earlier spilled writes. After an error it may be repeated."""
        for layer in layers:
            # A range delete matters only if older writes are here.
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

    def as_writes(self, layers: Sequence[Layer]) -> list[Writes]:
        """Return ``layers`` as ``add`` would write them to an empty spill, for a single write."""
        return [
            Writes(
                self._bounds_of(layer) if number else (),
                {self.token + key: tagged(value) for key, value in layer.staged.writes.items()},
            )
            for number, layer in enumerate(layers)
        ]

    def pairs_between(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of ``start <= key < end`` that have a write here, with the number of bytes of the pair."""
        if start is not None and end == start + b"\x00":
            # For a single key, a lookup costs less than a scan.
            value = self.get(start)
            if not isinstance(value, Missing):
                yield start, len(start) + len(value or b"")
            return
        scan = self.scan(ScanRange(start, end, end_open=True))
        try:
            for pairs in chunks_of(scan):
                for key, raw in pairs:
                    yield key[len(self.token) :], len(key) - len(self.token) + len(raw) - 1
        finally:
            scan.close()

    def get(self, key: bytes) -> bytes | Missing | None:
        """Return the spilled value of ``key``: None for a delete, MISSING if there is no write."""
        raw = self.engine.get(self.token + key)
        return MISSING if raw is None else untagged(raw)

    def lookup(self, key: bytes) -> bytes | Missing | None:
        """Like ``get``, but return None if a range delete hides the committed value of ``key``."""
        value = self.get(key)
        return None if value is MISSING and key in self.ranges else value

    def scan(self, bounds: ScanRange = WHOLE, *, reverse: bool = False) -> Scan:
        """Return a scan of the stored writes of a range, for ``SpilledWrites``."""
        start, end, end_open, _ = bounds
        return self.engine.scan(ScanRange(*self._bounds(start, end), end_open), reverse=reverse)

    def writes(self) -> Iterator[Staged]:
        """Yield all writes in ascending order."""
        for pairs in chunks_of(self.scan()):
            for key, raw in pairs:
                yield key[len(self.token) :], untagged(raw)

    def _write(self, ranges: Sequence[Bounds], writes: dict[bytes, bytes | None]) -> None:
        self.engine.write([Writes(ranges, writes)], {}, durable=False)

    def _bounds_of(self, layer: Layer) -> list[Bounds]:
        return [self._bounds(start, end) for start, end in layer.ranges]

    def _bounds(self, start: bytes | None, end: bytes | None) -> Bounds:
        """Return ``start`` and ``end`` as keys of the engine. A bare token is never a key there."""
        if not self.token:
            return start, end
        return self.token + (start or b""), after(self.token) if end is None else self.token + end


class SpilledWrites(StagedWrites):
    """The writes of a spill, in the order of ``scan``, a scan of that spill."""

    def __init__(self, scan: Scan, token: bytes, *, reverse: bool) -> None:
        self._scan, self._key_from, self._reverse = scan, len(token), reverse
        self._next: list[Staged] = []

    def take_to(self, key: bytes) -> Iterator[list[Staged]]:
        while self._fill():
            cut = sum(staged[0] >= key if self._reverse else staged[0] <= key for staged in self._next)
            writes, self._next = self._next[:cut], self._next[cut:]
            if writes:
                yield writes[::-1] if self._reverse else writes
            if self._next:
                break

    def take_some(self) -> list[Staged]:
        self._fill()
        writes, self._next = self._next, []
        return writes[::-1] if self._reverse else writes

    def _fill(self) -> bool:
        if not self._next:
            self._next = [(key[self._key_from :], untagged(raw)) for key, raw in self._scan.fetch()]
        return bool(self._next)


def after(token: bytes) -> bytes:
    """Return the exclusive end of the keys with the prefix ``token``. A token begins with a zero, so it exists."""
    return (int.from_bytes(token, "big") + 1).to_bytes(TOKEN_BYTES, "big")


def tagged(value: bytes | None) -> bytes:
    """Return the stored form of a staged value or a delete."""
    return _TOMBSTONE if value is None else _VALUE + value


def untagged(kept: bytes) -> bytes | None:
    """Return the staged value, or None for a delete, from its stored form."""
    return kept[1:] if kept[:1] == _VALUE else None


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
        reverse = self._reverse
        chunks = chunks_of(self._committed)
        if self._spilled is not None:
            spill, scan, hidden = self._spilled
            chunks = lay_over(chunks, SpilledWrites(scan, spill.token, reverse=reverse), hidden, reverse=reverse)
        for layer in self._layers:
            staged = layer.scan(self._bounds, reverse=reverse)
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
        for bounds in ranges:
            if spill is None:
                spilled.append(None)
                continue
            scan = spill.scan(bounds, reverse=reverse)
            spill.pins.add(scan)
            hidden = KeyRanges()
            hidden.update(spill.ranges)
            spilled.append((spill, scan, hidden))
    except BaseException:
        for scan in committed:
            scan.close()
        for part in spilled:
            if part is not None:
                part[1].close()
                part[0].pins.discard(part[1])
        raise
    layers = batch.freeze(len(ranges))
    return [
        HeldState(below, part, batch, layers, bounds, reverse=reverse)
        for below, part, bounds in zip(committed, spilled, ranges, strict=True)
    ]


MARKER_WRITTEN = declare("dual_store.marker_written", "the marker is written beside its place, not yet synced")
MARKER_SYNCED = declare(
    "dual_store.marker_synced",
    "the marker is in place, and synced where the level asks for it; nothing is copied",
)


_BYTES_MAX = 1 << 30
"""An upper bound of a marker's size: the bounds of a transaction's range deletes take less."""


class DamagedMarkerError(ValueError):
    """The marker's bytes are not those that were written."""


@dataclass(frozen=True)
class Marker:
    """Everything that completing a commit needs, except the staged writes: it is rolled forward once this is written.

    A dual store writes it to a file, atomically: to a temporary one, which is synced and renamed. Then its folder is
    synced. Without ``durable`` both syncs are left out. Its first line is the CRC-32 of the second, which detects
    corruption.

    Source: KIP-844, "Transactions via Secondary State Store" (commit file).
    """

    sequence: int
    """Number of the commit: one more than that of the last commit in the regular store; 0 for an indexed batch."""
    token: bytes
    """Eight random bytes: the prefix of the transaction's keys in the staging store, and part of its commit record.

    The commit's number is not enough. At CHANGELOG a crash may roll the regular store back by some commits. The numbers
    are then used again, while the staging store may still have the writes of the earlier commit with the same number.
    """
    in_parts: bool
    """True if the copy takes more than one write, so that a part of it may already be in the regular store."""
    ranges: tuple[Bounds, ...]
    """Staged range deletes. They are applied before the staged writes."""
    meta: Mapping[bytes, bytes | None]
    """Offsets and position, as meta entries."""

    @property
    def seal(self) -> bytes:
        """The commit record in the staging store, added in the same write as the transaction's last data."""
        return self.sequence.to_bytes(8, "big") + bytes([self.in_parts]) + self.token

    def text(self) -> str:
        """Return the contents of the file: a line with the checksum, and a line with the rest."""
        text = json.dumps(
            {
                "sequence": self.sequence,
                "token": self.token.hex(),
                "in_parts": self.in_parts,
                "ranges": [[_hex(start), _hex(end)] for start, end in self.ranges],
                "meta": {key.hex(): _hex(value) for key, value in self.meta.items()},
            }
        )
        return f"{crc32(text.encode()):08x}\n{text}\n"

    def write(self, path: Path, *, durable: bool) -> None:
        """Write the marker to ``path``. ``durable`` syncs it and its folder."""
        atomic_write(path, self.text().encode(), durable=durable, before_sync=partial(reach, MARKER_WRITTEN))
        reach(MARKER_SYNCED)

    @classmethod
    def read(cls, path: Path) -> Marker | None:
        """Return the marker at ``path``, or None if there is none. Raises: DamagedMarkerError, OSError."""
        try:
            raw = read_file(path, _BYTES_MAX)
        except FileNotFoundError:
            return None
        except StrangeFileError as error:
            raise DamagedMarkerError(str(error)) from error
        return cls.read_text(raw, path)

    @classmethod
    def read_text(cls, raw: bytes, where: Path) -> Marker:
        """Parse the bytes of ``text``. ``where`` names their place in errors. Raises: DamagedMarkerError."""
        try:
            checksum, text = raw.decode().split("\n")[:2]
            if int(checksum, 16) != crc32(text.encode()):
                raise DamagedMarkerError(f"{where} fails its checksum")
            fields: Any = parsed_json(text)
            sequence, in_parts = fields["sequence"], fields["in_parts"]
            if type(sequence) is not int or not 0 <= sequence < 1 << 64 or not isinstance(in_parts, bool):
                raise ValueError(f"commit {sequence!r} can't be")
            return cls(
                sequence=sequence,
                token=bytes.fromhex(fields["token"]),
                in_parts=in_parts,
                ranges=tuple((_bytes(start), _bytes(end)) for start, end in fields["ranges"]),
                meta={bytes.fromhex(key): _bytes(value) for key, value in fields["meta"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedMarkerError(f"{where} is damaged: {error}") from error


def _hex(given: bytes | None) -> str | None:
    return None if given is None else given.hex()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else bytes.fromhex(given)
