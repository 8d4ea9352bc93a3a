"""Show what a store of SQLite, or the embedded changelog, holds: ``python -m stores.inspection PATH``, as JSON lines.

The first line says what the file is, and shows its tables with their statements and counts. Then come offsets,
positions and marks of a store, or partitions, transactions and consumer groups of a changelog; then its first records,
without the checksums behind their values. The file is only read, and may be in use meanwhile.

sqlite-utils reads the schema and the rows here, for people: the extra ``inspection`` installs it. It makes no schema:
it knows no tables WITHOUT ROWID, which keep a record in one tree in place of two. It takes a third of a second to
import, and where pandas is installed 80 MB: no store and no changelog imports it.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stores import position
from stores.changelog.schema import APPLICATION_ID
from stores.contract import marks
from stores.engines.checksum import CHECKSUMMED, PLAIN
from stores.engines.sqlite.tables import FILE, families, has_checksums, read_schema
from stores.errors import ChangelogError, ConfigError, StoreError, StoreIncompatibleError
from stores.extras import advice
from stores.files.creation import is_store
from stores.files.identity import read_identity

if TYPE_CHECKING:
    from sqlite_utils import Database

_VIEWS = ("partitions", "transactions", "consumer_groups")

Line = dict[str, object]


def lines(path: Path, records_max: int) -> Iterator[Line]:
    """Describe the store or changelog at ``path``, line by line, with up to ``records_max`` of its records.

    Raises: StoreIncompatibleError, ChangelogError where it is neither, StoreCorruptedError; ConfigError without
    sqlite-utils; OSError, sqlite3.Error.
    """
    try:
        from sqlite_utils import Database
    except ImportError as error:
        raise ConfigError(f"sqlite-utils is missing, which reads SQLite files: {advice('inspection')}") from error

    if not path.exists():
        raise StoreIncompatibleError(f"{path} does not exist: name the folder of a store, or the file of a changelog")
    if path.is_dir():
        if not is_store(path):
            raise StoreIncompatibleError(f"{path} is not a store's folder: name the folder of a store")
        identity = read_identity(path)
        file = path / "data" / FILE
        if not file.exists():
            raise StoreIncompatibleError(
                f"{path} is a store of {identity.backend} and not in SQLite: open it with that backend to read it"
            )
        first: Line = {"store": str(path), **identity._asdict()}
    else:
        file, first = path, {"changelog": str(path)}
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        # All of one moment.
        connection.execute("begin")
        database = Database(connection)
        first["tables"] = {table.name: table.count for table in database.tables}
        first["schema"] = {table.name: table.schema for table in database.tables}
        yield from (_of_store if path.is_dir() else _of_changelog)(database, file, first, records_max)
    finally:
        connection.close()


def _of_store(database: Database, file: Path, first: Line, records_max: int) -> Iterator[Line]:
    schema = read_schema(database.conn)
    checked = has_checksums(database.conn, schema, file)
    checksums = CHECKSUMMED if checked else PLAIN
    yield {**first, "checksums": checked}
    meta = dict(checksums.decode_pairs([(row["key"], row["value"]) for row in database["meta"].rows]))
    for name, kind in (("offset", position.OFFSET), ("position", position.POSITION)):
        for partition, offset in position.decode(kind, meta).items():
            yield {"topic": partition.topic, "partition": partition.partition, name: offset}
    for name, mark in marks.decode(meta).items():
        yield {"mark": name, "value": _text(mark)}
    tables = families(schema)
    rows = chain.from_iterable(database[table].rows for table in tables)
    for row in islice(rows, records_max):
        yield {"key": _text(row["key"]), "value": _text(checksums.decode(row["key"], row["value"]))}


def _of_changelog(database: Database, file: Path, first: Line, records_max: int) -> Iterator[Line]:
    if database.execute("pragma application_id").fetchone() != (APPLICATION_ID,):
        raise ChangelogError(f"{file} is neither a store's folder nor a changelog: choose another path")
    yield first
    for view in _VIEWS:
        yield from ({"view": view, **row} for row in database.query(f"select * from {view}"))
    for row in database.query("select * from records limit ?", [records_max]):
        yield {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> object:
    """Bytes as text where they are UTF-8, else in hexadecimal."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def main(argv: Sequence[str] | None = None, program: str = "python -m stores.inspection") -> int:
    """Print the lines; 0 where it could be read, else 2."""
    parser = argparse.ArgumentParser(prog=program, description="Show what a SQLite store holds.")
    parser.add_argument("path", type=Path, help="a store's folder, or the file of an embedded changelog")
    parser.add_argument("--records", type=int, default=10, metavar="N", help="how many records to show (10)")
    given = parser.parse_args(argv)
    try:
        for line in lines(given.path, max(0, given.records)):
            print(_json(line))
    except (StoreError, OSError, sqlite3.Error) as error:
        print(f"{given.path}: {error}" if isinstance(error, sqlite3.Error) else error, file=sys.stderr)
        return 2
    return 0


def _json(line: Mapping[str, object]) -> str:
    return json.dumps(line)


if __name__ == "__main__":
    raise SystemExit(main())
