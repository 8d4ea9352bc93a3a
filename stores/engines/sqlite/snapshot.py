"""Snapshots of committed data in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stores.engines.checksum import ValueCodec
from stores.engines.engine import EngineSnapshot, Scan
from stores.engines.snapshots import Snapshot, Snapshots
from stores.engines.sqlite.errors import reading_error
from stores.engines.sqlite.scan import SqliteScan
from stores.engines.sqlite.tables import Table
from stores.files.sqlite_library import Connection, Error
from stores.ordered.ranges import ScanRange


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
