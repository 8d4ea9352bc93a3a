"""The memory map of an LMDB store: its growth, and its share of the process's address space.

A map takes address space, but no memory and no disk. A process has 128 TiB of address space. A map can only be resized
between transactions. An ordinary write that finds the map full is repeated in a map of twice the size. A transaction of
a strategy can't be repeated: its room is reserved before it begins.

This room is for a copy of every used page, and for new pages. New pages get up to ``ROOM_MAX_BYTES`` in a process with
few stores, less in one with many, and at least half of ``ROOM_MIN_BYTES``, if the system has the address space. Pages
are at least half full of records; a value larger than some 2,000 bytes takes whole pages. So one transaction can change
all data, and add 1 GiB of small records. A larger one fails (``CommitFailedError``). It succeeds after the store is
opened with a larger ``map_size_bytes``, or in several commits.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import lmdb

from stores.errors import CommitFailedError

ROOM_MAX_BYTES = 64 << 30
ROOM_MIN_BYTES = 4 << 30
_RESERVED_MAX_BYTES = 64 << 40
"""The address space that the maps of a process share: each takes a ``_SHARE``-th of the rest."""
_SHARE = 1024
_DISK_LEFT_BYTES = 1 << 20


def room_bytes(reserved_bytes: int) -> int:
    """Return the room for a transaction of one more store in a process whose maps take ``reserved_bytes``."""
    left = max(0, _RESERVED_MAX_BYTES - reserved_bytes)
    return max(ROOM_MIN_BYTES, min(ROOM_MAX_BYTES, left // _SHARE))


class MemoryMap:
    """The map of one environment. ``release`` ends all read transactions before the map is resized.

    Its methods are called while no write transaction is open and no transaction can be opened.
    """

    _reserved_bytes: ClassVar[int] = 0
    """The address space of all maps of the process."""
    _reserved_lock: ClassVar[Lock] = Lock()

    def __init__(self, env: Any, page_bytes: int, release: Callable[[], None]) -> None:
        self._env, self._page_bytes, self._release = env, page_bytes, release
        self._size = 0
        self._room_bytes = -1
        self._count(int(env.info()["map_size"]))

    def grow(self, cause: lmdb.Error) -> None:
        """Double the map after a write has found it full. Raises: CommitFailedError, also if the disk is full."""
        path, size = Path(self._env.path()), 2 * self._size
        try:
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise CommitFailedError(f"{path}: {error.strerror}. Correct the cause and commit again") from error
        if free < _DISK_LEFT_BYTES:
            raise CommitFailedError(
                f"the disk of {path} is full ({free:,} bytes left): make room and commit again"
            ) from cause
        try:
            self._resize(size)
        except (lmdb.Error, MemoryError, OSError) as error:
            raise CommitFailedError(
                f"LMDB can't grow the map of {path} to {size:,} bytes: {error}. Free memory or disk space, and commit "
                "again"
            ) from error

    def reserve(self) -> None:
        """Make room for a transaction, as described above; less if the system gives less."""
        used = (int(self._env.info()["last_pgno"]) + 1) * self._page_bytes
        if self._room_bytes < 0:
            self._room_bytes = room_bytes(MemoryMap._reserved_bytes)
        wanted = 2 * used + self._room_bytes
        # Not for every transaction: a resize detaches all open scans.
        if self._size - 2 * used >= self._room_bytes // 2:
            return
        while wanted > self._size:
            try:
                self._resize(wanted)
            except (lmdb.Error, MemoryError, OSError):
                self._room_bytes //= 2
                wanted = used + (wanted - used) // 2
            else:
                return

    def close(self) -> None:
        """Count the address space as free. The environment is closed."""
        self._count(0)

    def _resize(self, size: int) -> None:
        # If LMDB's own resize fails, it has no map, and a read crashes the process. So try a map of this size first.
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
        self._release()
        self._env.set_mapsize(size)
        self._count(size)

    def _count(self, size: int) -> None:
        with MemoryMap._reserved_lock:
            MemoryMap._reserved_bytes += size - self._size
        self._size = size
