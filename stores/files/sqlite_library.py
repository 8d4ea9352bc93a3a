"""The SQLite that all files of this package are opened with: that of apsw where it is installed, else Python's own.

Besides: what all these files share, which is WAL mode, syncs, and the detection of truncated files.

SQLite 3.7.0 to 3.51.2 may corrupt a WAL if two connections write or checkpoint at the same moment. apsw (the extra
``sqlite``) has a newer one in its wheel, and takes less time for writes, lookups and scans. pysqlite3 takes the
time of Python's own, and gives no extended error codes, which tell a failed sync from other errors.

A process must open a file with one SQLite only: closing a file with one releases the locks that the other holds on it.
Source: SQLite, "How To Corrupt An SQLite Database File", 2.2.1; "Write-Ahead Logging", "The WAL-Reset Bug".
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from stores.interface import Durability

VARIABLE = "TXSTORES_SQLITE"
"""The environment variable that names the library: ``apsw`` or ``sqlite3``."""
NAMES = ("apsw", "sqlite3")

_wanted = os.environ.get(VARIABLE, "")
if _wanted and _wanted not in NAMES:
    raise ImportError(f"{VARIABLE} is {_wanted!r}: set it to one of {', '.join(NAMES)}, or not at all")
_apsw: Any = None
if _wanted != "sqlite3":
    try:
        _apsw = import_module("apsw")
    except ImportError:
        if _wanted:
            raise ImportError(f"{VARIABLE} is apsw, which is not installed: it is the extra 'sqlite'") from None

NAME = "sqlite3" if _apsw is None else "apsw"
VERSION: str = sqlite3.sqlite_version if _apsw is None else _apsw.sqlite_lib_version()
_MAJOR, _MINOR, _PATCH = (int(part) for part in VERSION.split("."))
VERSION_NUMBER = 1_000_000 * _MAJOR + 1_000 * _MINOR + _PATCH
"""SQLite's own number of its version. Source: its manual, ``SQLITE_VERSION_NUMBER``."""

Error: tuple[type[Exception], ...] = (
    (sqlite3.Error,) if _apsw is None else (_apsw.Error, sqlite3.Error, UnicodeDecodeError)
)
"""The exceptions of the library, for ``except``. apsw's is a UnicodeDecodeError for text that is no UTF-8."""

READ_ONLY = "mode=ro"
UNCHANGING = "mode=ro&immutable=1"
"""Access to a file that nobody changes meanwhile, which needs no WAL."""
READ_WRITE = "mode=rwc"


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


class Cursor(Protocol):
    """The rows of a statement."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...


class Connection(Protocol):
    """The common part of the connections of both libraries: in autocommit mode, for one thread at a time."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statement: str, parameters: Any = ..., /) -> Cursor: ...
    def executemany(self, statement: str, parameters: Iterable[Any], /) -> Cursor: ...
    def set_progress_handler(self, handler: Callable[[], bool] | None, steps: int, /) -> None: ...
    def close(self) -> None: ...


def share_heap(connection: Connection, max_bytes: int) -> None:
    """Let all connections of the process keep ``max_bytes`` of pages together, also later ones; 0 changes nothing.

    Beyond it a connection takes a page from its own cache in place of a new one, and keeps those that it needs.
    Source: SQLite's manual, "PRAGMA soft_heap_limit".
    """
    if max_bytes:
        connection.execute(f"pragma soft_heap_limit={max_bytes}").fetchall()


def connect(file: Path, access: str = READ_WRITE, *, timeout_s: float = 5.0, cached_statements: int = 64) -> Connection:
    """Return a connection to ``file``. Raises: ``Error``, OSError."""
    address = f"{file.absolute().as_uri()}?{access}"
    if _apsw is None:
        return sqlite3.connect(
            address,
            uri=True,
            timeout=timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=cached_statements,
        )
    writes = _apsw.SQLITE_OPEN_READWRITE | _apsw.SQLITE_OPEN_CREATE
    flags = _apsw.SQLITE_OPEN_URI | (writes if access == READ_WRITE else _apsw.SQLITE_OPEN_READONLY)
    wrapper = _apsw.Connection(address, flags=flags, statementcachesize=cached_statements)
    wrapper.set_busy_timeout(int(timeout_s * 1000))
    connection: Connection = wrapper
    return connection


def roll_back(connection: Connection) -> None:
    """End the transaction of ``connection``, if it has one, without its writes. Raises: ``Error``."""
    if connection.in_transaction:
        connection.execute("rollback")


def run_script(connection: Any, script: str) -> None:
    """Run several statements. Raises: ``Error``."""
    if _apsw is None:
        connection.executescript(script)
    else:
        connection.execute(script)


def changes(connection: Connection) -> int:
    """Return the number of rows that the last insert, update or delete has changed."""
    number: int = connection.execute("select changes()").fetchone()[0]
    return number


_STEP_PAGES = 256


def copy_whole(source: Any, target: Any, between: Callable[[], None] = lambda: None) -> None:
    """Copy the committed data of ``source``'s file into that of ``target``, page by page.

    ``between`` is called after some pages each, and may raise. Raises: ``Error``.
    """
    if _apsw is None:
        source.backup(target, pages=_STEP_PAGES, progress=lambda *_: between(), sleep=0.01)
        return
    with target.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(_STEP_PAGES)
            between()


def error_name(error: BaseException) -> str:
    """Return SQLite's name of an error with its extended code, such as SQLITE_IOERR_FSYNC; "" if it has none."""
    name: str = getattr(error, "sqlite_errorname", "")
    code = getattr(error, "extendedresult", None)
    if name or _apsw is None or code is None:
        return name
    names = (_apsw.mapping_extended_result_codes, _apsw.mapping_result_codes)
    return next((str(mapping[code]) for mapping in names if code in mapping), "")


class StatementTimeout:
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
    [present] = connection.execute("pragma synchronous").fetchone()
    if present != level:
        raise sqlite3.OperationalError(f"synchronous stays {present}, not {level}: choose another SQLite")


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
    with file.open("rb") as stream:
        header = stream.read(HEADER_BYTES)
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    return max(0, pages * (page_bytes if page_bytes != 1 else 1 << 16) - file.stat().st_size)
