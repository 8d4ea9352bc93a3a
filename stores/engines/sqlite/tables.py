"""The tables of a store in an SQLite file: schema, checks, the statements of reads and writes, and errors of SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from stores.engines.checksum import ValueCodec
from stores.engines.engine import Writes
from stores.errors import (
    CommitFailedError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
    damaged,
    must_reopen,
)
from stores.files.sqlite_library import HEADER_BYTES, Connection, Error, error_name, missing_bytes
from stores.ordered import ScanRange
from stores.process import descriptors_lacking

FILE = "store.db"


def schema(name: str) -> str:
    return f"CREATE TABLE {name} (key blob primary key, value blob not null) strict, without rowid"


_TABLES = {name: schema(name) for name in ("data", "meta")}
SECOND = "records"
"""The table of the second data family, once there is one."""
Schema = Sequence[tuple[str, str, str | None]]
"""Everything in a file: type, name and statement."""
_VERSIONS = {True: 2, False: 1}
"""``user_version`` with and without checksums. A single flipped bit does not turn one into the other."""


_KEYS_MAX = 256
"""The most keys of one statement: a power of two, below the limit of parameters of every SQLite (999)."""


@cache
def _lookup_many(table: str, count: int) -> str:
    """Return the statement that selects the pairs of ``count`` keys: one lookup each, in their order."""
    keys = ", ".join(["(?)"] * count)
    return f"select t.key, t.value from (values {keys}) k cross join {table} t on t.key = k.column1"


class Table:
    """A table and its statements, which are built once: a new string would cost a large part of a lookup."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lookup = f"select value from {name} where key = ?"
        self.replace = f"replace into {name} values (?, ?)"
        self.delete = f"delete from {name} where key = ?"


DATA, META, RECORDS = Table("data"), Table("meta"), Table(SECOND)


def create(writer: Connection, *, checksums: bool) -> None:
    for statement in _TABLES.values():
        writer.execute(statement)
    writer.execute(f"pragma user_version={_VERSIONS[checksums]}")


def stored_values(connection: Connection, table: Table, keys: Sequence[bytes], codec: ValueCodec) -> list[bytes | None]:
    """Return the values of ``keys``, by one statement for some hundred.

    Raises: SQLite's errors; StoreCorruptedError.
    """
    pairs: list[tuple[bytes, bytes]] = []
    for at in range(0, len(keys), _KEYS_MAX):
        part = keys[at : at + _KEYS_MAX]
        # Few different statements, which stay prepared: the rest is filled up to a power of two with its last key.
        count = 1 << (len(part) - 1).bit_length()
        padded = [*part, *[part[-1]] * (count - len(part))]
        pairs += connection.execute(_lookup_many(table.name, count), padded).fetchall()
    return list(map(dict(codec.decode_pairs(pairs)).get, keys))


def read_schema(reader: Connection) -> Schema:
    """Return the tables of a file, and all else in it. Raises: SQLite's errors."""
    return reader.execute("select type, name, sql from sqlite_schema").fetchall()


def has_checksums(reader: Connection, found: Schema, file: Path) -> bool:
    """Return whether the store was created with checksums. Raises: StoreCorruptedError, SQLite's errors."""
    tables = {name: sql for _, name, sql in found}
    [version] = reader.execute("pragma user_version").fetchone()
    for checksums, expected in _VERSIONS.items():
        if version == expected and tables.items() >= _TABLES.items():
            return checksums
    raise damaged(f"{file} does not contain the tables of a store")


def has_table(found: Schema, name: str) -> bool:
    """Return whether there is a table ``name`` with a store's schema."""
    return any(sql == schema(name) for _, _, sql in found)


def families(found: Schema) -> list[str]:
    """Return the data tables of a store's file."""
    return ["data", SECOND] if has_table(found, SECOND) else ["data"]


def check_own(found: Schema, file: Path) -> None:
    """Refuse a file with foreign tables or triggers: a trigger would change writes, and wiping would remove a table.

    SQLite's own statistics tables are allowed. Raises: StoreIncompatibleError.
    """
    foreign = [
        f"the {kind} {name}"
        for kind, name, _ in found
        if name not in (*_TABLES, SECOND) and not str(name).startswith("sqlite_")
    ]
    if foreign:
        raise StoreIncompatibleError(
            f"{file} contains {', '.join(foreign)}, which is not the store's: drop it, or choose "
            "another path; nothing was changed"
        )


def check_header(file: Path) -> None:
    """Refuse a truncated file, and one whose format version is higher than any that exists, which SQLite only reads.

    Source: SQLite's manual, "Database File Format", 1.3.3.
    """
    with file.open("rb") as stream:
        form = stream.read(HEADER_BYTES)[18:19]
    if form > b"\2":
        raise damaged(f"{file} is damaged")
    missing = missing_bytes(file)
    if missing:
        raise damaged(f"{file} is {missing:,} bytes short")


def selection(tables: Sequence[Table], selected: ScanRange, *, reverse: bool) -> tuple[str, list[bytes]]:
    """Return the statement that selects a range, and its parameters."""
    start, end, end_open, family = selected
    bounds = [bound for bound in (start, end) if bound is not None]
    end_sign = None if end is None else "<" if end_open else "<="
    return _selection(tables[family].name, start is not None, end_sign, reverse), bounds


@cache
def _selection(table: str, has_start: bool, end_sign: str | None, reverse: bool) -> str:
    # Cached for the reason of ``Table``: each scan asks for one of a few statements.
    conditions = ["key >= ?"] if has_start else []
    if end_sign is not None:
        conditions.append(f"key {end_sign} ?")
    where = f"where {' and '.join(conditions)} " if conditions else ""
    return f"select key, value from {table} {where}order by key {'desc' if reverse else 'asc'}"


def delete_range(writer: Connection, table: Table, start: bytes | None, end: bytes | None) -> None:
    # Two statements: for one with an OR, SQLite would read all keys from the start on.
    if end is None:
        writer.execute(f"delete from {table.name} where key >= ?", (start or b"",))
    else:
        writer.execute(f"delete from {table.name} where key >= ? and key <= ?", (start or b"", end))


def apply(writer: Connection, table: Table, layer: Writes, codec: ValueCodec) -> None:
    writes = layer.writes
    if None in writes.values():
        deletes = [(key,) for key, value in writes.items() if value is None]
        writer.executemany(table.delete, deletes)
    for pairs in codec.encode_layer(layer):
        writer.executemany(table.replace, pairs)


READING_ERRORS: tuple[type[Exception], ...] = (*Error, TypeError)
"""The errors that a read of a damaged file may raise."""
_SYNCS = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")


def _is_damage(error: Exception) -> bool:
    # UnicodeDecodeError: damage may change the stored type of a value. The last one is the error of an exceeded
    # deadline, which a sound file never reaches.
    return isinstance(error, UnicodeDecodeError) or error_name(error).startswith(
        ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_INTERRUPT")
    )


def damage(error: Exception, file: Path) -> StoreError:
    return StoreCorruptedError(f"SQLite refuses {file}: {error}. Wipe the store and restore it from its changelog")


def opening_error(error: Exception, file: Path) -> StoreError:
    if _is_damage(error) or any(text in str(error) for text in ("no such table", "unsupported file format")):
        return damage(error, file)
    advice = descriptors_lacking(str(error)) or "Correct the cause and open the store again"
    return StoreUnavailableError(f"SQLite can't open {file}: {error}. {advice}")


def reading_error(error: Exception, file: Path) -> StoreError:
    # TypeError: damage may change the stored type of a value. SQLITE_FULL: a read needs no disk space, so the error is
    # about a page that can't exist.
    if isinstance(error, TypeError) or _is_damage(error) or error_name(error) == "SQLITE_FULL":
        return damage(error, file)
    return StoreUnavailableError(f"SQLite can't read {file}: {error}. {descriptors_lacking(str(error))}".rstrip())


def aborted(reason: object, file: Path) -> StoreError:
    return must_reopen(f"SQLite has rolled back the transaction on {file}: {reason}. Correct the cause")


def writing_error(error: Exception, file: Path) -> StoreError:
    if _is_damage(error):
        return damage(error, file)
    if error_name(error).startswith(_SYNCS):
        # The WAL may still have the commit: it may be there when the store is opened again.
        return must_reopen(f"SQLite can't sync {file}: {error}")
    return CommitFailedError(f"SQLite can't write {file}: {error}. Correct the cause and commit again")
