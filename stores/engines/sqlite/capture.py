"""A capture of SQLite's file: a copy by SQLite itself of what a read transaction shows. Or a read of some values.

Pages keep their numbers, so that most of the file is the same in the next capture. The file can't be read without
SQLite: closing another descriptor of it would release the locks that SQLite holds.
Source: SQLite, "Online Backup API"; "How To Corrupt An SQLite Database File", 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Capture, converted
from stores.engines.sqlite.tables import FILE, Table, stored_values
from stores.errors import StoreError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.files.sqlite_library import Connection, Error, connect, copy_whole


class _Held:
    """A read transaction of what a new connection of ``begin``, which only reads, shows now.

    Until it ends the WAL grows with each commit, because it can't begin again.
    """

    def __init__(self, begin: Callable[[], Connection]) -> None:
        """Begin it. Raises: ``Error``; StoreUnavailableError."""
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

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Return the connection for a block, at whose end it may be closed. Raises: StoreUnavailableError."""
        with self._lock:
            self.check()
            yield self._reader

    def check(self) -> None:
        """Raise StoreUnavailableError if it is to end."""
        if self._ended:
            raise StoreUnavailableError("the store was closed while it was copied: copy it again")

    def end(self) -> None:
        """End it, once a block that uses it has ended. May be called more than once."""
        self._ended = True
        # Closing a connection during a call of another thread crashes the process.
        with self._lock:
            self._reader.close()


class SqliteCapture(Capture):
    """A capture of what a new connection of ``begin``, which only reads, shows now."""

    def __init__(self, begin: Callable[[], Connection], folder: Path) -> None:
        """Begin it. Raises: ``Error``; StoreUnavailableError."""
        with translated_system_errors(folder):
            folder.mkdir()
        self._folder = folder
        self._held = _Held(begin)

    def complete(self) -> None:
        file = self._folder / FILE
        try:
            with self._held.use() as reader, closing(connect(file)) as target:
                target.execute("pragma synchronous=off").fetchall()
                target.execute("pragma journal_mode=off").fetchall()
                copy_whole(reader, target, self._held.check)
        except Error as error:
            raise StoreUnavailableError(f"the store can't be copied to {file}: {error}. Make room there") from error
        finally:
            self.end()

    def end(self) -> None:
        self._held.end()


class SqliteReading:
    """The values in ``table`` that a new connection of ``begin`` shows now. ``failed`` converts errors of SQLite."""

    def __init__(
        self,
        begin: Callable[[], Connection],
        table: Table,
        codec: ValueCodec,
        failed: Callable[[Exception], StoreError],
    ) -> None:
        """Begin it. Raises: ``Error``; StoreUnavailableError."""
        self._held = _Held(begin)
        self._table, self._codec, self._failed = table, codec, failed

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._held.use() as reader, converted(Error, self._failed):
            return stored_values(reader, self._table, keys, self._codec)

    def end(self) -> None:
        self._held.end()
