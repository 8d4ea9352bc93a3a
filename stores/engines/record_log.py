"""Checks of RocksDB's WAL and manifest files for records that RocksDB would read forever, or that end too early.

A file is a sequence of blocks, and a block a sequence of records. Each record has a header: checksum (4 bytes), length
(2, little-endian), type (1). Source: RocksDB's wiki, "Write Ahead Log File Format".
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

_BLOCK_BYTES = 32 << 10
_BLOCKS_PER_READ = 32
_HEADER_BYTES = 7
_LENGTH_AND_TYPE = Struct("<HB")
_ZERO, _LAST = 0, 4
"""The first and the last type of a record: 0 is unwritten space, 1 to 4 are full, first, middle and last."""


def has_foreign_record(file: Path) -> bool:
    """Return True if a reader of ``file`` may find a record of a type that is never written here. Raises: OSError.

    RocksDB 9.8 reads a record of a reused log (types 5 to 8, and 11) again and again, if it is not the first one. The
    checksums are not verified here: a reader leaves a block at a wrong checksum, so that it finds no more than this.
    """
    header, step = _LENGTH_AND_TYPE.unpack_from, _HEADER_BYTES
    with file.open("rb") as opened:
        while content := opened.read(_BLOCKS_PER_READ * _BLOCK_BYTES):
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
    with file.open("rb") as opened:
        content = opened.read()
    at, size = 0, len(content)
    while at < size:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
        elif at + _HEADER_BYTES > size:
            return True
        else:
            at += _HEADER_BYTES + _LENGTH_AND_TYPE.unpack_from(content, at + 4)[0]
    return at > size
