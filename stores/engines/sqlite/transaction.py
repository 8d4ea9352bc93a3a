"""Transactions in SQLite: those that read, with scans and snapshots of committed data, and the one of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock

from stores.engines.checksum import ValueCodec
from stores.engines.engine import FETCH_FIRST, FETCH_MAX, EngineSnapshot, Scan, Transaction, Writes, take
from stores.engines.snapshots import SharedSnapshots, Snapshot
from stores.engines.sqlite.tables import (
    META,
    READING_ERRORS,
    Table,
    aborted,
    apply,
    delete_range,
    reading_error,
    selection,
    stored_values,
    writing_error,
)
from stores.errors import CommitFailedError, StoreError
from stores.files.sqlite_library import Connection, Error
from stores.ordered import ScanRange


class SqliteScan(Scan):
    """A statement on a connection that scans share. The first scan begins its snapshot, and the last one ends it."""

    _snapshot: Snapshot[Connection] | None = None

    def __init__(
        self,
        file: Path,
        codec: ValueCodec,
        snapshots: SharedSnapshots[Connection],
        snapshot: Snapshot[Connection],
        tables: Sequence[Table],
        bounds: ScanRange,
        *,
        reverse: bool,
    ) -> None:
        """Begin the scan. It is already counted as a user of ``snapshot``."""
        self._file, self._codec, self._snapshots = file, codec, snapshots
        self._size = FETCH_FIRST
        self._lock = RLock()
        # Set now: if the next lines raise, the finalizer gives the snapshot back.
        self._snapshot = snapshot
        with snapshot.lock:
            self._rows = snapshot.reading.execute(*selection(tables, bounds, reverse=reverse))

    def fetch(self) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._snapshot is None:
                return []
            try:
                with self._snapshot.lock:
                    chunk, at_end = take(self._rows, self._size)
            except READING_ERRORS as error:
                raise reading_error(error, self._file) from error
            if at_end:
                self.close()
            self._size = min(2 * self._size, FETCH_MAX)
            return self._codec.decode_scanned(chunk)

    def close(self) -> None:
        with self._lock:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                with snapshot.lock:
                    self._rows.close()
                self._snapshots.release(snapshot)

    def __del__(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            # Freeing the statement ends it. No lock is taken, because a finalizer may run at any point.
            self.__dict__.pop("_rows", None)
            self._snapshots.release(snapshot)


class SqliteSnapshot(EngineSnapshot):
    """A read transaction on a connection of its own, which ends with the snapshot and its last scan.

    ``acquire`` returns a connection that only reads, and ``release`` takes it back.
    """

    def __init__(
        self,
        file: Path,
        codec: ValueCodec,
        tables: Sequence[Table],
        acquire: Callable[[], Connection],
        release: Callable[[Connection], None],
    ) -> None:
        self._file, self._codec, self._tables = file, codec, tables

        def begin() -> Connection:
            reader = acquire()
            try:
                reader.execute("begin")
                # The first read takes the snapshot.
                entries = reader.execute("select key, value from meta").fetchall()
                self._meta = dict(codec.decode_pairs(entries))
            except BaseException:
                reader.close()
                raise
            return reader

        def end(reader: Connection) -> None:
            reader.execute("rollback")
            release(reader)

        self._transactions: SharedSnapshots[Connection] = SharedSnapshots(begin, end)
        self._snapshot: Snapshot[Connection] | None = self._transactions.acquire()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        snapshot = self._open()
        try:
            with snapshot.lock:
                row = snapshot.reading.execute(self._tables[family].lookup, (key,)).fetchone()
        except Error as error:
            raise reading_error(error, self._file) from error
        return None if row is None else self._codec.decode(key, row[0])

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        snapshot = self._open()
        try:
            with snapshot.lock:
                return stored_values(snapshot.reading, self._tables[0], keys, self._codec)
        except Error as error:
            raise reading_error(error, self._file) from error

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        transactions = self._transactions
        shared = transactions.share(self._open())
        try:
            return SqliteScan(self._file, self._codec, transactions, shared, self._tables, bounds, reverse=reverse)
        except Error as error:
            raise reading_error(error, self._file) from error

    def close(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            with snapshot.lock:
                self._transactions.release(snapshot)

    def _open(self) -> Snapshot[Connection]:
        assert self._snapshot is not None, "a closed snapshot is not used"
        return self._snapshot


class SqliteTransaction(Transaction):
    """The transaction of the writing connection. Outside of one, each write would be committed immediately."""

    def __init__(
        self,
        file: Path,
        writer: Connection,
        codec: ValueCodec,
        snapshots: SharedSnapshots[Connection],
        tables: Sequence[Table],
    ) -> None:
        self._file, self._writer, self._codec = file, writer, codec
        self._snapshots, self._tables = snapshots, tables
        self.ended = False
        """True after a commit or an abort."""

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        self._check_open()
        try:
            row = self._writer.execute(self._tables[family].lookup, (key,)).fetchone()
        except Error as error:
            raise self._failed(error) from error
        return None if row is None else self._codec.decode(key, row[0])

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        try:
            return stored_values(self._writer, self._tables[0], keys, self._codec)
        except Error as error:
            raise self._failed(error) from error

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        self._check_open()
        try:
            rows = self._writer.execute(*selection(self._tables, bounds, reverse=reverse))
            try:
                chunk, at_end = take(rows, most)
            finally:
                # A statement with more rows would prevent a rollback.
                rows.close()
        except TypeError as error:
            raise reading_error(error, self._file) from error
        except Error as error:
            raise self._failed(error) from error
        return self._codec.decode_scanned(chunk), at_end

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        self._check_open()
        table = self._tables[family]
        try:
            if value is None:
                self._writer.execute(table.delete, (key,))
            else:
                self._writer.execute(table.replace, (key, self._codec.encode(key, value)))
        except Error as error:
            raise self._failed(error) from error

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        self._check_open()
        try:
            delete_range(self._writer, self._tables[family], start, end)
        except Error as error:
            raise self._failed(error) from error

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        self._check_open()
        try:
            apply(self._writer, META, Writes((), meta), self._codec)
            self._snapshots.begin_writing()
            try:
                self._writer.execute("commit")
            finally:
                self._snapshots.end_writing()
            self.ended = True
        except Error as error:
            raise self._failed(error) from error

    def abort(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("rollback")
            self.ended = True
        except Error as error:
            raise writing_error(error, self._file) from error

    def _check_open(self) -> None:
        if not self._writer.in_transaction:
            raise aborted("its writes are gone", self._file)

    def _failed(self, error: Exception) -> StoreError:
        translated = writing_error(error, self._file)
        if isinstance(translated, CommitFailedError) and not translated.reopen and not self._writer.in_transaction:
            return aborted(error, self._file)
        return translated
