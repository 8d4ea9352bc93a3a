"""Checks of LMDB's file before LMDB maps it: for damage that LMDB does not detect or that would crash the process."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lmdb.verify import VerifyError, verify

from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files.plain_files import StrangeFileError, open_plain

_READER_BYTES = 64
_RESERVED_READERS_MAX = 256


def database_bytes(path: Path) -> int | None:
    """Return the size of the database's file, None if there is none. Raises: StoreCorruptedError if it was removed.

    LMDB would create an empty one there. A map of twice this size holds a copy of each page.
    """
    file = path / "data.mdb"
    try:
        num_bytes = os.stat(file).st_size
    except FileNotFoundError:
        num_bytes = None
    if not num_bytes and (path / "lock.mdb").exists():
        raise StoreCorruptedError(f"{file} is missing or empty: wipe the store and restore it from its changelog")
    return num_bytes


def reserve_lock_file(path: Path, max_readers: int) -> None:
    """Allocate disk space for the lock file: its header and up to 256 reader slots.

    LMDB maps this file with holes and writes to them. If the disk is full at that moment, SIGBUS kills the process. The
    allocation never exceeds the size that LMDB gives the file. Raises: OSError; StoreCorruptedError if something else
    than a file has its name.
    """
    try:
        descriptor = open_plain(path / "lock.mdb", os.O_RDWR | os.O_CREAT)
    except StrangeFileError as error:
        raise StoreCorruptedError(f"{error}: wipe the store and restore it from its changelog") from error
    try:
        os.posix_fallocate(descriptor, 0, _READER_BYTES * min(max_readers, _RESERVED_READERS_MAX))
    finally:
        os.close(descriptor)


def check_structure(path: Path) -> None:
    """Check that each page of the file is sound, and is used once or free. Raises: StoreCorruptedError."""
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
    """Refuse a truncated database: a read beyond the end of a mapped file kills the process."""
    file = path / "data.mdb"
    if file.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        # Free pages at the end may never have been written. Only a check of all pages shows whether any is in use.
        check_structure(path)
