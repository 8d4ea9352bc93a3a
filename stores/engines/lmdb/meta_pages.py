"""LMDB's two meta pages, and the checksum that the library adds to each.

Commit N writes its roots, the length of the file and its transaction ID N into meta page N & 1. LMDB goes by the page
with the higher ID, and has no checksum of it. It uses the first 152 bytes of a meta page and never touches the others.
There this engine keeps which commit wrote the page, and a CRC-32 of those bytes.

The checksum is written after the commit and is not synced by itself. It lies in the file that LMDB syncs before it
writes the next meta page. So these states are left by a crash, and every other one is damage:

    newer page  older page  left by
    fits        fits        a kill or power loss between two commits
    one behind  fits        a kill or power loss after a meta page was written, before its checksum was
    torn        fits        a kill inside the write of the checksum
    fits        misfits     a meta page that LMDB could not write; it puts the old ID over the new roots. Or a kill
                            inside the write of the page
    fits        torn        a kill inside the write of that page's checksum at the next opening

"One behind" means that the checksum is of the commit that wrote the page before. Such a page may be torn. "Torn" means
that the checksum itself is damaged: it says nothing about the page. In both cases the whole structure of the file is
checked. Below DISK a store counts as torn after power loss, whatever its meta pages are. After a clean close both pages
must fit; everything else is damage. A copy that LMDB has made has no checksums. It gets them when it is opened.

One case is not detected: a store was killed between two commits, and the bit of the older page's ID flips that makes it
the newer one. After a clean close this flip is detected, because no page may then be "one behind".
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

from stores.errors import StoreError, damaged

_HEAD = Struct("=16x I 4s 16x I 2s 42x 6s 34x Q Q Q")
"""The page's own header; magic number and version; of the free list the size of a page, and flags; padding, flags and
root of the database of names; the last page, and the transaction ID."""
_MAGIC = 0xBEEFC0DE
_PAGE_SIZES = tuple(256 << power for power in range(9))
"""The sizes that a page may have, in bytes. Source: LMDB 0.9, ``mdb.c``, ``MAX_PAGESIZE``."""
_CHECKSUM_AT = 192
"""The offset of a page's checksum: in the same sector, and within one block of 64 bytes."""
_COUNTED = Struct("<QI")
"""Transaction ID; CRC-32 of the first ``_HEAD.size`` bytes of the page."""
_CRC = Struct("<I")
"""CRC-32 of the two above."""
_CHECKSUM_BYTES = _COUNTED.size + _CRC.size
_READ_BYTES = _CHECKSUM_AT + _CHECKSUM_BYTES
_HELD_MAX = 256
"""The number of stores of a process that keep a descriptor for their checksums. All others open the file in each
commit, which takes some ten microseconds longer. Descriptors are scarce: a store of LMDB takes three without it."""


class Fit(Enum):
    """The result of comparing a meta page with its checksum."""

    FITS = auto()
    ABSENT = auto()
    """All zeros: the page is of a copy by LMDB, or of a commit whose checksum was not written."""
    ONE_BEHIND = auto()
    """The checksum is sound, and is that of the commit that wrote this page before."""
    MISFITS = auto()
    """The checksum is that of the same commit, and the page is not what was written."""
    TORN = auto()
    """The checksum is damaged, or was written in part."""
    WRONG = auto()
    """The checksum is sound, and is that of another commit."""


class MetaPage(NamedTuple):
    """One meta page: ``fixed`` never changes, ``names`` are the padding and flags of the database of names."""

    magic: int
    fixed: tuple[bytes, int, bytes]
    names: bytes
    names_root: int
    last_page: int
    transaction_id: int
    fit: Fit


class OpeningSteps(NamedTuple):
    """The steps that are needed before a database is used."""

    check_structure: bool
    """Check all pages before LMDB maps the file: the last commit has no checksum, or the file may be truncated."""
    complete: bool
    """Write the missing checksums."""


def check_meta_pages(path: Path) -> OpeningSteps:
    """Check the meta pages of a database, maybe after a crash.

    Raises: StoreCorruptedError if a crash can't be the reason for their state; OSError.
    """
    file = path / "data.mdb"
    pages = read_meta_pages(file)
    if pages is None:
        return OpeningSteps(check_structure=False, complete=True)
    older, newer = sorted(pages, key=lambda page: page.transaction_id)
    if newer.transaction_id - older.transaction_id != 1 or newer.fixed != older.fixed or newer.names != older.names:
        raise _damaged(file, "its meta pages are not those of two commits in a row")
    too_short = (newer.last_page + 1) * newer.fixed[1] > file.stat().st_size
    if older.fit is newer.fit is Fit.ABSENT:
        return OpeningSteps(too_short, complete=True)
    if newer.fit in (Fit.MISFITS, Fit.WRONG) or older.fit in (Fit.ONE_BEHIND, Fit.WRONG):
        raise _damaged(file, "a meta page is not what was written")
    unsure = newer.fit is not Fit.FITS or older.fit is Fit.ABSENT
    return OpeningSteps(too_short or unsure, complete=not newer.fit is older.fit is Fit.FITS)


def check_closed_meta_pages(path: Path, *, before_commit: bool = False) -> None:
    """Check the meta pages of a database after a clean close. Raises: StoreCorruptedError; OSError.

    ``before_commit`` leaves out the older one, which the next commit writes over: an attempt may have written a part.
    """
    file = path / "data.mdb"
    pages = read_meta_pages(file)
    if not file.exists():
        return
    if pages is not None and before_commit:
        older, newer = sorted(pages, key=lambda page: page.transaction_id)
        if (older.fit, newer.fit) == (Fit.MISFITS, Fit.FITS):
            return
    if pages is None or {page.fit for page in pages} not in ({Fit.FITS}, {Fit.ABSENT}):
        raise _damaged(file, "a meta page is not what was written")


def keep_meta_pages(path: Path, page_bytes: int) -> None:
    """Make the last commit of the database survive power loss.

    If the sync of a meta page failed and the process was then killed, the page cache has the page, marked clean, but
    the disk does not. A commit that a store has shown must not be lost. So both meta pages are written again and
    synced. The pages that they point to were synced before. Raises: OSError.
    Source: open(2), "O_DSYNC"; fsync(2), "EIO".
    """
    file = path / "data.mdb"
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        _write(descriptor, os.pread(descriptor, 2 * page_bytes, 0), 0, file)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Checksums:
    """The checksums of the meta pages. Each is written after its commit, by the thread that writes."""

    _held = 0
    _held_lock = Lock()

    def __init__(self, path: Path, page_bytes: int, *, writable: bool = True) -> None:
        self._file, self._page_bytes = path / "data.mdb", page_bytes
        self._descriptor = -1
        self._lacking = self._changed = False
        with self._held_lock:
            holds = writable and Checksums._held < _HELD_MAX
            Checksums._held += holds
        if holds:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)

    def note(self, transaction_id: int) -> None:
        """Write the checksum of the commit that has just ended. The commit is valid even if this write fails.

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
        """Write a checksum that ``note`` failed to write. Called before each commit. Raises: OSError."""
        self._changed = True
        if self._lacking:
            self.complete()

    def finish(self, *, synced: bool) -> None:
        """Make both pages fit at a clean close, with a sync of the file if ``synced``. Raises: OSError."""
        if self._changed:
            self.complete(synced=synced)

    def complete(self, *, synced: bool = False) -> None:
        """Write both checksums so that they fit the pages. ``synced`` also syncs the whole file.

        Raises: OSError.
        """
        descriptor = self._opened()
        try:
            for at in (0, self._page_bytes):
                page = os.pread(descriptor, _HEAD.size, at)
                checksum = _checksum(int.from_bytes(page[-8:], "little"), page)
                _write(descriptor, checksum, at + _CHECKSUM_AT, self._file)
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


def read_meta_pages(file: Path) -> tuple[MetaPage, MetaPage] | None:
    """Return both meta pages; None if there are none, or if LMDB itself will refuse them.

    Raises: StoreCorruptedError for an invalid page size; OSError.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        first = os.pread(descriptor, _READ_BYTES, 0)
        if len(first) < _READ_BYTES:
            return None
        page = _parsed(first)
        if page.magic != _MAGIC:
            return None
        page_bytes = page.fixed[1]
        if page_bytes not in _PAGE_SIZES:
            raise _damaged(file, f"its first page says that pages have {page_bytes:,} bytes")
        second = os.pread(descriptor, _READ_BYTES, page_bytes)
    finally:
        os.close(descriptor)
    return None if len(second) < _READ_BYTES else (page, _parsed(second))


def captured_meta_pages(descriptor: int, page_bytes: int, transaction_id: int) -> tuple[bytes, int]:
    """Return both meta pages of the open database, whose last commit has this ID, and its last page.

    They have no checksums, like those of a copy by LMDB. Nothing is committed meanwhile.
    Raises: OSError; StoreCorruptedError if neither page is of this commit.
    """
    pages = bytearray(os.pread(descriptor, 2 * page_bytes, 0))
    last_page = None
    for at in (0, page_bytes):
        page = _parsed(bytes(pages[at : at + _READ_BYTES]))
        if page.transaction_id == transaction_id:
            last_page = page.last_page
        pages[at + _CHECKSUM_AT : at + _READ_BYTES] = bytes(_CHECKSUM_BYTES)
    if last_page is None:
        raise damaged(f"no meta page is of the last commit, {transaction_id}")
    return bytes(pages), last_page


def _parsed(content: bytes) -> MetaPage:
    magic, version, page_bytes, flags, names, names_root, last_page, transaction_id = _HEAD.unpack_from(content)
    record = content[_CHECKSUM_AT:_READ_BYTES]
    counted_id, checksum = _COUNTED.unpack_from(record)
    if not any(record):
        fit = Fit.ABSENT
    elif _CRC.unpack_from(record, _COUNTED.size) != (crc32(record[: _COUNTED.size]),):
        fit = Fit.TORN
    elif counted_id == transaction_id:
        fit = Fit.FITS if checksum == crc32(content[: _HEAD.size]) else Fit.MISFITS
    else:
        fit = Fit.ONE_BEHIND if counted_id == transaction_id - 2 else Fit.WRONG
    return MetaPage(magic, (version, page_bytes, flags), names, names_root, last_page, transaction_id, fit)


def _checksum(transaction_id: int, page: bytes) -> bytes:
    record = _COUNTED.pack(transaction_id, crc32(page[: _HEAD.size]))
    return record + _CRC.pack(crc32(record))


def _write(descriptor: int, content: bytes, at: int, file: Path) -> None:
    if os.pwrite(descriptor, content, at) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


def _damaged(file: Path, how: str) -> StoreError:
    return damaged(f"{file} is damaged ({how})")
