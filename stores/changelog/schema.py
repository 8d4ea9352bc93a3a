"""The changelog's SQLite file: its tables, its recognition, and its creation.

Print its contents with ``txstores dump FILE``, and what is in its views with ``sqlite3 FILE "select * from batches"``,
``... from partitions"``, ``... from transactions"``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from stores.errors import ChangelogError, StoreLockedError
from stores.files.locks import is_lock_file, take_in_time
from stores.files.plain_files import (
    StrangeFileError,
    make_file,
    read_head,
    sync_folder,
    translated_system_errors,
)
from stores.files.sqlite_library import HEADER_BYTES, Connection, connect, missing_bytes, run_script, write_ahead
from stores.interface import Durability

APPLICATION_ID = 0x6C6F6731
"""Spells "log1" in the file's header; ``file`` and ``pragma application_id`` show it."""
SCHEMA_VERSION = 2

SCHEMA = """
create table topic (
    topic_id integer primary key,
    topic text not null unique,
    partitions integer not null
);
create table topic_partition (
    partition_id integer primary key,
    topic_id integer not null references topic,
    partition integer not null,
    start_offset integer not null default 0,  -- what truncation has left begins here
    next_offset integer not null default 0,   -- the next record goes here
    unique (topic_id, partition),
    constraint "a changelog has up to 131,071 partitions" check (partition_id < 1 << 17),
    constraint "a partition has up to 2^46 records" check (next_offset <= 1 << 46)
);
create table batch (                          -- see stores/changelog/batches.py
    batch_id integer primary key,             -- partition_id << 46 | the offset of the first record
    count integer not null,                   -- the number of records
    transaction_id integer not null,          -- 0: committed as it was written, else see transactions
    time_ms integer not null,                 -- the lowest timestamp of the records, since 1970, -1: unknown
    content blob not null                     -- a checksum, and the records
);
create table producer (
    transactional_id text primary key,
    epoch integer not null                    -- only the producer with this epoch may write
) without rowid;
create table log_transaction (                -- a transaction that is not here was committed
    transaction_id integer primary key autoincrement,
    transactional_id text not null,
    epoch integer not null,
    state text not null check (state in ('OPEN', 'ABORTED'))
);
create index open_transaction on log_transaction (transactional_id) where state = 'OPEN';
create table transaction_range (              -- where an open or aborted transaction has records
    transaction_id integer not null references log_transaction,
    partition_id integer not null references topic_partition,
    first_offset integer not null,
    last_offset integer not null,
    primary key (transaction_id, partition_id)
) without rowid;
create table group_offset (
    consumer_group text not null,
    topic text not null,
    partition integer not null,
    next_offset integer not null,             -- the next input record to read
    primary key (consumer_group, topic, partition)
) without rowid;
create table cleaning (                       -- see stores/changelog/sqlite_writer.py
    partition_id integer primary key references topic_partition,
    clean_offset integer not null,            -- records before it are the last of their keys among themselves
    kept_records integer not null             -- how many these were
);
create view partitions as
    select topic, p.partition, p.start_offset, p.next_offset,
           coalesce((select min(r.first_offset)
                     from log_transaction t cross join transaction_range r using (transaction_id)
                     where t.state = 'OPEN' and r.partition_id = p.partition_id),
                    p.next_offset) as last_stable_offset
    from topic_partition p join topic using (topic_id);
create view transactions as
    select transaction_id, t.state, t.transactional_id, t.epoch, topic, partition, first_offset, last_offset
    from log_transaction t left join transaction_range using (transaction_id)
    left join topic_partition using (partition_id) left join topic using (topic_id);
create view batches as
    select topic, partition, batch_id & (1 << 46) - 1 as base_offset, count, coalesce(t.state, 'COMMITTED') as state,
           case when time_ms >= 0
                then strftime('%Y-%m-%dT%H:%M:%fZ', time_ms / 1000.0, 'unixepoch') end as time,
           time_ms, length(content) as bytes, transaction_id, batch_id, content
    from batch left join topic_partition on partition_id = batch_id >> 46 left join topic using (topic_id)
    left join log_transaction t using (transaction_id);
create view sizes as
    select topic, partition, count(*) as batches, sum(count) as records, sum(bytes) as bytes
    from batches group by topic, partition;
create view consumer_groups as select * from group_offset;
"""


def check_file(path: Path) -> None:
    """Check that ``path`` is a complete SQLite file, by its first 100 bytes and its size. Raises: ChangelogError."""
    if not path.is_file():
        raise ChangelogError(f"{path} is not a file: a changelog is one SQLite file, choose another path")
    if not os.access(path, os.W_OK):
        raise ChangelogError(f"{path} is read-only: make it writable, or choose another path")
    header = read_head(path.resolve(), HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        raise ChangelogError(f"{path} is not a changelog: it is no SQLite file; choose another path")
    missing = missing_bytes(path)
    if missing:
        raise ChangelogError(
            f"{path} is cut short by {missing:,} bytes: restore a complete copy without a -wal file of another one, or "
            "remove it to start with an empty one"
        )


def check_schema(path: Path, connection: Connection) -> None:
    """Check that a file is a changelog of this release's schema version. Raises: ChangelogError."""
    if connection.execute("pragma application_id").fetchone()[0] != APPLICATION_ID:
        raise ChangelogError(f"{path} is an SQLite file, but not a changelog; choose another path")
    version = connection.execute("pragma user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise ChangelogError(
            f"{path} has schema version {version}, and this release reads {SCHEMA_VERSION}: "
            "open it with the release that wrote it"
        )


_BESIDE = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-shm": tuple((3_007_000).to_bytes(4, order) for order in ("little", "big")),
    "-journal": (b"\xd9\xd5\x05\xf9",),
}
"""SQLite's files beside a database, by the ends of their names, with the bytes that they begin with (zeros if unused).
Source: SQLite, "Temporary Files Used By SQLite", "WAL-mode File Format", "Database File Format", 3."""


def create_unless_there(path: Path) -> None:
    """Create an empty changelog at ``path`` unless a file exists there; a crash leaves all of it or nothing.

    It is built under a temporary name with a known prefix and a random end. Then it is linked to its place, which never
    replaces a file. Meanwhile the lock on ``.NAME.txstores-lock`` is held. So other files with such a name belong to no
    running process, and are removed if a creation may have left them.

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
        connection.execute("pragma page_size = 4096")
        run_script(
            connection,
            f"begin; {SCHEMA} pragma application_id = {APPLICATION_ID}; "
            f"pragma user_version = {SCHEMA_VERSION}; commit;",
        )
        write_ahead(connection, Durability.DISK)
    finally:
        connection.close()


def is_changelog(path: Path) -> bool:
    """Return whether ``path`` is the file of a changelog, by its first bytes. Raises: StoreUnavailableError."""
    with translated_system_errors(path):
        return path.is_file() and _is_changelogs(read_head(path, HEADER_BYTES))


def _leftovers(path: Path) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(path.name)}\.txstores-[0-9a-f]{{16}}")
    return [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)]


def _is_ours(leftover: Path) -> bool:
    """Return True if a creation may have left this: a changelog, or a file that was not written yet."""
    try:
        header = read_head(leftover, HEADER_BYTES)
    except StrangeFileError:
        return False
    return _is_changelogs(header) or not header.strip(b"\0")


def _is_changelogs(header: bytes) -> bool:
    return header.startswith(b"SQLite format 3\0") and header[68:72] == APPLICATION_ID.to_bytes(4, "big")


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
