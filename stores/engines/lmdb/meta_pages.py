"""LMDB's two meta pages, and the checksum that the library adds to each.

Commit N writes its roots, the length of the file and its transaction ID N into meta page N & 1. LMDB goes by the page
with the higher ID, and has no checksum of it. It uses the first 152 bytes of a meta page and never touches the others.
There this engine keeps which commit wrote the page, and a CRC-32 of those bytes.

The checksum is written after the commit and is not synced by itself. It lies in the file that LMDB syncs before it
writes the next meta page. So these states are left by a crash, and every other one is damage:

    newer page  older page  left by
    fits        fits        a kill or power loss between two commits
    one behind  fits        a kill or power loss after a meta page was written, before its checksum was
    fits        misfits     a meta page that LMDB could not write; it puts the old ID over the new roots

"One behind" means that the checksum is of the commit that wrote the page before. Such a page may be torn: the whole
structure of the file is then checked. Below DISK power loss makes the store count as torn, whatever lies here.
After a clean close both pages fit: else it is damage. A store of format version 2 or older has no checksums; it gets
them when it is opened.

What remains unseen: a store that was killed between two commits, and a flip of that one bit of the older page's ID
which makes it the newer one. No checksum is needed for that after a clean close, which has none one behind.
Source: LMDB 0.9, ``mdb.c``, ``MDB_page``, ``MDB_meta``, ``mdb_env_write_meta``, ``mdb_env_pick_meta``.
"""

from __future__ import annotations

import errno
import os
from enum import Enum, auto
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from stores.errors import StoreCorruptedError, StoreError

_HEAD = Struct("=16x I 4s 16x I 2s 42x 6s 42x Q Q")
"""The page's own header; magic number and version; of the free list the size of a page, and flags; padding and flags of
the database of names; the last page, and the transaction ID."""
_MAGIC = 0xBEEFC0DE
_PAGE_SIZES = tuple(256 << power for power in range(9))
"""The sizes that a page may have, in bytes. Source: LMDB 0.9, ``mdb.c``, ``MAX_PAGESIZE``."""
_CHECKSUM_AT = 192
"""Where a page's checksum begins: in the same sector, and whole within one block of 64 bytes."""
_COUNTED = Struct("<QI")
"""Transaction ID; CRC-32 of the first ``_HEAD.size`` bytes of the page."""
_CRC = Struct("<I")
"""CRC-32 of the two above."""
_CHECKSUM_BYTES = _COUNTED.size + _CRC.size
_READ_BYTES = _CHECKSUM_AT + _CHECKSUM_BYTES
_HELD_MAX = 256
"""How many stores of a process keep a descriptor for their checksums; all others open the file in each commit, which
takes some ten microseconds longer. Descriptors are few: a store of LMDB takes three without it."""


class Fit(Enum):
    """What the checksum of a meta page says about the page."""

    FITS = auto()
    ABSENT = auto()
    """All zeros: the store was made by an older release, or by a commit that never had its checksum written."""
    ONE_BEHIND = auto()
    """It is sound, and of the commit that wrote this page before."""
    MISFITS = auto()
    """It is of the same commit, and the page is not what was written."""
    WRONG = auto()
    """It is damaged, or of another commit."""


class MetaPage(NamedTuple):
    """One meta page: ``fixed`` never changes, ``names`` are the padding and flags of the database of names."""

    magic: int
    fixed: tuple[bytes, int, bytes]
    names: bytes
    last_page: int
    transaction_id: int
    fit: Fit


class Opening(NamedTuple):
    """What must be done before a database is used."""

    check_structure: bool
    """Before LMDB maps the file: the last commit has no checksum yet, or the file may be shorter than it says."""
    complete: bool
    """Checksums are missing."""


def check_meta_pages(path: Path) -> Opening:
    """Look at the meta pages of a database that a crash may have left.

    Raises: StoreCorruptedError where no crash leaves such pages; OSError.
    """
    file = path / "data.mdb"
    pages = _read(file)
    if pages is None:
        return Opening(check_structure=False, complete=True)
    older, newer = sorted(pages, key=lambda page: page.transaction_id)
    if newer.transaction_id - older.transaction_id != 1 or newer.fixed != older.fixed or newer.names != older.names:
        raise _damaged(file, "its meta pages are not those of two commits in a row")
    too_short = (newer.last_page + 1) * newer.fixed[1] > file.stat().st_size
    if older.fit is newer.fit is Fit.ABSENT:
        return Opening(too_short, complete=True)
    if newer.fit not in (Fit.FITS, Fit.ONE_BEHIND, Fit.ABSENT) or older.fit not in (Fit.FITS, Fit.MISFITS, Fit.ABSENT):
        raise _damaged(file, "a meta page is not what was written")
    unsure = newer.fit is not Fit.FITS or older.fit is Fit.ABSENT
    return Opening(too_short or unsure, complete=not newer.fit is older.fit is Fit.FITS)


def check_closed_meta_pages(path: Path) -> None:
    """Raises StoreCorruptedError unless the meta pages are as a clean close leaves them; OSError."""
    file = path / "data.mdb"
    pages = _read(file)
    if not file.exists():
        return
    if pages is None or {page.fit for page in pages} not in ({Fit.FITS}, {Fit.ABSENT}):
        raise _damaged(file, "a meta page is not what was written")


def keep_meta_pages(path: Path, page_bytes: int) -> None:
    """Make the commit that the database is at survive power loss.

    If the sync of a meta page failed and the process was then killed, the page can be read, but is not on the disk, and
    the system takes it for written. A commit that a store has shown must not be lost. So both meta pages are written
    again; what they point to was synced before they were. Raises: OSError. Source: open(2),
    "O_DSYNC"; fsync(2), "EIO".
    """
    file = path / "data.mdb"
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        _write(descriptor, os.pread(descriptor, 2 * page_bytes, 0), 0, file)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Checksums:
    """Writes the checksum of each meta page behind its commit. Used by the thread that writes, until ``close``."""

    _held = 0
    _held_lock = Lock()

    def __init__(self, path: Path, page_bytes: int) -> None:
        self._file, self._page_bytes = path / "data.mdb", page_bytes
        self._descriptor = -1
        self._lacking = self._changed = False
        with self._held_lock:
            holds = Checksums._held < _HELD_MAX
            Checksums._held += holds
        if holds:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)

    def note(self, transaction_id: int) -> None:
        """Write the checksum of the commit that has just ended. It is committed, whether or not that succeeds.

        A commit that changed nothing has written no page, and gets no checksum.
        """
        try:
            descriptor = self._opened()
            try:
                at = (transaction_id & 1) * self._page_bytes
                page = os.pread(descriptor, _HEAD.size, at)
                if int.from_bytes(page[-8:], "little") == transaction_id:
                    _write(descriptor, _checksum(transaction_id, page), at + _CHECKSUM_AT, self._file)
            finally:
                self._done(descriptor)
        except OSError:
            self._lacking = True

    def prepare(self) -> None:
        """Write what ``note`` could not; called before each commit. Raises: OSError."""
        self._changed = True
        if self._lacking:
            self.complete()

    def finish(self, *, synced: bool) -> None:
        """Make both pages fit at a clean close, with a sync of the file if ``synced``. Raises: OSError."""
        if self._changed:
            self.complete(synced=synced)

    def complete(self, *, synced: bool = False) -> None:
        """Write both checksums, whatever is there, so that they fit; ``synced`` with all that is in the file.

        Raises: OSError.
        """
        descriptor = self._opened()
        try:
            for at in (0, self._page_bytes):
                page = os.pread(descriptor, _HEAD.size, at)
                written = _checksum(int.from_bytes(page[-8:], "little"), page)
                _write(descriptor, written, at + _CHECKSUM_AT, self._file)
            if synced:
                os.fsync(descriptor)
        finally:
            self._done(descriptor)
        self._lacking = False

    def close(self) -> None:
        """Release the descriptor. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with self._held_lock:
                Checksums._held -= 1
            os.close(descriptor)

    def _opened(self) -> int:
        return self._descriptor if self._descriptor >= 0 else os.open(self._file, os.O_RDWR | os.O_CLOEXEC)

    def _done(self, descriptor: int) -> None:
        if descriptor != self._descriptor:
            os.close(descriptor)


def _read(file: Path) -> tuple[MetaPage, MetaPage] | None:
    """Both meta pages; None where there are none, or where LMDB sees by itself that they are not its own.

    Raises: StoreCorruptedError for a size of pages that does not exist; OSError.
    """
    if not file.exists():
        return None
    with file.open("rb") as opened:
        first = opened.read(_READ_BYTES)
        if len(first) < _READ_BYTES:
            return None
        page = _parsed(first)
        if page.magic != _MAGIC:
            return None
        page_bytes = page.fixed[1]
        if page_bytes not in _PAGE_SIZES:
            raise _damaged(file, f"its first page says that pages have {page_bytes:,} bytes")
        opened.seek(page_bytes)
        second = opened.read(_READ_BYTES)
    return None if len(second) < _READ_BYTES else (page, _parsed(second))


def _parsed(content: bytes) -> MetaPage:
    magic, version, page_bytes, flags, names, last_page, transaction_id = _HEAD.unpack_from(content)
    kept = content[_CHECKSUM_AT:_READ_BYTES]
    counted_id, counted = _COUNTED.unpack_from(kept)
    if not any(kept):
        fit = Fit.ABSENT
    elif _CRC.unpack_from(kept, _COUNTED.size) != (crc32(kept[: _COUNTED.size]),):
        fit = Fit.WRONG
    elif counted_id == transaction_id:
        fit = Fit.FITS if counted == crc32(content[: _HEAD.size]) else Fit.MISFITS
    else:
        fit = Fit.ONE_BEHIND if counted_id == transaction_id - 2 else Fit.WRONG
    return MetaPage(magic, (version, page_bytes, flags), names, last_page, transaction_id, fit)


def _checksum(transaction_id: int, page: bytes) -> bytes:
    counted = _COUNTED.pack(transaction_id, crc32(page[: _HEAD.size]))
    return counted + _CRC.pack(crc32(counted))


def _write(descriptor: int, content: bytes, at: int, file: Path) -> None:
    if os.pwrite(descriptor, content, at) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


def _damaged(file: Path, how: str) -> StoreError:
    return StoreCorruptedError(f"{file} is damaged ({how}): wipe the store and restore it from its changelog")
