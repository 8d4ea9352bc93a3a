"""Yardsticks: engines without a store around them, used as well as plain code can, with which stores are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import lmdb
from rocksdict import Rdict, WriteBatch, WriteOptions

from harness.experiments.microbench.case import Case
from harness.workloads.ycsb import YcsbOperation, apply
from stores import Durability, KeyValueStore, TopicPartition, open_store
from stores.engines.lmdb import LmdbEngine
from stores.engines.rocksdb import RocksDBEngine, database_options
from stores.engines.sqlite import SqliteEngine
from stores.files.sqlite_library import connect
from stores.registry import backend_named
from stores.telemetry import MetricsRegistry

Pairs = Sequence[tuple[bytes, bytes]]

_OFFSET, _POSITION = b"o\x00\x00\x00\x00changelog", b"p\x00\x00\x00\x00input"
"""The keys of the entries that a store keeps for a changelog's offset and an input's position."""
_ENTRIES = b"entries"


class Yardstick(ABC):
    """The operations of an open engine."""

    @abstractmethod
    def __init__(self, path: Path, durability: Durability) -> None:
        """Open a new engine at ``path``."""

    @abstractmethod
    def write(self, batch: Pairs) -> None:
        """Write the pairs with the durability of the level."""

    @abstractmethod
    def step(self, batch: Pairs, number: int) -> None:
        """Write the pairs together with an offset and a position, both ``number``, in one atomic write."""

    @abstractmethod
    def update(self, batch: Pairs) -> None:
        """Read each key, then write its new value."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every pair in key order."""

    @abstractmethod
    def close(self) -> None:
        """Close the engine."""


class PlainRocksDB(Yardstick):
    """A loop over rocksdict's own ``put`` and ``get``, with the options of the stores; at CHANGELOG without a WAL."""

    def __init__(self, path: Path, durability: Durability) -> None:
        options, offsets = (database_options(RocksDBEngine.options) for _ in range(2))
        self._db: Any = Rdict(str(path), options=options, column_families={"default": options, "offsets": offsets})
        writing = WriteOptions()
        setattr(writing, "disable_wal", durability is Durability.CHANGELOG)  # noqa: B010 - the stub calls it a method
        writing.sync = durability is Durability.DISK
        self._db.set_write_options(writing)
        self._writing = writing
        # The handle is kept, because rocksdict flushes a column family when a handle of it is dropped.
        self._offsets_db = self._db.get_column_family("offsets")
        self._offsets: Any = self._db.get_column_family_handle("offsets")

    def write(self, batch: Pairs) -> None:
        put = self._db.put
        for key, value in batch:
            put(key, value)

    def step(self, batch: Pairs, number: int) -> None:
        writes = WriteBatch(True)
        put = writes.put
        for key, value in batch:
            put(key, value)
        entry = number.to_bytes(8, "big")
        put(_OFFSET, entry, self._offsets)
        put(_POSITION, entry, self._offsets)
        self._db.write(writes, self._writing)

    def update(self, batch: Pairs) -> None:
        get, put = self._db.get, self._db.put
        for key, value in batch:
            get(key)
            put(key, value)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._db.items())

    def close(self) -> None:
        self._offsets = None
        self._db.close()
        self._offsets_db.close()


class PlainLmdb(Yardstick):
    """Sorted ``putmulti`` in one transaction for each batch, with the options of the stores."""

    def __init__(self, path: Path, durability: Durability) -> None:
        path.mkdir()
        self._env: Any = lmdb.open(
            str(path),
            map_size=int(str(LmdbEngine.options["map_size_bytes"])),
            sync=durability is Durability.DISK,
            max_spare_txns=4,
            max_dbs=1,
        )
        self._entries = self._env.open_db(_ENTRIES)

    def write(self, batch: Pairs) -> None:
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(sorted(batch))

    def step(self, batch: Pairs, number: int) -> None:
        entry = number.to_bytes(8, "big")
        with self._env.begin(write=True) as txn:
            if batch:
                with txn.cursor() as cursor:
                    cursor.putmulti(sorted(batch))
            txn.put(_OFFSET, entry, db=self._entries)
            txn.put(_POSITION, entry, db=self._entries)

    def update(self, batch: Pairs) -> None:
        with self._env.begin() as txn:
            for key, _ in batch:
                txn.get(key)
        self.write(batch)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin() as txn:
            # LMDB keeps the name of the other database among the records.
            yield from (pair for pair in txn.cursor() if pair[0] != _ENTRIES)

    def close(self) -> None:
        self._env.close()


class PlainSqlite(Yardstick):
    """Sorted ``executemany`` in one transaction for each batch, with the settings of the stores."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._db = connect(path)
        self._db.execute("pragma journal_mode=WAL").fetchone()
        synchronous = {Durability.CHANGELOG: "OFF", Durability.PROCESS: "NORMAL", Durability.DISK: "FULL"}[durability]
        self._db.execute(f"pragma synchronous={synchronous}")
        self._db.execute(f"pragma cache_size=-{int(str(SqliteEngine.options['cache_size_bytes'])) >> 10}")
        self._db.execute("create table data (key blob primary key, value blob not null) without rowid")
        self._db.execute("create table entries (key blob primary key, value blob not null) without rowid")

    def write(self, batch: Pairs) -> None:
        self._db.execute("begin immediate")
        self._db.executemany("replace into data values (?, ?)", sorted(batch))
        self._db.execute("commit")

    def step(self, batch: Pairs, number: int) -> None:
        entry = number.to_bytes(8, "big")
        self._db.execute("begin immediate")
        if batch:
            self._db.executemany("replace into data values (?, ?)", sorted(batch))
        self._db.executemany("replace into entries values (?, ?)", ((_OFFSET, entry), (_POSITION, entry)))
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


_CHANGELOG, _INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)


STAGING_BYTES = 1 << 30
"""The memory for the largest cases: a commit of 500,000 pairs and 1,000,000 staged ones must not spill."""


class TimedStore(Yardstick):
    """A backend with the same operations. Every batch is one transaction with an offset."""

    def __init__(
        self,
        path: Path,
        durability: Durability,
        backend: str = "rocksdb-indexed-batch",
        options: Mapping[str, object] | None = None,
    ) -> None:
        kind = backend_named(backend)
        if kind.persistent and backend.endswith("-indexed-batch"):
            options = {"staging_buffer_bytes": STAGING_BYTES, **(options or {})}
        self.store: KeyValueStore = open_store(backend, path, durability=durability, options=options)
        self._offset = 0

    def _commit(self) -> None:
        self._offset += 1
        self.store.commit({_CHANGELOG: self._offset})

    def write(self, batch: Pairs) -> None:
        put = self.store.put
        for key, value in batch:
            put(key, value)
        self._commit()

    def step(self, batch: Pairs, number: int) -> None:
        put = self.store.put
        for key, value in batch:
            put(key, value)
        self.store.advance_position(_INPUT, number)
        self.store.commit({_CHANGELOG: number})

    def update(self, batch: Pairs) -> None:
        get, put = self.store.get, self.store.put
        for key, value in batch:
            get(key)
            put(key, value)
        self._commit()

    def operate(self, batch: Sequence[YcsbOperation]) -> None:
        """Perform operations of YCSB, then commit."""
        store = self.store
        for operation in batch:
            apply(operation, store)
        self._commit()

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.store.all())

    def close(self) -> None:
        self.store.close()


def open_subject(case: Case, folder: Path) -> Yardstick:
    """Open the case's backend or yardstick, new, in ``folder``."""
    path = folder / "subject"
    if case.subject in YARDSTICKS:
        return YARDSTICKS[case.subject](path, case.durability)
    switches = {"checksums": case.checksums, "scan_checksums": case.scan_checksums}
    return TimedStore(path, case.durability, case.subject, {name: False for name in switches if not switches[name]})


COLLECT_INTERVAL_S = 0.1
"""The interval: a hundred times as often as Prometheus by default (``scrape_interval``, some 10 s to 60 s)."""


class Watcher:
    """Collects all metrics of ``store`` and its engine on a thread of its own; use it in a ``with`` block."""

    def __init__(self, store: KeyValueStore) -> None:
        self.collections = 0
        self._registry = MetricsRegistry()
        self._registry.add(store)
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        assert self.collections, "nobody has watched"

    def _watch(self) -> None:
        while True:
            self._registry.collect_all()
            self.collections += 1
            if self._over.wait(COLLECT_INTERVAL_S):
                return
