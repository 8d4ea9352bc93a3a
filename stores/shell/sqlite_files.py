"""The SQLite files of changelogs and stores, shown without being opened as such: nothing in them is changed.

sqlite-utils reads the tables, for people: the extra ``inspection`` installs it. It makes no schema: it knows no tables
WITHOUT ROWID, which keep a record in one tree in place of two. It takes a third of a second to import, and where pandas
is installed 80 MB: no store and no changelog imports it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from stores.changelog.batches import RecordBatch, UnsoundBatchError, offset_of
from stores.changelog.schema import SCHEMA_VERSION, check_schema
from stores.errors import ChangelogError, ConfigError, StoreUnavailableError
from stores.extras import advice
from stores.files.plain_files import translated_system_errors
from stores.files.sqlite_library import READ_ONLY, UNCHANGING, Connection, Error, connect
from stores.shell.decoding import Line

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "partitions": ("topic", "partition", "start_offset", "next_offset", "last_stable_offset"),
    "sizes": ("topic", "partition", "batches", "records", "bytes"),
    "transactions": ("transactional_id", "state", "topic", "partition", "first_offset", "last_offset"),
    "consumer_groups": ("consumer_group", "topic", "partition", "next_offset"),
}
"""The views of a changelog for people, and the columns that are shown."""
_BATCH = ("topic", "partition", "state", "batch_id", "count", "transaction_id", "time_ms", "content")


def facts_of(path: Path) -> Line:
    """Return a description of the changelog ``path`` at one moment; it may be in use.

    Raises: ChangelogError if the file is damaged, or of a release that is not known here.
    """
    facts = None
    if _access(path) is UNCHANGING:
        with suppress(ChangelogError):
            facts = _read(path, UNCHANGING)
    if facts is None or _access(path) is READ_ONLY:
        # A process may have opened it meanwhile, and changed what was being read.
        facts = _read(path, READ_ONLY)
    beside = [path.with_name(path.name + end) for end in ("", "-wal")]
    with translated_system_errors(path):
        size_bytes = sum(file.stat().st_blocks * 512 for file in beside if file.exists())
    return {"path": str(path), "kind": "changelog", "schema_version": SCHEMA_VERSION, "size_bytes": size_bytes, **facts}


def records_of(path: Path, limit: int | None = None) -> Iterator[Line]:
    """Yield the first ``limit`` records of the changelog ``path`` at one moment, also those of aborted transactions.

    Raises: ChangelogError if the file can't be read, or a process has begun to use it meanwhile.
    """
    access = _access(path)
    try:
        with closing(connect(path, access)) as connection:
            check_schema(path, connection)
            rows = connection.execute(f"select {', '.join(_BATCH)} from batches order by topic, partition, batch_id")
            yield from islice(chain.from_iterable(_records(path, *row) for row in rows), limit)
    except Error as error:
        raise _unreadable(path, error) from error
    if access is UNCHANGING and _access(path) is READ_ONLY:
        raise ChangelogError(f"a process began to use the changelog {path} while it was read: read it again")


def _records(path: Path, topic: str, partition: int, state: str, *row: Any) -> Iterator[Line]:
    try:
        for record in RecordBatch(*row).columns().records():
            yield {
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "state": state,
                "timestamp_ms": record.timestamp_ms,
                "key": record.key,
                "value": record.value,
            }
    except UnsoundBatchError as error:
        raise ChangelogError(
            f"the changelog {path} is damaged: the records from offset {offset_of(error.number)} of "
            f"{topic}-{partition} {error}"
        ) from error


def tables_of(file: Path) -> Line:
    """Return the tables of a SQLite file with their statements and their numbers of rows, all of one moment.

    Raises: ConfigError without sqlite-utils; StoreUnavailableError if the file can't be read.
    """
    try:
        from sqlite_utils import Database
    except ImportError as error:
        raise ConfigError(f"sqlite-utils is missing, which reads SQLite files: {advice('inspection')}") from error
    try:
        uri = f"{file.absolute().as_uri()}?{_access(file)}"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("begin")
            tables = Database(connection).tables
            return {
                "tables": {table.name: table.count for table in tables},
                "schema": {table.name: table.schema for table in tables},
            }
    except sqlite3.Error as error:
        raise StoreUnavailableError(f"the tables of {file} can't be read: {error}. Check the file") from error


def _access(file: Path) -> str:
    """Return how ``file`` is opened: where no process has it open, SQLite must not make a WAL, which would stay."""
    return READ_ONLY if file.with_name(f"{file.name}-wal").exists() else UNCHANGING


def _read(path: Path, access: str) -> dict[str, list[Line]]:
    try:
        connection = connect(path, access)
        try:
            connection.execute("begin")
            check_schema(path, connection)
            return {view: _rows(connection, view, columns) for view, columns in _COLUMNS.items()}
        finally:
            connection.close()
    except Error as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ChangelogError:
    return ChangelogError(f"the changelog {path} can't be read: {error}. Check the file and its folder")


def _rows(connection: Connection, view: str, columns: tuple[str, ...]) -> list[Line]:
    rows = connection.execute(f"select {', '.join(columns)} from {view}").fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]
