"""What all SQLite files of this package have in common: how they are written, and how a cut one is told."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from stores.interface import Durability

_SYNCHRONOUS: Mapping[Durability, int] = {
    Durability.CHANGELOG: 0,
    Durability.PROCESS: 1,
    Durability.DISK: 2,
}
"""Value of ``pragma synchronous``, in write-ahead mode: OFF, NORMAL, FULL. Source: SQLite's manual, of that name."""

HEADER_BYTES = 100
OPENING_S = 10.0
"""How long the statements of an opening may take together; it excludes waiting, and reading the write-ahead log."""
STEPS_PER_LOOK = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
_PART_BYTES = 1 << 20


class Deadline:
    """A progress handler that interrupts SQLite when ``timeout_s`` is up."""

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s

    def __call__(self) -> bool:
        """Whether to interrupt."""
        return time.monotonic() > self._until


def write_ahead(connection: sqlite3.Connection, durability: Durability) -> None:
    """Put the file in write-ahead mode, and sync it as ``durability`` asks.

    The answers are fetched and compared: unfetched, a pragma hides I/O errors, and the file stays in another mode.
    Raises: sqlite3.Error, also where SQLite passes the request over.
    """
    level = _SYNCHRONOUS[durability]
    [mode] = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(
            f"it can't have a write-ahead log, its journal stays in mode {mode!r}: close other programs that hold it, "
            "or choose another file system"
        )
    connection.execute(f"pragma synchronous = {level}").fetchall()
    [found] = connection.execute("pragma synchronous").fetchone()
    if found != level:
        raise sqlite3.OperationalError(f"synchronous stays {found}, not {level}: choose another SQLite")


def keep_log(connection: sqlite3.Connection, file: Path) -> None:
    """Make the write-ahead log of ``file``, which ``connection`` is open on, survive power loss as it is now.

    Who was killed after a sync had failed leaves a log that looks whole, of which the disk lacks a part: the system
    takes what it could not write for written, and no later sync speaks of it. Later commits would stand on it, and fall
    with it. So it is written once more. Writers are locked out meanwhile; the log bears no lock of SQLite's, which
    closing it here would let go of.
    Raises: sqlite3.Error, OSError. Source: fsync(2), "EIO"; SQLite's manual, "WAL-mode File Format", 4.3.
    """
    connection.execute("begin immediate")
    try:
        log = os.open(file.with_name(f"{file.name}-wal"), os.O_RDWR)
        try:
            at = 0
            while part := os.pread(log, _PART_BYTES, at):
                at += os.pwrite(log, part, at)
            os.fsync(log)
        finally:
            os.close(log)
    finally:
        connection.execute("rollback")


def sync_log(file: Path) -> None:
    """Make what is committed in the write-ahead log of ``file`` survive power loss. Raises: OSError.

    The log bears no lock of SQLite's, which closing it here would let go of.
    """
    log = os.open(file.with_name(f"{file.name}-wal"), os.O_RDONLY)
    try:
        os.fsync(log)
    finally:
        os.close(log)


def missing_bytes(file: Path) -> int:
    """How many bytes ``file`` falls short of what its header says; SQLite notices only where it can't find a page.

    0 where there is a write-ahead log beside it: that may hold what is not yet in the file. Raises: OSError.
    Source: SQLite's manual, "Database File Format", 1.3.
    """
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        return 0
    with file.open("rb") as opened:
        header = opened.read(HEADER_BYTES)
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    return max(0, pages * (page_bytes if page_bytes != 1 else 1 << 16) - file.stat().st_size)
