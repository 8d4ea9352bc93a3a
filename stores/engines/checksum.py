"""A checksum after each value, for engines whose pages have none: a flipped bit must not be read as data.

It is the CRC-32 of key and value, four bytes, little-endian. In this layout the CRC-32 of key, value and checksum is
the same number for all records, so that one call checks a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NoReturn
from zlib import crc32

from stores.engines.engine import Writes
from stores.errors import damaged

CHECKSUM_BYTES = 4
"""The size of a checksum."""

_PACK = Struct("<I").pack

_PART = 1024
"""The number of records that get their checksums at a time."""

_RESIDUE = 0x2144DF1C
"""Source: CRC-32 (ISO-HDLC), its residue: the CRC of anything followed by its own CRC."""

Pair = tuple[bytes, bytes]


class ValueCodec:
    """A codec that appends a checksum to each value. Raises, all methods that decode: StoreCorruptedError."""

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return ``value`` with its checksum."""
        return value + _PACK(crc32(key + value))

    def encode_writes(self, writes: Mapping[bytes, bytes | None], keys: list[bytes]) -> list[Pair]:
        """Return the stored pairs of those ``keys`` that ``writes`` does not delete, in their order."""
        return [(key, value + _PACK(crc32(key + value))) for key in keys if (value := writes[key]) is not None]

    def encode_layer(self, layer: Writes) -> Iterator[list[Pair]]:
        """Yield the stored pairs of all keys that ``layer`` does not delete, in key order.

        They come in parts, so that there is no second copy of a large commit in memory.
        """
        for keys in layer.keys_in_order():
            for at in range(0, len(keys), _PART):
                yield self.encode_writes(layer.writes, keys[at : at + _PART])

    def decode(self, key: bytes, kept: bytes) -> bytes:
        """Return the value without its checksum, which is verified."""
        try:
            return kept[:-CHECKSUM_BYTES] if crc32(key + kept) == _RESIDUE else _refuse(key)
        except TypeError:
            # SQLite stores a type with each value, which damage can change.
            _refuse(key)

    def decode_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs without their checksums, which are verified."""
        try:
            return [
                (key, raw[:-CHECKSUM_BYTES] if crc32(key + raw) == _RESIDUE else _refuse(key)) for key, raw in pairs
            ]
        except TypeError:
            _refuse(next(key for key, raw in pairs if not (type(key) is type(raw) is bytes)))

    def decode_scanned(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs of a scan without their checksums."""
        return self.decode_pairs(pairs)

    def decode_many(self, keys: Sequence[bytes], found: list[bytes | None]) -> list[bytes | None]:
        """Return the values of ``keys`` without their checksums, which are verified; None for a missing key."""
        try:
            return [
                raw and raw[:-CHECKSUM_BYTES] if raw is None or crc32(key + raw) == _RESIDUE else _refuse(key)
                for key, raw in zip(keys, found, strict=True)
            ]
        except TypeError:
            # As in ``decode``.
            _refuse(next(key for key, raw in zip(keys, found, strict=True) if type(raw) not in (bytes, type(None))))


class _Plain(ValueCodec):
    """A codec without checksums: values are stored unchanged."""

    def encode(self, key: bytes, value: bytes) -> bytes:
        return value

    def encode_writes(self, writes: Mapping[bytes, bytes | None], keys: list[bytes]) -> list[Pair]:
        return [(key, value) for key in keys if (value := writes[key]) is not None]

    def decode(self, key: bytes, kept: bytes) -> bytes:
        return kept

    def decode_pairs(self, pairs: list[Pair]) -> list[Pair]:
        return pairs

    def decode_many(self, keys: Sequence[bytes], found: list[bytes | None]) -> list[bytes | None]:
        return found


class _ScansUnchecked(ValueCodec):
    """A codec whose checksums are verified by lookups and not by scans."""

    def decode_scanned(self, pairs: list[Pair]) -> list[Pair]:
        if not {type(raw) for _, raw in pairs} <= {bytes}:
            return self.decode_pairs(pairs)
        return [(key, raw[:-CHECKSUM_BYTES]) for key, raw in pairs]


CHECKSUMMED, PLAIN, SCANS_UNCHECKED = ValueCodec(), _Plain(), _ScansUnchecked()


def codec_of(*, checksums: bool, scans_checked: bool) -> ValueCodec:
    """Return the codec of a store: with or without checksums, and with or without their verification in scans."""
    if not checksums:
        return PLAIN
    return CHECKSUMMED if scans_checked else SCANS_UNCHECKED


def _refuse(key: object) -> NoReturn:
    text = repr(key)
    raise damaged(
        f"the record of key {text[:60]}{'...' if len(text) > 60 else ''} does not match its checksum"
    ) from None
