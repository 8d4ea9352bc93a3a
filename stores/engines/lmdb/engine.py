"""LMDB: a memory-mapped B+tree with one writer and any number of snapshots.

Data and meta entries are two named databases of one environment, written in one transaction. The map grows by itself,
and limits the size of a strategy's transaction (``stores.engines.lmdb.environment``).

LMDB has no checksums. With ``checksums`` each value is followed by one of key and value
(``stores.engines.checksum``).
``verify`` also detects keys that are lost with their page; a lookup does not.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any, ClassVar, Self
from weakref import WeakSet

import lmdb

from stores.changed_keys import ChangedKeys
from stores.engines.changes import ChangesCapture
from stores.engines.checksum import CHECKSUM_BYTES, codec_of
from stores.engines.engine import Capture, EngineSnapshot, Scan, Transaction, TransactionalEngine, Writes, converted
from stores.engines.families import FAMILIES, families_in_use
from stores.engines.lmdb.capture import LmdbCapture, LmdbReading
from stores.engines.lmdb.environment import (
    Environment,
    MemoryMap,
    environment_to_read,
    environment_to_write,
    is_doubtful,
    reading_error,
    repack,
    replacing,
    writing_error,
)
from stores.engines.lmdb.file import DATA_FILE, check_structure
from stores.engines.lmdb.meta_pages import check_closed_meta_pages
from stores.engines.lmdb.transaction import LmdbScan, LmdbSnapshot, LmdbTransaction, ReadTransaction, delete_range
from stores.engines.snapshots import SharedSnapshots, Snapshot
from stores.errors import CommitFailedError, StoreError, StoreUnavailableError, damaged
from stores.interface import Durability
from stores.ordered import ScanRange

_READER_CHECK_S = 1.0
_SPARE_READERS_MAX = 16
"""The number of reader slots that scans leave to lookups."""


class LmdbEngine(TransactionalEngine):
    """An LMDB environment per store. Below DISK nothing is synced: a kill loses nothing, power loss may tear it."""

    name: ClassVar[str] = "lmdb"
    options: ClassVar[Mapping[str, object]] = {
        "map_size_bytes": 1 << 30,
        "max_readers": 4096,
        "checksums": True,
        # Without it, a scan takes some two thirds of the time. Lookups and ``verify`` always check.
        "scan_checksums": True,
    }
    # A reader slot takes 64 bytes of the lock file, which is mapped whole; only used slots take disk space. Open scans
    # take a slot for each commit that they show, and LMDB reads all slots that were ever used.
    option_values: ClassVar[Mapping[str, Container[object]]] = {"max_readers": range(1, 1 << 20)}
    max_value_bytes = (1 << 32) - 1 - CHECKSUM_BYTES
    # LMDB spills a transaction only above 2**17 - 1 dirty pieces (``MDB_IDL_UM_MAX``). A piece is a page, or all pages
    # of one value that is larger than half a page.
    spills: ClassVar[bool] = False
    splits: ClassVar[bool] = True
    reads_live: ClassVar[bool] = True
    captures: ClassVar[bool] = True
    captures_changes: ClassVar[bool] = True

    def __init__(self, environment: Environment, durability: Durability, *, scans_checked: bool) -> None:
        env = environment.env
        self._env, self._meta_pages, self._durability = env, environment.meta_pages, durability
        self._path: str = env.path()
        self._codec = codec_of(checksums=environment.checksums, scans_checked=scans_checked)
        self._data, self._meta = environment.databases
        self._second_name = environment.second_name
        self._second: Any = None
        self._stored: list[Any] = [self._data]
        """The data families in use."""
        self.max_key_bytes = env.max_key_size()
        self._page_bytes = int(env.stat()["psize"])
        readers = int(env.info()["max_readers"])
        self._snapshots_max = readers - min(_SPARE_READERS_MAX, readers // 2)
        self._scans: WeakSet[LmdbScan] = WeakSet()
        self._held: WeakSet[LmdbSnapshot] = WeakSet()
        self._captures: WeakSet[Capture] = WeakSet()
        # The map can only be resized while no transaction is open, on any thread.
        self._map = RLock()
        self._memory_map = MemoryMap(env, self._page_bytes, self._release_map)
        self._snapshots: SharedSnapshots[ReadTransaction] = SharedSnapshots(self._begin_snapshot, ReadTransaction.end)
        self._reader: Snapshot[ReadTransaction] | None = None
        """The snapshot that single lookups share while nothing is written."""
        self._writing = False
        self._readers_due = 0.0
        """The time of the next look for readers that were killed."""
        self._inode = 0
        if self._second_name in environment.names:
            # The second data family was created once. The meta entry says whether it is in use.
            self._second = env.open_db(self._second_name)
            self.select_families()

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        with environment_to_write(path, durability, options) as environment:
            return cls(environment, durability, scans_checked=bool(options["scan_checksums"]))

    @classmethod
    def is_doubtful(cls, path: Path) -> bool:
        return is_doubtful(path)

    @classmethod
    def probe_open(cls, path: Path, options: Mapping[str, object]) -> None:
        with suppress(StoreError):
            engine = cls.open_read_only(path, live=False)
            engine.meta()
            engine.close()

    @classmethod
    def open_read_only(cls, path: Path, *, live: bool) -> Self:
        file = os.stat(path / DATA_FILE)
        with environment_to_read(path, live=live) as environment:
            engine = cls(environment, Durability.CHANGELOG, scans_checked=True)
        engine._inode = file.st_ino
        if live:
            # The other process may commit at any moment: no snapshot is shared, as during a commit of this one.
            engine._begin_writing()
        return engine

    def is_current(self) -> bool:
        file = self._file()
        return file is not None and file.st_ino == self._inode and file.st_size <= int(self._env.info()["map_size"])

    def _file(self) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.stat(Path(self._path) / DATA_FILE)
        return None

    def copy_to(self, folder: Path) -> None:
        try:
            # Compacting: another copy waits until no transaction writes, which a native store's does all the time.
            self._env.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise StoreUnavailableError(
                f"{self._path} can't be copied to {folder}: {error}. Make room there"
            ) from error

    def capture(self, folder: Path) -> Capture:
        with self._map, converted(lmdb.Error, reading_error):
            capture = LmdbCapture(self._env, Path(self._path), self._page_bytes, folder)
            self._captures.add(capture)
            return capture

    def capture_changes(self, folder: Path, runs: Sequence[ChangedKeys]) -> Capture:
        with self._map, converted(lmdb.Error, reading_error):
            _, meta = self._read_meta()
            reading = LmdbReading(self._env.begin(self._stored[0]), Path(self._path), self._codec)
            capture = ChangesCapture(reading, meta, runs, folder)
            self._captures.add(capture)
            return capture

    @classmethod
    def compact(cls, path: Path, options: Mapping[str, object]) -> None:
        with replacing(path) as fresh, closing(cls.open_read_only(path, live=False)) as engine:
            repack(engine._env, fresh)

    @classmethod
    def check_closed(cls, path: Path) -> None:
        check_closed_meta_pages(path)

    @classmethod
    def check_before_commit(cls, path: Path) -> None:
        check_closed_meta_pages(path, before_commit=True)

    def add_family(self) -> None:
        if self._second is not None:
            return
        self._prepare_commit()
        while True:
            try:
                self._begin_writing()
                try:
                    with self._env.begin(write=True) as txn:
                        transaction_id = txn.id()
                        second = self._env.open_db(self._second_name, txn=txn)
                finally:
                    self._end_writing()
            except lmdb.MapFullError as error:
                with self._map:
                    self._memory_map.grow(error)
            except lmdb.Error as error:
                raise writing_error(error) from error
            else:
                self._meta_pages.note(transaction_id)
                self._second = second
                return

    def select_families(self) -> None:
        places = families_in_use(self.meta().get(FAMILIES))
        if max(places) and self._second is None:
            raise damaged(f"{self._path} has no database {self._second_name!r}")
        with self._map:
            # A read transaction from before does not know the new database.
            self._drop_reader()
            self._stored = [(self._data, self._second)[place] for place in places]
            self.num_families = len(places)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        with self._map:
            try:
                if self._writing:
                    # Use a fresh read transaction: the commit may finish at any time, and a kept one would then be
                    # older than a scan already returned.
                    with self._env.begin(self._stored[family]) as txn:
                        raw = txn.get(key)
                else:
                    reader = self._reader
                    if reader is None:
                        reader = self._reader = self._snapshots.acquire()
                    raw = reader.reading.txn.get(key, None, self._stored[family])
            except lmdb.BadValsizeError:
                return None
            except lmdb.Error as error:
                raise reading_error(error) from error
        return None if raw is None else self._codec.decode(key, raw)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._get_all(keys, repeat(self._stored[0]))

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        databases = self._stored
        return self._get_all([key for _, key in keys], [databases[family] for family, _ in keys])

    def _get_all(self, keys: Sequence[bytes], databases: Iterable[Any]) -> list[bytes | None]:
        """Return the values of ``keys``, each from its database, all of one snapshot."""
        with self._map:
            try:
                with self._env.begin() as txn:
                    found = self._found(txn, keys, databases)
            except lmdb.Error as error:
                raise reading_error(error) from error
        return self._codec.decode_many(keys, found)

    def _found(self, txn: Any, keys: Sequence[bytes], databases: Iterable[Any]) -> list[bytes | None]:
        try:
            # Without bytecode for each key. LMDB's own call for several keys takes no less time.
            return list(map(txn.get, keys, repeat(None), databases))
        except lmdb.BadValsizeError:
            longest = self.max_key_bytes
            return [
                txn.get(key, None, database) if 0 < len(key) <= longest else None
                for key, database in zip(keys, databases, strict=False)
            ]

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        scans: list[Scan] = []
        with self._map:
            try:
                snapshot: Snapshot[ReadTransaction] | None = None
                for bounds in ranges:
                    # All scans share the snapshot that the first one took.
                    snapshot = self._snapshot() if snapshot is None else self._snapshots.share(snapshot)
                    scans.append(self._scan(snapshot, bounds, reverse=reverse))
            except lmdb.Error as error:
                raise reading_error(error) from error
        return scans

    def _scan(self, snapshot: Snapshot[ReadTransaction], bounds: ScanRange, *, reverse: bool) -> LmdbScan:
        """Return a scan that is a user of ``snapshot``. The caller holds the lock of the map."""
        database = self._stored[bounds.family]
        scan = LmdbScan(self._path, self._codec, self._snapshots, snapshot, database, bounds, reverse=reverse)
        self._scans.add(scan)
        return scan

    def _snapshot(self) -> Snapshot[ReadTransaction]:
        """Return a snapshot for a scan. The caller holds the lock of the map."""
        if self._snapshots.count >= self._snapshots_max:
            raise StoreUnavailableError(
                f"{self._path} has open scans of {self._snapshots.count:,} different commits: close "
                "unused iterators, or open the store with a larger max_readers"
            )
        return self._snapshots.acquire()

    def _begin_snapshot(self) -> ReadTransaction:
        txn = self._env.begin(self._stored[0])
        # This reads the record of each database. After it, scans on several threads only read the shared state.
        return ReadTransaction(txn, [txn.stat(database)["entries"] for database in self._stored])

    def snapshot(self) -> EngineSnapshot:
        with self._map, converted(lmdb.Error, reading_error):
            while True:
                number, meta = self._read_meta()
                current = self._snapshot()
                if current.reading.txn.id() == number:
                    break
                # A commit came between the two.
                self._snapshots.release(current)
            new_snapshot = LmdbSnapshot(
                self._codec,
                self._snapshots,
                current,
                self._stored,
                meta,
                self._map,
                lambda snapshot, bounds, reverse: self._scan(snapshot, bounds, reverse=reverse),
            )
            self._held.add(new_snapshot)
            return new_snapshot

    def meta(self) -> dict[bytes, bytes]:
        with self._map, converted(lmdb.Error, reading_error):
            return self._read_meta()[1]

    def _read_meta(self) -> tuple[int, dict[bytes, bytes]]:
        """Return the ID of the last commit, and its meta entries."""
        with self._env.begin(self._meta, buffers=True) as txn:
            entries = [(bytes(name), self._short(entry)) for name, entry in txn.cursor()]
            return txn.id(), dict(self._codec.decode_pairs(entries))

    def _short(self, entry: memoryview) -> bytes:
        """Return a copy of a meta entry. A copy of a damaged length could read beyond the map and crash the process."""
        if len(entry) > self._page_bytes:
            raise damaged(f"{self._path} has a meta entry of {len(entry):,} bytes, more than a page")
        return bytes(entry)

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        for ranges, writes, _ in layers:
            self.note_changes(writes, ranges)
        self._prepare_commit()
        while True:
            try:
                # Without the lock: readers continue to read committed data.
                self._begin_writing()
                try:
                    with self._env.begin(self._stored[0], write=True) as txn:
                        transaction_id = txn.id()
                        for layer in layers:
                            self._apply(txn, layer)
                        self._apply_meta(txn, meta)
                finally:
                    self._end_writing()
            except lmdb.MapFullError as error:
                # Then repeat the whole write in a map of twice the size.
                with self._map:
                    self._memory_map.grow(error)
            except lmdb.Error as error:
                raise writing_error(error) from error
            else:
                self._meta_pages.note(transaction_id)
                return

    def _apply_meta(self, txn: Any, meta: Mapping[bytes, bytes | None]) -> None:
        for name, entry in meta.items():
            if entry is None:
                txn.delete(name, db=self._meta)
            else:
                txn.put(name, self._codec.encode(name, entry), db=self._meta)

    def _apply(self, txn: Any, layer: Writes) -> None:
        ranges, writes, family = layer
        database = self._stored[family]
        for start, end in ranges:
            delete_range(txn, database, start, end)
        if None in writes.values():
            for key, value in writes.items():
                if value is None:
                    txn.delete(key, b"", database)
        if len(writes) == 1:
            # A cursor and sorting would take a quarter of the time of such a commit.
            ((key, value),) = writes.items()
            if value is not None:
                # By position, as in ``LmdbTransaction.put``.
                txn.put(key, self._codec.encode(key, value), True, True, False, database)
            return
        with txn.cursor(database) as cursor:
            # In key order: each page of the tree is then visited once.
            for pairs in self._codec.encode_layer(layer):
                cursor.putmulti(pairs)

    def _prepare_commit(self) -> None:
        try:
            self._meta_pages.prepare()
        except OSError as error:
            raise CommitFailedError(
                f"{self._path} can't be written: {error.strerror}. Make room or make it writable, and commit again"
            ) from error

    # Two methods and no context manager: each commit calls them, and a generator would cost more than their work.

    def _begin_writing(self) -> None:
        """Begin a commit: until ``_end_writing`` no reader shares an earlier snapshot. Raises: lmdb.Error."""
        if (now := monotonic()) >= self._readers_due:
            # A reader of another process that was killed would pin its pages for ever, and the file would grow.
            self._env.reader_check()
            self._readers_due = now + _READER_CHECK_S
        with self._map:
            self._drop_reader()
            self._writing = True
        self._snapshots.begin_writing()

    def _end_writing(self) -> None:
        self._snapshots.end_writing()
        # A single assignment needs no lock.
        self._writing = False

    def _release_map(self) -> None:
        self._drop_reader()
        for capture in list(self._captures):
            capture.end()
        # The snapshots first: scans of them are detached with the others.
        for snapshot in list(self._held):
            snapshot.detach()
        for scan in list(self._scans):
            scan.detach()

    def prepare(self) -> None:
        with self._map, converted(lmdb.Error, reading_error):
            self._memory_map.reserve()

    def begin(self) -> Transaction:
        self._prepare_commit()
        with self._map:
            try:
                self._memory_map.reserve()
                txn = self._env.begin(self._stored[0], write=True)
            except lmdb.Error as error:
                raise writing_error(error) from error
        return LmdbTransaction(txn, self._stored, self._codec, self._commit)

    def _commit(self, txn: Any, meta: Mapping[bytes, bytes | None]) -> None:
        """Commit the transaction of a strategy, with meta entries. Raises: lmdb.Error."""
        self._begin_writing()
        try:
            self._apply_meta(txn, meta)
            transaction_id = txn.id()
            txn.commit()
        finally:
            self._end_writing()
        self._meta_pages.note(transaction_id)

    def _drop_reader(self) -> None:
        # A snapshot that outlived the write would keep the replaced pages from reuse.
        if self._reader is not None:
            self._snapshots.release(self._reader)
            self._reader = None

    def approximate_num_entries(self, family: int = 0) -> int:
        with converted(lmdb.Error, reading_error), self._map, self._env.begin() as txn:
            return int(txn.stat(self._stored[family])["entries"])

    def metrics(self) -> Mapping[str, int]:
        with converted(lmdb.Error, reading_error), self._map, self._env.begin() as txn:
            info, data = self._env.info(), txn.stat(self._stored[-1])
        return {
            "map_size_bytes": int(info["map_size"]),
            "file_used_bytes": (int(info["last_pgno"]) + 1) * self._page_bytes,
            "data_bytes": sum(int(data[f"{kind}_pages"]) for kind in ("branch", "leaf", "overflow")) * self._page_bytes,
            "depth": int(data["depth"]),
            "num_keys": int(data["entries"]),
            "num_readers": int(info["num_readers"]),
            "max_readers": int(info["max_readers"]),
        }

    def verify(self) -> None:
        # Read the file, not the map: a damaged length in the map could crash the process. This detects all damage
        # outside of records, except for changed keys in branch pages that lead to a wrong place.
        check_structure(Path(self._path))
        super().verify()

    def close(self) -> None:
        with self._map:
            self._drop_reader()
            for capture in list(self._captures):
                capture.end()
            for scan in list(self._scans):
                scan.close()
            try:
                self._meta_pages.finish(synced=self._durability is Durability.DISK)
            except OSError as error:
                raise StoreUnavailableError(
                    f"{self._path} can't be written: {error.strerror}. Make room or make it writable, and open "
                    "the store again"
                ) from error
            finally:
                self._env.close()
                self._memory_map.close()
                self._meta_pages.close()
