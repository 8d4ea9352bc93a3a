"""Engines that open the files of a store without the store: what their opening costs by itself.

Each is opened as the store opens it, with the same options and the syncs of the same level, but without its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import lmdb
from rocksdict import Options, Rdict

from harness.processes.load import Clocks, clocks, seconds_since
from stores.engines.lmdb import LmdbEngine
from stores.engines.rocksdb import RocksDBEngine, database_options
from stores.engines.rocksdb.database import OFFSETS_FAMILY
from stores.engines.sqlite import SqliteEngine
from stores.files.sqlite_library import connect, write_ahead
from stores.interface import Durability

Lookup = Callable[[bytes], Any]
Open = Callable[[ExitStack], Lookup]
"""Opens a database, which ends with the stack, and returns its lookup of committed data."""

_LMDB_DATA = b"data.crc32"
"""LMDB's database of the data of a store with checksums (docs/format.md)."""


def bare_seconds(folder: Path, durability: Durability, key: bytes) -> Clocks | None:
    """Open every database below ``folder`` with its engine, look ``key`` up in each, and close them.

    Return the seconds until all are open and read; None if there is no database of a known engine. Raises: LookupError
    if none of them has the key.
    """
    openings = list(_openings(folder, durability))
    if not openings:
        return None
    with ExitStack() as databases:
        began = clocks()
        values = [opening(databases)(key) for opening in openings]
        seconds = seconds_since(began)
    if not any(value is not None for value in values):
        raise LookupError(f"no database below {folder} has the key {key!r}")
    return seconds


def _openings(folder: Path, durability: Durability) -> Iterator[Open]:
    for path in sorted(folder.rglob("*")):
        if path.name == "CURRENT":
            yield _rocksdb(path.parent)
        elif path.name == "data.mdb":
            yield _lmdb(path.parent, durability)
        elif path.suffix == ".db":
            yield _sqlite(path, durability)


def _rocksdb(path: Path) -> Open:
    # The options and the names of column families are what a store of this kind knows without reading.
    options = database_options(RocksDBEngine.options)
    families = {name: database_options(RocksDBEngine.options) for name in Rdict.list_cf(str(path), Options())}
    families[OFFSETS_FAMILY].set_write_buffer_size(int(str(RocksDBEngine.options["offsets_write_buffer_size_bytes"])))

    def opening(opened: ExitStack) -> Lookup:
        database = opened.enter_context(closing(Rdict(str(path), options=options, column_families=families)))
        return database.get

    return opening


def _lmdb(path: Path, durability: Durability) -> Open:
    options = LmdbEngine.options

    def opening(opened: ExitStack) -> Lookup:
        environment = opened.enter_context(
            closing(
                lmdb.open(
                    str(path),
                    map_size=int(str(options["map_size_bytes"])),
                    max_dbs=3,
                    max_readers=int(str(options["max_readers"])),
                    sync=durability is Durability.DISK,
                    max_spare_txns=4,
                )
            )
        )
        data = environment.open_db(_LMDB_DATA, create=False)
        return opened.enter_context(environment.begin(data)).get

    return opening


def _sqlite(path: Path, durability: Durability) -> Open:
    options = SqliteEngine.options

    def opening(opened: ExitStack) -> Lookup:
        connection = opened.enter_context(closing(connect(path)))
        write_ahead(connection, durability)
        connection.execute(f"pragma cache_size=-{int(str(options['cache_size_bytes'])) >> 10}")
        connection.execute(f"pragma wal_autocheckpoint={options['wal_autocheckpoint_pages']}").fetchall()
        # The first read recovers the WAL.
        return lambda key: connection.execute("select value from data where key = ?", (key,)).fetchone()

    return opening
