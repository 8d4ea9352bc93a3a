"""Logs and manifests of RocksDB as the records that they are made of: whether reading them can go on for ever, or ends
too soon.

A file is a row of blocks, each a row of records behind a header: checksum (4 bytes), length (2, little-endian), type
(1). Source: RocksDB's wiki, "Write Ahead Log File Format".
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

_BLOCK_BYTES = 32 << 10
_BLOCKS_PER_READ = 32
_HEADER_BYTES = 7
_LENGTH_AND_TYPE = Struct("<HB")
_ZERO, _LAST = 0, 4
"""Types of a record: none (space that was never written), then full, first, middle and last; nothing here writes more.
"""


def has_foreign_record(file: Path) -> bool:
    """Whether a reader of ``file`` may come upon a type of record that is never written here. Raises: OSError.

    RocksDB 9.8 reads such a record again and again where it is one of a reused log (types 5 to 8, and 11) and not the
    first. No checksum is looked at: a reader leaves a block at a wrong one, so it comes upon no more than this does.
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
    """Whether the last record of ``file`` would go on behind its end. Raises: OSError.

    RocksDB takes it for one that a crash cut short, and goes on without it: also where what was cut is the truth about
    its length, by a flipped bit.
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
