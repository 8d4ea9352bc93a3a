"""Checks of LMDB's file before LMDB maps it, for damage that LMDB would overlook or that would end the process."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lmdb.verify import VerifyError, verify

from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files import StrangeFileError, open_plain

_READER_BYTES = 64
_RESERVED_READERS_MAX = 256


def has_database(path: Path) -> bool:
    """Whether there is a database; a folder whose own has gone is refused: LMDB would begin an empty one there."""
    file = path / "data.mdb"
    if (path / "lock.mdb").exists() and (not file.exists() or file.stat().st_size == 0):
        raise StoreCorruptedError(f"{file} is gone or empty: wipe the store and restore it from its changelog")
    return file.exists()


def map_for(path: Path) -> int:
    """A map that holds the file as it is with room to spare, in case it had grown before."""
    file = path / "data.mdb"
    return 2 * file.stat().st_size if file.exists() else 0


def reserve_lock_file(path: Path, max_readers: int) -> None:
    """Let the file of readers' slots have room on the disk, for its head and the first 256 slots.

    LMDB maps it with holes, and writes to them: where the disk has no room by then, SIGBUS ends the process. The size
    is never above the one that LMDB gives it. Raises: OSError; StoreCorruptedError where no file is in its place.
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
