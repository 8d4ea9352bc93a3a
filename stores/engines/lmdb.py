"""LMDB: a memory-mapped B+tree with one writer and any number of snapshots.

Data and meta entries are two named databases of one environment, written in one transaction. The map grows by
itself when a write finds it full; the write is then made again as a whole. A transaction that is lent out can't be made
again: the map has room for it before it begins.

LMDB has no checksums: with ``checksums`` each value lies before one of key and value (``stores.engines.seal``), which
the names of the databases tell, so that a store stays as it was made. What no record shows, a key that has gone with
its page, ``verify`` finds, and a lookup does not.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Self, TypeVar, cast
from weakref import WeakSet

import lmdb
from lmdb.verify import VerifyError, verify

from stores.engines.engine import Scan, Transaction, TransactionalEngine, Writes, take
from stores.engines.lmdb_file import check_heads, has_database
from stores.engines.seal import PLAIN, SEAL_BYTES, SEALED
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.interface import Durability

Result = TypeVar("Result")

_FETCH_FIRST, _FETCH = 32, 512
_NAMES = {True: (b"data.crc32", b"meta.crc32"), False: (b"data", b"meta")}
"""The databases of data and meta entries, by whether their records have checksums."""
_ROOM_BYTES = 256 << 30
"""What the map has room for, about, when a transaction begins: far more than one takes. It costs addresses, neither
memory nor disk; a process has 128 TiB of them, for all of its stores."""


class LmdbEngine(TransactionalEngine):
    """One environment per store. Below DISK nothing is synced: power loss may tear it; a kill loses nothing."""

    name: ClassVar[str] = "lmdb"
    options: ClassVar[Mapping[str, object]] = {
        "map_size_bytes": 1 << 30,
        "max_readers": 126,
        "readahead": True,
        "checksums": True,
    }
    # A reader's slot takes 64 bytes of the lock file, which is mapped as a whole.
    option_values: ClassVar[Mapping[str, Container[object]]] = {"max_readers": range(1, 1 << 20)}
    max_value_bytes = (1 << 32) - 1 - SEAL_BYTES
    # It writes out what its transaction has changed only where that is 2**17 - 1 pieces (``MDB_IDL_UM_MAX``): a page,
    # or all pages of one value that is larger than half a page.
    spills: ClassVar[bool] = False

    def __init__(self, env: Any, *, checksums: bool) -> None:
        self._env = env
        self._seal = SEALED if checksums else PLAIN
        self._data, self._meta = (env.open_db(name) for name in _NAMES[checksums])
        self.max_key_bytes = env.max_key_size()
        self._page_bytes = int(env.stat()["psize"])
        self._scans: WeakSet[_LmdbScan] = WeakSet()
        # The map can only be resized while no transaction is open, on any thread.
        self._map = RLock()
        self._reader: Any = None
        """What single lookups share while nothing is written."""
        self._writing = False
        self._room_bytes = _ROOM_BYTES

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        try:
            size = max(cast(int, options["map_size_bytes"]), _map_for(path))
            new = not has_database(path)
            if check_heads(path):
                # LMDB would map as much as they say, if it can.
                _check_structure(path)
            env = lmdb.open(
                str(path),
                map_size=size,
                max_dbs=2,
                max_readers=cast(int, options["max_readers"]),
                readahead=bool(options["readahead"]),
                sync=durability is Durability.DISK,
                metasync=True,
                writemap=False,
                max_spare_txns=4,
            )
            try:
                _check_length(env, path)
                checksums = bool(options["checksums"]) if new else _has_checksums(env, path)
                if durability is Durability.DISK and not new:
                    _keep_meta_pages(env, path)
                return cls(env, checksums=checksums)
            except BaseException:
                env.close()
                raise
        except (
            lmdb.InvalidError,
            lmdb.CorruptedError,
            lmdb.VersionMismatchError,
            lmdb.PageNotFoundError,
            lmdb.BadTxnError,
        ) as error:
            raise _damage(error, path) from error
        except (lmdb.Error, OSError) as error:
            raise StoreUnavailableError(f"LMDB can't open {path}: {error}. Mend that and open again") from error

    def get(self, key: bytes) -> bytes | None:
        with self._map:
            try:
                if self._writing:
                    # Its own look at what is committed: the write may end at any moment, and one that is kept would
                    # soon show less than a scan has shown already.
                    with self._env.begin(self._data) as txn:
                        kept = txn.get(key)
                else:
                    reader = self._reader
                    if reader is None:
                        reader = self._reader = self._env.begin(self._data)
                    kept = reader.get(key)
            except lmdb.BadValsizeError:
                return None
            except lmdb.Error as error:
                raise _reading_error(error) from error
        return None if kept is None else self._seal.open(key, kept)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        def look(key: bytes) -> bytes | None:
            return txn.get(key) if 0 < len(key) <= self.max_key_bytes else None

        with self._map:
            try:
                with self._env.begin(self._data) as txn:
                    found = list(map(look, keys))
            except lmdb.Error as error:
                raise _reading_error(error) from error
        return self._seal.open_many(keys, found)

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False) -> Scan:
        with self._map:
            try:
                txn = self._env.begin(self._data)
                scan = _LmdbScan(self, txn, start, end, end_open=end_open, reverse=reverse)
            except lmdb.Error as error:
                raise _reading_error(error) from error
            self._scans.add(scan)
        return scan

    def meta(self) -> dict[bytes, bytes]:
        with self._map:
            try:
                with self._env.begin(self._meta, buffers=True) as txn:
                    entries = [(bytes(name), self._short(entry)) for name, entry in txn.cursor()]
            except lmdb.Error as error:
                raise _reading_error(error) from error
        return dict(self._seal.open_pairs(entries))

    def _short(self, entry: memoryview) -> bytes:
        """A copy, which is made on opening: of a damaged length it might run into nothing, and end the process."""
        if len(entry) > self._page_bytes:
            raise StoreCorruptedError(
                f"{self._env.path()} has an offset of {len(entry):,} bytes: wipe the store and restore it from its "
                "changelog"
            )
        return bytes(entry)

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        def apply() -> None:
            with self._env.begin(self._data, write=True) as txn:
                for ranges, writes in layers:
                    for start, end in ranges:
                        _delete_range(txn, start, end)
                    self._apply(txn, writes)
                self._apply_meta(txn, meta)

        self._growing(apply)

    def _apply_meta(self, txn: Any, meta: Mapping[bytes, bytes | None]) -> None:
        for name, entry in meta.items():
            if entry is None:
                txn.delete(name, db=self._meta)
            else:
                txn.put(name, self._seal.seal(name, entry), db=self._meta)

    def _apply(self, txn: Any, writes: Mapping[bytes, bytes | None]) -> None:
        if None in writes.values():
            for key, value in writes.items():
                if value is None:
                    txn.delete(key)
        with txn.cursor() as cursor:
            # In key order: each page of the tree is then visited once.
            cursor.putmulti(self._seal.seal_writes(writes, sorted(writes)))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.write([Writes((), {key: value})], {})

    def _growing(self, apply: Callable[[], Result]) -> Result:
        """Run a write transaction; where the map is full, double it and run the transaction again."""
        while True:
            try:
                # Not under the lock: readers go on reading what is committed.
                with self._map:
                    self._drop_reader()
                    self._writing = True
                try:
                    return apply()
                finally:
                    with self._map:
                        self._writing = False
            except lmdb.MapFullError as error:
                self._grow(error)
            except lmdb.Error as error:
                raise _writing_error(error) from error

    def _grow(self, cause: lmdb.Error) -> None:
        size = self._env.info()["map_size"]
        path = Path(self._env.path())
        try:
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise CommitFailedError(f"{path}: {error.strerror}. Mend that and commit again") from error
        if free < (1 << 20):
            raise CommitFailedError(
                f"the disk of {path} is full ({free:,} bytes left): make room and commit again"
            ) from cause
        with self._map:
            try:
                self._resize(2 * size)
            except (lmdb.Error, MemoryError, OSError) as error:
                raise CommitFailedError(f"LMDB can't grow the map of {path} to {2 * size:,} bytes: {error}") from error

    def _resize(self, size: int) -> None:
        # Where this fails LMDB is left without any map, and reading ends the process: it is tried elsewhere first.
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
        self._drop_reader()
        for scan in list(self._scans):
            scan.detach()
        self._env.set_mapsize(size)

    def prepare(self) -> None:
        with self._map:
            try:
                self._reserve()
            except lmdb.Error as error:
                raise _reading_error(error) from error

    def begin(self) -> Transaction:
        with self._map:
            try:
                self._reserve()
                return _LmdbTransaction(self, self._env.begin(self._data, write=True))
            except lmdb.Error as error:
                raise _writing_error(error) from error

    def _reserve(self) -> None:
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._page_bytes
        if info["map_size"] - used >= self._room_bytes // 2:
            return
        while used + self._room_bytes > info["map_size"]:
            # Where addresses are few, what there is will do for most transactions.
            try:
                self._resize(used + self._room_bytes)
            except (lmdb.Error, MemoryError, OSError):
                self._room_bytes //= 2
            else:
                return

    def _drop_reader(self) -> None:
        # A snapshot that outlived the write would pin the pages it replaces.
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def persist(self) -> None:
        """A killed process loses nothing: every write is in the page cache."""

    def sync(self) -> None:
        """Every write is as durable as the level asks."""

    def approximate_num_entries(self) -> int:
        try:
            with self._map, self._env.begin(self._data) as txn:
                return int(txn.stat(self._data)["entries"])
        except lmdb.Error as error:
            raise _reading_error(error) from error

    def metrics(self) -> Mapping[str, int]:
        try:
            with self._map, self._env.begin(self._data) as txn:
                info, data = self._env.info(), txn.stat(self._data)
        except lmdb.Error as error:
            raise _reading_error(error) from error
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
        # Of the file, not of the map: what reads there of a damaged length may run into nothing, and the process end.
        # It sees all that no record shows, but for keys on the way to a record that lead to another place.
        _check_structure(Path(self._env.path()))
        super().verify()

    def close(self) -> None:
        with self._map:
            self._drop_reader()
            for scan in list(self._scans):
                scan.close()
            self._env.close()


class _LmdbScan(Scan):
    """A read transaction of its own, until the map has to grow: then what is left of it is kept in memory."""

    def __init__(
        self, engine: LmdbEngine, txn: Any, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
    ) -> None:
        self._engine = engine
        self._txn: Any = txn
        self._due = int(txn.stat(engine._data)["entries"]) if start is None and end is None else None
        """How many pairs are still to come, where that is known."""
        self._size = _FETCH_FIRST
        self._rest: list[tuple[bytes, bytes]] = []
        self._lock = RLock()
        self._start, self._end, self._end_open, self._reverse = start, end, end_open, reverse
        self._pairs = _pairs_from(txn.cursor(), start, end, end_open=end_open, reverse=reverse)

    def fetch(self) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if self._rest:
                chunk, self._rest = self._rest[:_FETCH], self._rest[_FETCH:]
                return chunk
            if self._txn is None:
                return []
            try:
                chunk, ended = take(self._pairs, self._size)
            except lmdb.Error as error:
                raise _reading_error(error) from error
            if self._due is not None:
                self._due -= len(chunk)
                if ended and self._due:
                    raise StoreCorruptedError(
                        f"a scan of {self._engine._env.path()} ends {self._due:,} records away from where LMDB's own "
                        "count does: wipe the store and restore it from its changelog"
                    )
            if ended:
                self._release()
            self._size = min(2 * self._size, _FETCH)
            within, ended = _cut(chunk, self._start, self._end, end_open=self._end_open, reverse=self._reverse)
            if ended:
                self._release()
            return self._engine._seal.open_pairs(within)

    def detach(self) -> None:
        """Read the rest into memory and end the transaction."""
        with self._lock:
            if self._txn is not None:
                rest: list[tuple[bytes, bytes]] = []
                while chunk := self.fetch():
                    rest += chunk
                self._rest = rest

    def _release(self) -> None:
        self._pairs = iter(())
        if self._txn is not None:
            self._txn.abort()
            self._txn = None

    def close(self) -> None:
        with self._lock:
            self._rest = []
            self._release()


class _LmdbTransaction(Transaction):
    """A write transaction. After any error LMDB refuses all further use of it."""

    def __init__(self, engine: LmdbEngine, txn: Any) -> None:
        self._engine, self._txn = engine, txn

    def get(self, key: bytes) -> bytes | None:
        try:
            kept = self._txn.get(key)
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise self._given_up(error) from error
        return None if kept is None else self._engine._seal.open(key, kept)

    def fetch(
        self, start: bytes | None, end: bytes | None, most: int, *, end_open: bool, reverse: bool
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        try:
            with self._txn.cursor() as cursor:
                chunk, ended = take(_pairs_from(cursor, start, end, end_open=end_open, reverse=reverse), most)
        except lmdb.Error as error:
            raise self._given_up(error) from error
        within, beyond = _cut(chunk, start, end, end_open=end_open, reverse=reverse)
        return self._engine._seal.open_pairs(within), ended or beyond

    def put(self, key: bytes, value: bytes | None) -> None:
        try:
            if value is None:
                self._txn.delete(key)
            else:
                self._txn.put(key, self._engine._seal.seal(key, value))
        except lmdb.Error as error:
            raise self._given_up(error) from error

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        try:
            _delete_range(self._txn, start, end)
        except lmdb.Error as error:
            raise self._given_up(error) from error

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        engine = self._engine
        with engine._map:
            engine._drop_reader()
            engine._writing = True
        try:
            engine._apply_meta(self._txn, meta)
            self._txn.commit()
        except lmdb.Error as error:
            raise self._given_up(error) from error
        finally:
            with engine._map:
                engine._writing = False

    def abort(self) -> None:
        self._txn.abort()

    def _given_up(self, error: lmdb.Error) -> StoreError:
        self._txn.abort()
        told = _writing_error(error)
        if not isinstance(told, CommitFailedError) or told.reopen:
            return told
        return CommitFailedError(
            f"LMDB has given up the transaction: {error}. Mend that, close the store, open it again and go on from its "
            "committed offset",
            reopen=True,
        )


def _pairs_from(
    cursor: Any, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Pairs from where a range begins on, also those behind its other end."""
    pairs: Iterator[tuple[bytes, bytes]] = iter(())
    if reverse:
        if _seek_last(cursor, end, end_open=end_open):
            pairs = cursor.iterprev()
    elif cursor.set_range(start) if start else cursor.first():
        pairs = cursor.iternext()
    return pairs


def _cut(
    chunk: list[tuple[bytes, bytes]], start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The pairs of ``chunk`` that lie before a range's other end, and whether there are more that don't."""

    def within(key: bytes) -> bool:
        if reverse:
            return start is None or key >= start
        return end is None or key < end or (key == end and not end_open)

    if not chunk or within(chunk[-1][0]):
        return chunk, False
    return [pair for pair in chunk if within(pair[0])], True


def _seek_last(cursor: Any, end: bytes | None, *, end_open: bool) -> bool:
    """Put the cursor on the last key at or below ``end`` (below it, where ``end_open``)."""
    if end is None or not cursor.set_range(end):
        return bool(cursor.last())
    if cursor.key() == end and not end_open:
        return True
    return bool(cursor.prev())


def _delete_range(txn: Any, start: bytes | None, end: bytes | None) -> None:
    with txn.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found and (end is None or cursor.key() <= end):
            found = cursor.delete()


def _has_checksums(env: Any, path: Path) -> bool:
    """Whether the records have checksums: as the store was made. Raises: StoreCorruptedError where nothing tells."""
    with env.begin() as txn:
        names = {bytes(name) for name in txn.cursor().iternext(values=False)}
    for checksums, expected in _NAMES.items():
        if names == set(expected):
            return checksums
    raise StoreCorruptedError(
        f"{path} holds {sorted(names)}, which are not the databases of a store: wipe the store and restore it from its "
        "changelog"
    )


def _map_for(path: Path) -> int:
    """A map that holds the file as it is with room to spare, in case it had grown before."""
    file = path / "data.mdb"
    return 2 * file.stat().st_size if file.exists() else 0


def _keep_meta_pages(env: Any, path: Path) -> None:
    """Make the commit that the database is at survive power loss.

    Who was killed after the sync in its write of a meta page had failed leaves a page that can be read, and that the
    disk did not take: the system takes it for written. What a store says that it has must not go again. So both meta
    pages are written once more; what they point to was synced before they were. Raises: OSError. Source: open(2),
    "O_DSYNC"; fsync(2), "EIO".
    """
    database = os.open(path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        pages = os.pread(database, 2 * env.stat()["psize"], 0)
        if os.pwrite(database, pages, 0) != len(pages):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path / "data.mdb"))
        os.fsync(database)
    finally:
        os.close(database)


def _check_structure(path: Path) -> None:
    """Walk the file's pages: each is sound, and in use once or free. Raises: StoreCorruptedError."""
    try:
        problems = cast(Sequence[str], verify(str(path)))  # type: ignore[no-untyped-call]
    except (VerifyError, struct.error) as error:
        problems = [str(error)]
    except OSError as error:
        raise StoreUnavailableError(f"{path} can't be read: {error.strerror}. Make it readable") from error
    if problems:
        raise StoreCorruptedError(
            f"{path} is damaged ({problems[0]}): wipe the store and restore it from its changelog"
        )


def _check_length(env: Any, path: Path) -> None:
    """Refuse a database that was cut short: reading behind the end of a mapped file ends the process."""
    file = path / "data.mdb"
    if file.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        # Pages at the end that are free may never have been written: only looking at all of them can tell.
        _check_structure(path)


def _damage(error: Exception, where: object) -> StoreError:
    return StoreCorruptedError(f"LMDB refuses {where}: {error}. Wipe the store and restore it from its changelog")


def _reading_error(error: Exception) -> StoreError:
    # A transaction that only reads is bad where LMDB came upon a page in it that it could not follow.
    bad = lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.InvalidError | lmdb.BadTxnError
    if isinstance(error, bad):
        return _damage(error, "the database")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreUnavailableError(f"LMDB has no reader slot left: close iterators, or raise max_readers ({error})")
    return StoreUnavailableError(f"LMDB can't read: {error}")


def _writing_error(error: Exception) -> StoreError:
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return _damage(error, "the database")
    # After a failed write of its meta page LMDB refuses everything; and a failed sync must not be made again as if it
    # had only come too early: the system may have dropped what it could not write.
    if isinstance(error, lmdb.PanicError) or os.strerror(errno.EIO) in str(error):
        return CommitFailedError(
            f"LMDB can't write: {error}. Close the store, open it again and go on from its committed offset",
            reopen=True,
        )
    return CommitFailedError(f"LMDB can't write: {error}. Mend that and commit again")
