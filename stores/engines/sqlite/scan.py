"""Scans and snapshots of committed data in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock

from stores.engines.checksum import ValueCodec
from stores.engines.engine import FETCH_FIRST, FETCH_MAX, EngineSnapshot, Scan, take
from stores.engines.snapshots import Snapshot, Snapshots
from stores.engines.sqlite.errors import READING_ERRORS, reading_error
from stores.engines.sqlite.tables import Table, selection
from stores.files.sqlite_library import Connection, Error
from stores.ordered.ranges import ScanRange


class SqliteScan(Scan):
    """A statement on a connection that scans share. The first scan begins its snapshot, and the last one ends it."""

    _snapshot: Snapshot[Connection] | None = None

    def __init__(
        self,
        file: Path,
        codec: ValueCodec,
        snapshots: Snapshots[Connection],
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
                    chunk, ended = take(self._rows, self._size)
            except READING_ERRORS as error:
                raise reading_error(error, self._file) from error
            if ended:
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

        self._transactions: Snapshots[Connection] = Snapshots(begin, end)
        self._snapshot: Snapshot[Connection] | None = self._transactions.acquire()

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        snapshot = self._open()
        try:
            with snapshot.lock:
                row = snapshot.reading.execute(self._tables[family].lookup, (key,)).fetchone()
        except Error as error:
            raise reading_error(error, self._file) from error
        return None if row is None else self._codec.decode(key, row[0])

    def scan(self, bounds: ScanRange, *, reverse: bool = False) -> Scan:
        transactions = self._transactions
        shared = transactions.share(self._open())
        try:
            return SqliteScan(self._file, self._codec, transactions, shared, self._tables, bounds, reverse=reverse)
        except Error as error:
            raise reading_error(error, self._file) from error

    def meta(self) -> Mapping[bytes, bytes]:
        return self._meta

    def close(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            with snapshot.lock:
                self._transactions.release(snapshot)

    def _open(self) -> Snapshot[Connection]:
        assert self._snapshot is not None, "a closed snapshot is not used"
        return self._snapshot
