"""The transaction of SQLite's writing connection, for use by a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Transaction, Writes, take
from stores.engines.snapshots import Snapshots
from stores.engines.sqlite.errors import aborted, reading_error, writing_error
from stores.engines.sqlite.tables import META, Table, apply, delete_range, selection
from stores.errors import CommitFailedError, StoreError
from stores.files.sqlite_library import Connection, Error
from stores.ordered.ranges import ScanRange


class SqliteTransaction(Transaction):
    """The transaction of the writing connection. Outside of one, each write would be committed immediately."""

    def __init__(
        self,
        file: Path,
        writer: Connection,
        codec: ValueCodec,
        snapshots: Snapshots[Connection],
        tables: Sequence[Table],
    ) -> None:
        self._file, self._writer, self._codec = file, writer, codec
        self._snapshots, self._tables = snapshots, tables

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        self._check_open()
        try:
            row = self._writer.execute(self._tables[family].lookup, (key,)).fetchone()
        except Error as error:
            raise self._failed(error) from error
        return None if row is None else self._codec.decode(key, row[0])

    def fetch(self, bounds: ScanRange, most: int, *, reverse: bool) -> tuple[list[tuple[bytes, bytes]], bool]:
        self._check_open()
        try:
            rows = self._writer.execute(*selection(self._tables, bounds, reverse=reverse))
            try:
                chunk, ended = take(rows, most)
            finally:
                # A statement with more rows would prevent a rollback.
                rows.close()
        except TypeError as error:
            raise reading_error(error, self._file) from error
        except Error as error:
            raise self._failed(error) from error
        return self._codec.decode_scanned(chunk), ended

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
        except Error as error:
            raise self._failed(error) from error

    def abort(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("rollback")
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
