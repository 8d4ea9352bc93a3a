"""Background writeback, made to happen often: parts of the kernel's page cache, and commits of the journal.

None of it is an operation of the watched process, and by the model it makes nothing durable.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from random import Random

_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
"""Source: sync_file_range(2)."""
_PAGE_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def write_something_back(root: Path, beside: Path, rng: Random) -> None:
    """Write back some pages of a file below ``root``, or sync ``beside``, another file of the same file system."""
    if rng.random() < 0.3:
        sync_beside(beside)
        return
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if files:
        write_back(rng.choice(files), rng)


def sync_beside(beside: Path) -> None:
    """Extend and sync the file ``beside``, which commits the journal with all that it contains."""
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"beside")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_back(path: Path, rng: Random) -> None:
    """Write back some cached pages of the file at ``path``: its bytes alone, no names and no journal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # The watched process has removed it meanwhile.
        return
    try:
        pages = -(-os.fstat(descriptor).st_size // _PAGE_BYTES)
        first = rng.randrange(pages) if pages else 0
        count = rng.randint(1, max(1, pages - first))
        flags = _WAIT_BEFORE | _WRITE | _WAIT_AFTER
        if _libc.sync_file_range(descriptor, first * _PAGE_BYTES, count * _PAGE_BYTES, flags) != 0:
            raise OSError(ctypes.get_errno(), "sync_file_range", str(path))
    finally:
        os.close(descriptor)
