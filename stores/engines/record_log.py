"""Checks of RocksDB's WAL and manifest files for records that RocksDB would read forever, or that end too early.

A file is a sequence of blocks, and a block a sequence of records. Each record has a header: checksum (4 bytes), length
(2, little-endian), type (1). Source: RocksDB's wiki, "Write Ahead Log File Format".
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

_BLOCK_BYTES = 32 << 10
_BLOCKS_PER_READ = 32
_HEADER_BYTES = 7
_LENGTH_AND_TYPE = Struct("<HB")
_ZERO, _FULL, _FIRST, _LAST = 0, 1, 2, 4
"""Types of a record: 0 is unwritten space, 1 to 4 are full, first, middle and last."""
_CHECKSUM = Struct("<I")
_CRC32C_POLYNOMIAL = 0x82F63B78


def has_foreign_record(file: Path) -> bool:
    """Return True if a reader of ``file`` may find a record of a type that is never written here. Raises: OSError.

    RocksDB 9.8 reads a record of a reused log (types 5 to 8, and 11) again and again, if it is not the first one. The
    checksums are not verified here: a reader leaves a block at a wrong checksum, so that it finds no more than this.
    """
    header, step = _LENGTH_AND_TYPE.unpack_from, _HEADER_BYTES
    with file.open("rb") as stream:
        while content := stream.read(_BLOCKS_PER_READ * _BLOCK_BYTES):
            for begin in range(0, len(content), _BLOCK_BYTES):
                at, end = begin, min(begin + _BLOCK_BYTES, len(content)) - step
                while at <= end:
                    length, kind = header(content, at + 4)
                    if kind > _LAST:
                        return True
                    if kind == _ZERO and not length:
                        break
                    at += step + length
    return False


def has_cut_record(file: Path) -> bool:
    """Return True if the last record of ``file`` would extend beyond the end of the file. Raises: OSError.

    RocksDB assumes that a crash interrupted its write, and ignores it, even if a flipped bit in the record's length is
    the reason.
    """
    with file.open("rb") as stream:
        content = stream.read()
    at, size = 0, len(content)
    while at < size:
        rest = _BLOCK_BYTES - at % _BLOCK_BYTES
        if rest < _HEADER_BYTES:
            at += rest
        elif at + _HEADER_BYTES > size:
            return True
        else:
            at += _HEADER_BYTES + _LENGTH_AND_TYPE.unpack_from(content, at + 4)[0]
    return at > size


def torn_record(file: Path) -> int | None:
    """Return where the record begins that a torn write has left at the end of ``file``; None if there is none.

    Such a record has a wrong checksum, and the file has only zeros from a place within it on. The file system had made
    the file longer, and power was lost before the rest was written. If the record has several fragments, this is where
    the first one begins. Raises: OSError.
    """
    with file.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        if not stream.tell():
            return None
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\0":
            return None
        stream.seek(0)
        content = stream.read()
    num_bytes = len(content.rstrip(b"\0"))
    at = begin = 0
    whole = True
    while at < num_bytes:
        rest = _BLOCK_BYTES - at % _BLOCK_BYTES
        if rest < _HEADER_BYTES:
            at += rest
            continue
        length, kind = _LENGTH_AND_TYPE.unpack_from(content.ljust(at + _HEADER_BYTES, b"\0"), at + 4)
        end = at + _HEADER_BYTES + length
        if kind in (_FULL, _FIRST) or whole:
            begin = at
        if end > num_bytes and _is_torn(content, at, end):
            return begin
        whole = kind in (_FULL, _LAST)
        at = end
    return None


def _is_torn(content: bytes, at: int, end: int) -> bool:
    """Return whether the record in ``content[at:end]`` lies in the file and has a wrong checksum."""
    if end > len(content):
        return False  # RocksDB itself takes this for a torn write.
    # The checksum is over the type and the payload, and stored rotated and shifted. Source: LevelDB, log format.
    checksum = _crc32c(content[at + _HEADER_BYTES - 1 : end])
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (checksum_on_disk,) = _CHECKSUM.unpack_from(content, at)
    return bool(masked != checksum_on_disk)


def _crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of ``content``. Source: RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC32C_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
