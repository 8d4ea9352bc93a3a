"""The common part of all SQLite files of this package: WAL mode, syncs, and the detection of truncated files."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from stores.files.sqlite_library import Connection
from stores.interface import Durability

_SYNCHRONOUS: Mapping[Durability, int] = {
    Durability.CHANGELOG: 0,
    Durability.PROCESS: 1,
    Durability.DISK: 2,
}
"""Value of ``pragma synchronous`` in WAL mode: OFF, NORMAL, FULL. Source: SQLite's manual, "PRAGMA synchronous"."""

HEADER_BYTES = 100
OPENING_S = 10.0
"""The most time for the statements of an opening together, without waiting and without reading the WAL."""
STEPS_PER_LOOK = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
_PART_BYTES = 1 << 20


class Deadline:
    """A progress handler that interrupts SQLite when ``timeout_s`` is up."""

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s

    def __call__(self) -> bool:
        """Return True to interrupt."""
        return time.monotonic() > self._until


def write_ahead(connection: Connection, durability: Durability) -> None:
    """Put the file in WAL mode, with the syncs of ``durability``.

    The results are fetched and compared: a pragma without a fetch hides I/O errors, and the file stays in another mode.
    Raises: SQLite's errors, also if SQLite ignores the request.
    """
    level = _SYNCHRONOUS[durability]
    [mode] = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(
            f"SQLite can't enable the WAL, its journal mode stays {mode!r}: close other programs that use the file, "
            "or choose another file system"
        )
    connection.execute(f"pragma synchronous = {level}").fetchall()
    [found] = connection.execute("pragma synchronous").fetchone()
    if found != level:
        raise sqlite3.OperationalError(f"synchronous stays {found}, not {level}: choose another SQLite")


def keep_log(connection: Connection, file: Path) -> None:
    """Make the WAL of ``file`` durable as it is now. ``connection`` has the file open.

    If a process is killed after a failed sync, the WAL looks complete but the disk lacks a part of it: the kernel has
    marked these pages clean, and no later sync reports them. Later commits would be lost with them. So the WAL is
    written again and synced. Writers are locked out meanwhile. SQLite has no lock on the WAL file that closing it here
    would release.
    Raises: SQLite's errors, OSError. Source: fsync(2), "EIO"; SQLite's manual, "WAL-mode File Format", 4.3.
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
    """Sync the WAL of ``file``, so that its commits survive power loss. Raises: OSError.

    SQLite has no lock on the WAL file that closing it here would release.
    """
    log = os.open(file.with_name(f"{file.name}-wal"), os.O_RDONLY)
    try:
        os.fsync(log)
    finally:
        os.close(log)


def missing_bytes(file: Path) -> int:
    """Return the number of bytes that ``file`` lacks according to its header. SQLite detects only a missing page.

    It is 0 if there is a WAL, which may have pages that are not in the file yet. Raises: OSError.
    Source: SQLite's manual, "Database File Format", 1.3.
    """
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        return 0
    with file.open("rb") as opened:
        header = opened.read(HEADER_BYTES)
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    return max(0, pages * (page_bytes if page_bytes != 1 else 1 << 16) - file.stat().st_size)
