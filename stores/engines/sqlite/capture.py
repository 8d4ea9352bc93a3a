"""A capture of SQLite's file: a copy by SQLite itself of what a read transaction shows.

Pages keep their numbers, so that most of the file is the same in the next capture. The file can't be read without
SQLite: closing another descriptor of it would release the locks that SQLite holds.
Source: SQLite, "Online Backup API"; "How To Corrupt An SQLite Database File", 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Lock

from stores.engines.engine import Capture
from stores.engines.sqlite.tables import FILE
from stores.errors import StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.files.sqlite_library import Connection, Error, connect, copy_whole


class SqliteCapture(Capture):
    """A capture of what a new connection of ``begin``, which only reads, shows now.

    Until it is complete the WAL grows with each commit, because it can't begin again.
    """

    def __init__(self, begin: Callable[[], Connection], folder: Path) -> None:
        """Begin it. Raises: ``Error``; StoreUnavailableError."""
        with translated_system_errors(folder):
            folder.mkdir()
        self._folder = folder
        self._lock = Lock()
        self._ended = False
        self._reader = begin()
        try:
            self._reader.execute("begin")
            # The first read takes the snapshot.
            self._reader.execute("select key from meta limit 1").fetchall()
        except BaseException:
            self.end()
            raise

    def complete(self) -> None:
        file = self._folder / FILE
        try:
            with self._lock:
                self._check()
                with closing(connect(file)) as target:
                    target.execute("pragma synchronous=off").fetchall()
                    target.execute("pragma journal_mode=off").fetchall()
                    copy_whole(self._reader, target, self._check)
        except Error as error:
            raise StoreUnavailableError(f"the store can't be copied to {file}: {error}. Make room there") from error
        finally:
            self.end()

    def _check(self) -> None:
        if self._ended:
            raise StoreUnavailableError(f"the store was closed while it was copied to {self._folder}: copy it again")

    def end(self) -> None:
        self._ended = True
        # Closing a connection during a call of another thread crashes the process.
        with self._lock:
            self._reader.close()
