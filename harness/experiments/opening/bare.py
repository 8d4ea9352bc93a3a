"""Engines that open the files of a store without the store: what their opening costs by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter
from typing import Any

import lmdb
from rocksdict import Options, Rdict

from stores.engines.lmdb import LmdbEngine
from stores.engines.rocksdb import RocksDBEngine, database_options
from stores.engines.sqlite import SqliteEngine
from stores.files.sqlite_library import connect

Open = Callable[[], Any]


def bare_seconds(folder: Path) -> float | None:
    """Open every database below ``folder`` with its engine, read one record of each, and close them.

    Return the seconds until all are open and read; None if there is no database of a known engine.
    """
    openings = list(_openings(folder))
    if not openings:
        return None
    with ExitStack() as opened:
        began = perf_counter()
        for opening in openings:
            opened.enter_context(closing(opening()))
        return perf_counter() - began


def _openings(folder: Path) -> Iterator[Open]:
    for path in sorted(folder.rglob("*")):
        if path.name == "CURRENT":
            yield _rocksdb(path.parent)
        elif path.name == "data.mdb":
            yield _lmdb(path.parent)
        elif path.suffix == ".db":
            yield _sqlite(path)


def _rocksdb(path: Path) -> Open:
    # The options and the names of column families are what a store of this kind knows without reading.
    families: dict[str, Options] = {
        name: database_options(RocksDBEngine.options) for name in Rdict.list_cf(str(path), Options())
    }
    options = database_options(RocksDBEngine.options)

    def opening() -> Any:
        opened = Rdict(str(path), options=options, column_families=families)
        next(iter(opened.items()), None)
        return opened

    return opening


def _lmdb(path: Path) -> Open:
    def opening() -> Any:
        opened = lmdb.open(str(path), map_size=int(str(LmdbEngine.options["map_size_bytes"])), max_dbs=2)
        with opened.begin() as transaction, transaction.cursor() as cursor:
            cursor.first()
        return opened

    return opening


def _sqlite(path: Path) -> Open:
    def opening() -> Any:
        opened = connect(path)
        opened.execute(f"pragma cache_size=-{int(str(SqliteEngine.options['cache_size_bytes'])) >> 10}")
        # The first read recovers the WAL.
        tables = opened.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        for (table,) in tables:
            opened.execute(f'select * from "{table}" limit 1').fetchone()
        return opened

    return opening
