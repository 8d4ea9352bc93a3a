"""The tables of the changelog's SQLite file, and the recognition of such a file.

Print its contents with ``sqlite3 FILE "select * from records"``, ``... from partitions"``, ``... from transactions"``.
"""

from __future__ import annotations

import os
from pathlib import Path

from stores.errors import ChangelogError
from stores.files.plain_files import read_head
from stores.files.sqlite_library import HEADER_BYTES, Connection, missing_bytes

APPLICATION_ID = 0x6C6F6731
"""Spells "log1" in the file's header; ``file`` and ``pragma application_id`` show it."""
SCHEMA_VERSION = 1

SCHEMA = """
create table topic (
    topic_id integer primary key,
    topic text not null unique,
    partitions integer not null
);
create table topic_partition (
    topic_id integer not null references topic,
    partition integer not null,
    start_offset integer not null default 0,  -- what truncation has left begins here
    next_offset integer not null default 0,   -- the next record goes here
    primary key (topic_id, partition)
) without rowid;
create table record (
    topic_id integer not null,
    partition integer not null,
    offset integer not null,
    transaction_id integer not null,          -- 0: committed as it was written, else see transactions
    key blob,
    value blob,                               -- null: a tombstone
    timestamp_ms integer not null,            -- since 1970, -1: unknown
    headers text,                             -- JSON, [[name, content in Latin-1], ...]
    checksum integer not null,                -- see stores/changelog/checksum.py
    primary key (topic_id, partition, offset)
) without rowid;
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
    topic_id integer not null,
    partition integer not null,
    first_offset integer not null,
    last_offset integer not null,
    primary key (transaction_id, topic_id, partition)
) without rowid;
create table group_offset (
    consumer_group text not null,
    topic text not null,
    partition integer not null,
    next_offset integer not null,             -- the next input record to read
    primary key (consumer_group, topic, partition)
) without rowid;
create table cleaning (                       -- see stores/changelog/compaction.py
    topic_id integer not null references topic,
    partition integer not null,
    clean_offset integer not null,            -- records before it are the last of their keys among themselves
    kept_records integer not null,            -- how many these were
    primary key (topic_id, partition)
) without rowid;
create view partitions as
    select topic, p.partition, p.start_offset, p.next_offset,
           coalesce((select min(r.first_offset)
                     from log_transaction t cross join transaction_range r using (transaction_id)
                     where t.state = 'OPEN' and r.topic_id = p.topic_id and r.partition = p.partition),
                    p.next_offset) as last_stable_offset
    from topic_partition p join topic using (topic_id);
create view transactions as
    select transaction_id, t.state, t.transactional_id, t.epoch, topic, partition, first_offset, last_offset
    from log_transaction t left join transaction_range using (transaction_id) left join topic using (topic_id);
create view records as
    select topic, partition, offset, coalesce(t.state, 'COMMITTED') as state,
           case when timestamp_ms >= 0
                then strftime('%Y-%m-%dT%H:%M:%fZ', timestamp_ms / 1000.0, 'unixepoch') end as time,
           timestamp_ms, key, value, headers, transaction_id
    from record join topic using (topic_id) left join log_transaction t using (transaction_id);
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
