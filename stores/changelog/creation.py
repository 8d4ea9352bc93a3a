"""Create the file of a changelog atomically, never over another file, and without touching foreign files.

It is built under a temporary name with a known prefix and a random end. Then it is linked to its place, which never
replaces a file. Meanwhile the lock on ``.NAME.txstores-lock`` is held. So other files with such a name belong to no
running process, and are removed if a creation may have left them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from stores.changelog.schema import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from stores.errors import ChangelogError, StoreLockedError
from stores.files.locks import is_lock_file, take_in_time
from stores.files.plain_files import StrangeFileError, make_file, read_head, sync_folder
from stores.files.sqlite_library import HEADER_BYTES, connect, run_script, write_ahead
from stores.interface import Durability

_BESIDE = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-shm": tuple((3_007_000).to_bytes(4, order) for order in ("little", "big")),
    "-journal": (b"\xd9\xd5\x05\xf9",),
}
"""SQLite's files beside a database, by the ends of their names, with the bytes that they begin with (zeros if unused).
Source: SQLite, "Temporary Files Used By SQLite", "WAL-mode File Format", "Database File Format", 3."""


def create_unless_there(path: Path) -> None:
    """Create an empty changelog at ``path`` unless a file exists there; a crash leaves all of it or nothing.

    Raises: OSError, SQLite's errors; ChangelogError if a foreign file has a name that is needed, or another process has
    held the lock for half a minute.
    """
    if os.path.lexists(path):
        _remove_second_name(path)
        return
    lock_file = path.with_name(f".{path.name}.txstores-lock")
    try:
        if not is_lock_file(lock_file):
            raise ChangelogError(
                f"{lock_file} is not a lock file of this library, which needs that name: move the file, or choose "
                "another path"
            )
        lock = take_in_time(lock_file)
    except StoreLockedError as error:
        raise ChangelogError(f"{path} is being created by another process: {error}") from error
    try:
        if not os.path.lexists(path):
            _create(path)
    finally:
        # Remove it while it is held: a process that waits for it then creates another lock file.
        with suppress(OSError):
            lock_file.unlink()
        os.close(lock)


def _create(path: Path) -> None:
    for leftover in _leftovers(path):
        if _is_ours(leftover):
            _remove(leftover)
    # SQLite would read the WAL of a removed file as pages of this one.
    stale = [file for end in _BESIDE if os.path.lexists(file := path.with_name(path.name + end))]
    for file in stale:
        if not _is_sqlites(file):
            raise ChangelogError(
                f"{file} has a name that SQLite needs for its files of {path}: move it, or choose another path"
            )
    for file in stale:
        file.unlink(missing_ok=True)
    if stale:
        sync_folder(path.parent)
    new = path.with_name(f".{path.name}.txstores-{token_hex(8)}")
    try:
        os.close(make_file(new))
        _build(new)
        sync_file(new)
        _put(new, path)
    finally:
        _remove(new)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Sync the file at ``path``, which this process does not have open. Raises: OSError."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _put(new: Path, path: Path) -> None:
    """Link ``new`` to ``path``, unless a file exists there."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:
        # A file system without links.
        if not os.path.lexists(path):
            new.rename(path)


def _build(path: Path) -> None:
    connection = connect(path)
    try:
        connection.execute("pragma page_size = 16384")
        run_script(
            connection,
            f"begin; {SCHEMA} pragma application_id = {APPLICATION_ID}; "
            f"pragma user_version = {SCHEMA_VERSION}; commit;",
        )
        write_ahead(connection, Durability.DISK)
    finally:
        connection.close()


def _leftovers(path: Path) -> list[Path]:
    named = re.compile(rf"\.{re.escape(path.name)}\.txstores-[0-9a-f]{{16}}")
    return [entry for entry in path.parent.iterdir() if named.fullmatch(entry.name)]


def _is_ours(leftover: Path) -> bool:
    """Return True if a creation may have left this: a changelog, or a file that was not written yet."""
    try:
        header = read_head(leftover, HEADER_BYTES)
    except StrangeFileError:
        return False
    is_changelog = header.startswith(b"SQLite format 3\0") and header[68:72] == APPLICATION_ID.to_bytes(4, "big")
    return is_changelog or not header.strip(b"\0")


def _is_sqlites(file: Path) -> bool:
    try:
        begin = read_head(file, 32)
    except StrangeFileError:
        return False
    return not begin.strip(b"\0") or begin.startswith(_BESIDE[f"-{file.name.rpartition('-')[2]}"])


def _remove(new: Path) -> None:
    for end in ("", *_BESIDE):
        new.with_name(new.name + end).unlink(missing_ok=True)


def _remove_second_name(path: Path) -> None:
    """Remove the temporary name of the file, if the process that created it was killed before that."""
    status = path.stat() if path.is_file() else None
    if status is None or status.st_nlink == 1:
        return
    for leftover in _leftovers(path):
        with suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(leftover), status):
                leftover.unlink()
