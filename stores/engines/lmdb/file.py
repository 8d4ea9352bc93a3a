"""Checks of LMDB's file before LMDB maps it, for damage that LMDB does not detect or that would crash the process.

An opening trusts the pages that it reads: a damaged one may end the process, or keep it busy for ever.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from struct import Struct, error
from typing import Any

import lmdb.verify

from stores.engines.lmdb.meta_pages import read_meta_pages
from stores.errors import StoreUnavailableError, damaged
from stores.files.plain_files import StrangeFileError, open_plain

DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"
_PAGE_NUMBER_BYTES = 8
_READER_BYTES = 64
_RESERVED_READERS_MAX = 256


def database_bytes(path: Path) -> int | None:
    """Return the size of the database's file, None if there is none. Raises: StoreCorruptedError if it was removed.

    LMDB would create an empty one there. A map of twice this size holds a copy of each page.
    """
    file = path / DATA_FILE
    try:
        num_bytes = os.stat(file).st_size
    except FileNotFoundError:
        num_bytes = None
    if not num_bytes and (path / LOCK_FILE).exists():
        raise damaged(f"{file} is missing or empty")
    return num_bytes


def reserve_lock_file(path: Path, max_readers: int) -> None:
    """Allocate disk space for the lock file: its header and up to 256 reader slots.

    LMDB maps this file with holes and writes to them. If the disk is full at that moment, SIGBUS kills the process. The
    allocation never exceeds the size that LMDB gives the file. Raises: OSError; StoreCorruptedError if something else
    than a file has its name.
    """
    try:
        descriptor = open_plain(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    except StrangeFileError as error:
        raise damaged(str(error)) from error
    try:
        os.posix_fallocate(descriptor, 0, _READER_BYTES * min(max_readers, _RESERVED_READERS_MAX))
    finally:
        os.close(descriptor)


def check_structure(path: Path) -> None:
    """Check that each page of the file is sound, and is used once or free. Raises: StoreCorruptedError."""
    try:
        with open(path / DATA_FILE, "rb") as file:
            problems: Sequence[str] = _PageVerifier(file, os.stat(file.fileno()).st_size).verify()
    except (lmdb.verify.VerifyError, struct.error) as error:
        problems = [str(error)]
    except OSError as error:
        raise StoreUnavailableError(f"{path} can't be read: {error.strerror}. Make it readable") from error
    if problems:
        raise damaged(f"{path} is damaged ({problems[0]})")


_Verifier: Any = lmdb.verify._Verifier


class _PageVerifier(_Verifier):  # type: ignore[misc]
    """The verifier of py-lmdb, which would take a value with more pages than it needs for damage.

    LMDB leaves a value its pages if a transaction replaces it by a shorter one that it has put itself. They are in use,
    so a damaged number of them still shows: it takes a page that is another's, or free. Source: LMDB 0.9, ``mdb.c``,
    ``mdb_cursor_put``, "Is the ov page large enough?".
    """

    def _bigdata(self, ctx: Any, pgno: int, i: int, buf: bytes, doff: int, dsize: int, want_bytes: bool) -> Any:
        room_bytes = self._num_pages(buf[doff : doff + _PAGE_NUMBER_BYTES]) * self.psize - self.hdrsz
        data = super()._bigdata(ctx, pgno, i, buf, doff, max(dsize, room_bytes), want_bytes)
        return None if data is None else data[:dsize]

    def _num_pages(self, first: bytes) -> int:
        """Return the number of pages of a value by the first of them, 0 if that is none or they end after the file."""
        number = int.from_bytes(first, sys.byteorder)
        page = self.read_page(number) if number < self.next_pgno else None
        num_pages = 0 if page is None else int(self._pg_pages(page, 0))
        return num_pages if number + num_pages <= self.next_pgno else 0


def check_length(env: Any, path: Path) -> None:
    """Refuse a truncated database: a read beyond the end of a mapped file kills the process."""
    file = path / DATA_FILE
    if file.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        # Free pages at the end may never have been written. Only a check of all pages shows whether any is in use.
        check_structure(path)


_VERSION = (1).to_bytes(4, sys.byteorder)
_RECORD = Struct("=I H H 4Q Q")
"""The record of a database: padding, flags, depth, four counts of pages and entries, root."""
_HEADER = Struct("=Q H H H H")
"""Page number, padding, flags, and the bounds of the free space."""
_NODE = Struct("=H H H H")
"""Low and high half of the size or child, flags, and the length of the key."""
_BRANCH, _LEAF, _SUBDATA, _BIGDATA = 1, 2, 2, 1
_NO_PAGE = (1 << 64) - 1
_PAGES_MAX = 256
"""The most pages that are looked at. The meta entries of a store take one or two."""


class _DoubtfulPageError(Exception):
    """A page is not one that LMDB writes."""


def are_doubtful(path: Path, names: Collection[bytes]) -> bool:
    """Return whether the pages of the database of names, and of the databases ``names`` in it, may be damaged.

    Files that LMDB refuses by itself, or of another version, are not doubtful. Raises: as ``read_meta_pages``.
    """
    file = path / DATA_FILE
    pages = read_meta_pages(file)
    if pages is None or pages[0].fixed[0] != _VERSION:
        return False
    newer = max(pages, key=lambda page: page.transaction_id)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tree = _Tree(descriptor, pages[0].fixed[1], newer.last_page)
        records = tree.leaves(newer.names_root)
        for name, (flags, data) in records.items():
            if name in names:
                if flags != _SUBDATA or len(data) != _RECORD.size:
                    return True
                tree.leaves(_RECORD.unpack(data)[-1])
        return False
    except (_DoubtfulPageError, error):
        return True
    finally:
        os.close(descriptor)


class _Tree:
    """The trees of one file, up to its last page."""

    def __init__(self, descriptor: int, page_bytes: int, last_page: int) -> None:
        self._descriptor, self._page_bytes, self._last_page = descriptor, page_bytes, last_page
        self._seen = 0

    def leaves(self, root: int) -> dict[bytes, tuple[int, bytes]]:
        """Return the flags and data of all keys. Raises: _DoubtfulPageError, struct.error, OSError."""
        entries: dict[bytes, tuple[int, bytes]] = {}
        waiting = [] if root == _NO_PAGE else [root]
        while waiting:
            number = waiting.pop()
            self._seen += 1
            page = (
                os.pread(self._descriptor, self._page_bytes, number * self._page_bytes)
                if self._is_page(number)
                else b""
            )
            if self._seen > _PAGES_MAX or len(page) < self._page_bytes:
                raise _DoubtfulPageError
            own, _, flags, lower, upper = _HEADER.unpack_from(page)
            if own != number or flags & 0xF not in (_BRANCH, _LEAF) or not _HEADER.size < lower <= upper <= len(page):
                raise _DoubtfulPageError
            for at in range(_HEADER.size, lower, 2):
                node = int.from_bytes(page[at : at + 2], "little")
                low, high, node_flags, key_bytes = _NODE.unpack_from(page, node)
                start = node + _NODE.size
                if node < upper or start + key_bytes > len(page):
                    raise _DoubtfulPageError
                if flags & _BRANCH:
                    waiting.append(low | high << 16 | node_flags << 32)
                    continue
                end = start + key_bytes + (8 if node_flags & _BIGDATA else low | high << 16)
                if node_flags & ~(_SUBDATA | _BIGDATA) or end > len(page):
                    raise _DoubtfulPageError
                entries[page[start : start + key_bytes]] = node_flags, page[start + key_bytes : end]
        return entries

    def _is_page(self, number: int) -> bool:
        return 1 < number <= self._last_page
