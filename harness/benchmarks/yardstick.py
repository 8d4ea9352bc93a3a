"""Engines without a store around them, used as well as plain code can: what a store's price is measured against."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
from rocksdict import Rdict, WriteOptions

from stores import Durability
from stores.engines.lmdb import LmdbEngine
from stores.engines.rocksdb import RocksDBEngine, database_options
from stores.engines.sqlite import SqliteEngine

Pairs = Sequence[tuple[bytes, bytes]]


class Yardstick(ABC):
    """An open engine."""

    @abstractmethod
    def __init__(self, path: Path, durability: Durability) -> None:
        """Open a new one at ``path``."""

    @abstractmethod
    def write(self, batch: Pairs) -> None:
        """Write the pairs, as durably as the level asks."""

    @abstractmethod
    def update(self, batch: Pairs) -> None:
        """Read each key, then write its new value."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything, in key order."""

    @abstractmethod
    def close(self) -> None:
        """Close the engine."""


class PlainRocksDB(Yardstick):
    """A loop over rocksdict's own ``put`` and ``get``, with the options that the stores have, without a log."""

    def __init__(self, path: Path, durability: Durability) -> None:
        options, offsets = (database_options(RocksDBEngine.options) for _ in range(2))
        self._db: Any = Rdict(str(path), options=options, column_families={"default": options, "offsets": offsets})
        writing = WriteOptions()
        setattr(writing, "disable_wal", durability is Durability.CHANGELOG)  # noqa: B010 - the stub calls it a method
        writing.sync = durability is Durability.DISK
        self._db.set_write_options(writing)

    def write(self, batch: Pairs) -> None:
        put = self._db.put
        for key, value in batch:
            put(key, value)

    def update(self, batch: Pairs) -> None:
        get, put = self._db.get, self._db.put
        for key, value in batch:
            get(key)
            put(key, value)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._db.items())

    def close(self) -> None:
        self._db.close()


class PlainLmdb(Yardstick):
    """Sorted ``putmulti`` in one transaction for each batch, with the options that the stores have."""

    def __init__(self, path: Path, durability: Durability) -> None:
        path.mkdir()
        self._env: Any = lmdb.open(
            str(path),
            map_size=int(str(LmdbEngine.options["map_size_bytes"])),
            sync=durability is Durability.DISK,
            max_spare_txns=4,
        )

    def write(self, batch: Pairs) -> None:
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(sorted(batch))

    def update(self, batch: Pairs) -> None:
        with self._env.begin() as txn:
            for key, _ in batch:
                txn.get(key)
        self.write(batch)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin() as txn:
            yield from txn.cursor()

    def close(self) -> None:
        self._env.close()


class PlainSqlite(Yardstick):
    """Sorted ``executemany`` in one transaction for each batch, with the settings that the stores have."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("pragma journal_mode=WAL").fetchone()
        synchronous = {Durability.CHANGELOG: "OFF", Durability.PROCESS: "NORMAL", Durability.DISK: "FULL"}[durability]
        self._db.execute(f"pragma synchronous={synchronous}")
        self._db.execute(f"pragma cache_size=-{int(str(SqliteEngine.options['cache_size_bytes'])) >> 10}")
        self._db.execute("create table data (key blob primary key, value blob not null) without rowid")

    def write(self, batch: Pairs) -> None:
        self._db.execute("begin immediate")
        self._db.executemany("replace into data values (?, ?)", sorted(batch))
        self._db.execute("commit")

    def update(self, batch: Pairs) -> None:
        for key, _ in batch:
            self._db.execute("select value from data where key = ?", (key,)).fetchone()
        self.write(batch)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        return self._db.execute("select key, value from data order by key")

    def close(self) -> None:
        self._db.close()


YARDSTICKS: dict[str, type[Yardstick]] = {
    "plain-rocksdb": PlainRocksDB,
    "plain-lmdb": PlainLmdb,
    "plain-sqlite": PlainSqlite,
}
