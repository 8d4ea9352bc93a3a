"""LMDB's file as it lies on disk, before LMDB maps it: what it would take for sound, or die of, and we refuse."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lmdb.verify import VerifyError, verify

from stores.errors import StoreCorruptedError, StoreError, StoreUnavailableError

_HEAD = struct.Struct("=16x I 4s 16x I 2s 42x 6s 42x Q Q")
"""Of one of the two heads of a file: its magic number and version; of the free pages the size of a page, and flags; pad
and flags of what names the databases; its last page, and the number of its commit."""
_MAGIC = 0xBEEFC0DE
_PAGE_SIZES = tuple(256 << power for power in range(9))
"""Of which one a file's pages are, in bytes. Source: LMDB 0.9, ``mdb.c``, ``MAX_PAGESIZE``."""


def has_database(path: Path) -> bool:
    """Whether there is a database; a folder whose own has gone is refused: LMDB would begin an empty one there."""
    file = path / "data.mdb"
    if (path / "lock.mdb").exists() and (not file.exists() or file.stat().st_size == 0):
        raise StoreCorruptedError(f"{file} is gone or empty: wipe the store and restore it from its changelog")
    return file.exists()


def check_heads(path: Path) -> bool:
    """Whether the file may be shorter than its heads say; one whose two heads are not of commits in a row is refused.

    LMDB goes by the one with the higher number: a flipped bit there makes an earlier commit of the last one. One bit of
    each number may do so unseen, that of 2, and ``verify`` does not see it either: what the store shows then is the
    commit before its last, whole, with its own offset.
    Source: LMDB 0.9, ``mdb.c``, ``MDB_page``, ``MDB_meta``, ``mdb_env_pick_meta``.
    """
    file = path / "data.mdb"
    if not file.exists():
        return False
    with file.open("rb") as opened:
        head = opened.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return False
        magic, version, page_bytes, *first = _HEAD.unpack(head)
        if magic == _MAGIC and page_bytes not in _PAGE_SIZES:
            raise _not_its_heads(file)
        opened.seek(page_bytes)
        head = opened.read(_HEAD.size)
    # What else is wrong with them LMDB sees itself.
    if magic != _MAGIC or len(head) < _HEAD.size:
        return False
    _, other, _, *second = _HEAD.unpack(head)
    if abs(first[-1] - second[-1]) != 1 or (version, first[:2]) != (other, second[:2]):
        raise _not_its_heads(file)
    return bool((max(first[2], second[2]) + 1) * page_bytes > file.stat().st_size)


def _not_its_heads(file: Path) -> StoreError:
    return StoreCorruptedError(
        f"{file} is damaged (its heads are not those of commits in a row): wipe the store and restore it from its "
        "changelog"
    )


def map_for(path: Path) -> int:
    """A map that holds the file as it is with room to spare, in case it had grown before."""
    file = path / "data.mdb"
    return 2 * file.stat().st_size if file.exists() else 0


def keep_meta_pages(env: Any, path: Path) -> None:
    """Make the commit that the database is at survive power loss.

    Who was killed after the sync in its write of a meta page had failed leaves a page that can be read, and that the
    disk did not take: the system takes it for written. What a store says that it has must not go again. So both meta
    pages are written once more; what they point to was synced before they were. Raises: OSError. Source: open(2),
    "O_DSYNC"; fsync(2), "EIO".
    """
    database = os.open(path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        pages = os.pread(database, 2 * env.stat()["psize"], 0)
        if os.pwrite(database, pages, 0) != len(pages):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path / "data.mdb"))
        os.fsync(database)
    finally:
        os.close(database)


def check_structure(path: Path) -> None:
    """Walk the file's pages: each is sound, and in use once or free. Raises: StoreCorruptedError."""
    try:
        problems = cast(Sequence[str], verify(str(path)))  # type: ignore[no-untyped-call]
    except (VerifyError, struct.error) as error:
        problems = [str(error)]
    except OSError as error:
        raise StoreUnavailableError(f"{path} can't be read: {error.strerror}. Make it readable") from error
    if problems:
        raise StoreCorruptedError(
            f"{path} is damaged ({problems[0]}): wipe the store and restore it from its changelog"
        )


def check_length(env: Any, path: Path) -> None:
    """Refuse a database that was cut short: reading behind the end of a mapped file ends the process."""
    file = path / "data.mdb"
    if file.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        # Pages at the end that are free may never have been written: only looking at all of them can tell.
        check_structure(path)
