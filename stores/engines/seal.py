"""A checksum behind each value, for engines whose pages have none: a flipped bit must not be read as data.

CRC-32 of key and value, four bytes, little-endian: so laid out the CRC-32 of all three is the same for all records, and
one call checks a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NoReturn
from zlib import crc32

from stores.engines.engine import Writes
from stores.errors import StoreCorruptedError

SEAL_BYTES = 4
"""By how much a value grows."""

_PACK = Struct("<I").pack

_PART = 1024
"""How many records are sealed at a time."""

_RESIDUE = 0x2144DF1C
"""Source: CRC-32 (ISO-HDLC), its residue: the CRC of anything followed by its own CRC."""

Pair = tuple[bytes, bytes]


class Seal:
    """Checksums as they are kept: behind each value. Raises, all that opens: StoreCorruptedError."""

    def seal(self, key: bytes, value: bytes) -> bytes:
        """What is kept of a value."""
        return value + _PACK(crc32(key + value))

    def seal_writes(self, writes: Mapping[bytes, bytes | None], keys: list[bytes]) -> list[Pair]:
        """What is kept of those of ``keys`` that ``writes`` does not delete, in their order."""
        return [(key, value + _PACK(crc32(key + value))) for key in keys if (value := writes[key]) is not None]

    def seal_layer(self, layer: Writes) -> Iterator[list[Pair]]:
        """What is kept of all that ``layer`` does not delete, in key order.

        A part of it at a time, so that no large commit is in memory once more.
        """
        for keys in layer.keys_in_order():
            for at in range(0, len(keys), _PART):
                yield self.seal_writes(layer.writes, keys[at : at + _PART])

    def open(self, key: bytes, kept: bytes) -> bytes:
        """The value of what was kept."""
        try:
            return kept[:-SEAL_BYTES] if crc32(key + kept) == _RESIDUE else _refuse(key)
        except TypeError:
            # SQLite keeps the type of each value with it.
            _refuse(key)

    def open_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """The same for many."""
        try:
            return [(key, kept[:-SEAL_BYTES] if crc32(key + kept) == _RESIDUE else _refuse(key)) for key, kept in pairs]
        except TypeError:
            _refuse(next(key for key, kept in pairs if not (type(key) is type(kept) is bytes)))

    def open_scanned(self, pairs: list[Pair]) -> list[Pair]:
        """The same for what a scan has found."""
        return self.open_pairs(pairs)

    def open_many(self, keys: Sequence[bytes], found: list[bytes | None]) -> list[bytes | None]:
        """The same for what was found under ``keys``."""
        pairs = self.open_pairs([(key, kept) for key, kept in zip(keys, found, strict=True) if kept is not None])
        if len(pairs) == len(found):
            return [value for _, value in pairs]
        values = iter(pairs)
        return [None if kept is None else next(values)[1] for kept in found]


class _Plain(Seal):
    """No checksums: values as they are."""

    def seal(self, key: bytes, value: bytes) -> bytes:
        return value

    def seal_writes(self, writes: Mapping[bytes, bytes | None], keys: list[bytes]) -> list[Pair]:
        return [(key, value) for key in keys if (value := writes[key]) is not None]

    def open(self, key: bytes, kept: bytes) -> bytes:
        return kept

    def open_pairs(self, pairs: list[Pair]) -> list[Pair]:
        return pairs

    def open_many(self, keys: Sequence[bytes], found: list[bytes | None]) -> list[bytes | None]:
        return found


class _ScansUnchecked(Seal):
    """Checksums that lookups check and scans do not."""

    def open_scanned(self, pairs: list[Pair]) -> list[Pair]:
        if not {type(kept) for _, kept in pairs} <= {bytes}:
            return self.open_pairs(pairs)
        return [(key, kept[:-SEAL_BYTES]) for key, kept in pairs]


SEALED, PLAIN, SCANS_UNCHECKED = Seal(), _Plain(), _ScansUnchecked()


def checksums_of(*, checksums: bool, scans_checked: bool) -> Seal:
    """Return how a store keeps and reads checksums: whether it has them, and whether its scans check them."""
    if not checksums:
        return PLAIN
    return SEALED if scans_checked else SCANS_UNCHECKED


def _refuse(key: object) -> NoReturn:
    shown = repr(key)
    raise StoreCorruptedError(
        f"the record of key {shown[:60]}{'...' if len(shown) > 60 else ''} is not what was written: wipe the store and "
        "restore it from its changelog"
    ) from None
