"""The file of an embedded changelog, shown without being opened as one: nothing in it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stores.changelog.schema import APPLICATION_ID
from stores.errors import ChangelogError
from stores.files.plain_files import translated_system_errors
from stores.files.sqlite_library import READ_ONLY, UNCHANGING, Connection, Error, connect
from stores.shell.decoding import Line

_MAGIC = b"SQLite format 3\0"
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "partitions": ("topic", "partition", "start_offset", "next_offset", "last_stable_offset"),
    "transactions": ("transactional_id", "state", "topic", "partition", "first_offset", "last_offset"),
    "consumer_groups": ("consumer_group", "topic", "partition", "next_offset"),
}
"""The views of a changelog for people, and the columns that are shown."""


def is_changelog(path: Path) -> bool:
    """Return whether ``path`` is the file of a changelog, by its first bytes. Raises: StoreUnavailableError."""
    with translated_system_errors(path):
        if not path.is_file():
            return False
        with path.open("rb") as opened:
            header = opened.read(72)
    return header.startswith(_MAGIC) and header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def facts_of(path: Path) -> Line:
    """Return a description of the changelog ``path`` at one moment; it may be in use.

    Raises: ChangelogError if the file is damaged, or of a release that is not known here.
    """
    log = path.with_name(f"{path.name}-wal")
    found = None
    if not log.exists():
        # No process has it open. Then SQLite need not make a WAL, which would be left behind.
        with suppress(ChangelogError):
            found = _read(path, UNCHANGING)
    if found is None or log.exists():
        # A process may have opened it meanwhile, and changed what was being read.
        found = _read(path, READ_ONLY)
    version, lists = found
    beside = [path.with_name(path.name + end) for end in ("", "-wal")]
    with translated_system_errors(path):
        size_bytes = sum(file.stat().st_blocks * 512 for file in beside if file.exists())
    return {"path": str(path), "kind": "changelog", "schema_version": version, "size_bytes": size_bytes, **lists}


def _read(path: Path, access: str) -> tuple[int, dict[str, list[Line]]]:
    try:
        connection = connect(path, access)
        try:
            connection.execute("begin")
            [version] = connection.execute("pragma user_version").fetchone()
            return version, {view: _rows(connection, view, columns) for view, columns in _COLUMNS.items()}
        finally:
            connection.close()
    except Error as error:
        raise ChangelogError(f"the changelog {path} can't be read: {error}. Check the file and its folder") from error


def _rows(connection: Connection, view: str, columns: tuple[str, ...]) -> list[Line]:
    rows = connection.execute(f"select {', '.join(columns)} from {view}").fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]
