"""SQLite: two WITHOUT ROWID tables of blobs in one file, in WAL mode.

One connection writes, and the others only read: if two connections write or checkpoint at the same moment, SQLite
before 3.51.3 may corrupt the file. ``txstores inspect --tables`` shows the tables.

SQLite's pages have no checksums. With ``checksums`` each value is followed by one of key and value
(``stores.engines.checksum``). ``user_version`` records this choice, so that it stays the same for a store. ``verify``
also detects keys that are lost with their page; a lookup does not.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock, get_ident
from typing import ClassVar, Self, TypeVar, cast
from weakref import WeakSet

from stores.changed_keys import ChangedKeys
from stores.engines.changes import ChangesCapture
from stores.engines.checksum import CHECKSUM_BYTES, ValueCodec, codec_of
from stores.engines.engine import Capture, EngineSnapshot, Scan, Transaction, TransactionalEngine, Writes, converted
from stores.engines.families import FAMILIES, families_in_use
from stores.engines.snapshots import SharedSnapshots, Snapshot
from stores.engines.sqlite.capture import SqliteCapture, SqliteReading
from stores.engines.sqlite.tables import (
    DATA,
    FILE,
    META,
    RECORDS,
    SECOND,
    Schema,
    apply,
    check_header,
    check_own,
    create,
    damage,
    delete_range,
    has_checksums,
    has_table,
    opening_error,
    read_schema,
    reading_error,
    schema,
    stored_values,
    writing_error,
)
from stores.engines.sqlite.transaction import SqliteScan, SqliteSnapshot, SqliteTransaction
from stores.errors import StoreError, StoreUnavailableError, damaged, must_reopen
from stores.files.sqlite_library import (
    OPENING_S,
    READ_ONLY,
    READ_WRITE,
    STEPS_PER_LOOK,
    UNCHANGING,
    VERSION_NUMBER,
    Connection,
    Error,
    StatementTimeout,
    connect,
    copy_whole,
    keep_log,
    share_heap,
    sync_log,
    write_ahead,
)
from stores.interface import Durability
from stores.ordered import ScanRange

Answer = TypeVar("Answer")

_POOL = 4
_WITHOUT_MAP = "pragma mmap_size=0"
"""Reads of a mapped file would end the process on an I/O error. Source: SQLite, "Memory-Mapped I/O"."""


class SqliteEngine(TransactionalEngine):
    """An SQLite file for each store. PROCESS syncs at SQLite's checkpoints only, DISK in every commit."""

    name: ClassVar[str] = "sqlite"
    options: ClassVar[Mapping[str, object]] = {
        "cache_size_bytes": 50 << 20,
        "shared_memory_bytes": 0,
        "wal_autocheckpoint_pages": 1000,
        "checksums": True,
        # Without it, a scan takes some two thirds of the time. Lookups and ``verify`` always check.
        "scan_checksums": True,
    }
    option_values: ClassVar[Mapping[str, Container[object]]] = {"wal_autocheckpoint_pages": range(1 << 31)}
    splits: ClassVar[bool] = True
    reads_live: ClassVar[bool] = True
    captures: ClassVar[bool] = True
    captures_changes: ClassVar[bool] = True
    max_key_bytes = 1 << 20
    max_value_bytes = 900_000_000 - CHECKSUM_BYTES  # SQLite's limit for a whole row is 1,000,000,000 bytes

    def __init__(self, file: Path, writer: Connection, durability: Durability, codec: ValueCodec) -> None:
        self._file, self._writer, self._durability = file, writer, durability
        self._codec = codec
        self._access = READ_ONLY
        self._inode = 0
        self._state: tuple[int, int] | None = None
        """The state of a file that is read alone: each process that has written to the store changes it in the end."""
        self._owner = get_ident()
        # Held during reads on the writing connection, and while it is closed: closing a connection during a call of
        # another thread crashes the process.
        self._using_writer = Lock()
        self._pool: list[Connection] = []
        self._snapshots = SharedSnapshots(self._acquire, self._release)
        # Re-entrant: a finalizer may give a connection back while one is being borrowed.
        self._lock = RLock()
        self._captures: WeakSet[Capture] = WeakSet()
        self._transaction: SqliteTransaction | None = None
        """The latest transaction that a strategy has begun."""
        self._tables = [DATA]
        """The tables of the data families in use."""

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        file = path / FILE
        with _translated(file):
            new, unclean = not file.exists(), _size(_log_of(file)) > 0
            if not new:
                check_header(file)
            with _connected(file) as writer:
                write_ahead(writer, durability)
                writer.execute(f"pragma cache_size=-{cast(int, options['cache_size_bytes']) >> 10}")
                share_heap(writer, cast(int, options["shared_memory_bytes"]))
                writer.execute(_WITHOUT_MAP).fetchall()
                writer.execute(f"pragma wal_autocheckpoint={cast(int, options['wal_autocheckpoint_pages'])}").fetchall()
                if new:
                    create(writer, checksums=bool(options["checksums"]))
                elif unclean and durability is Durability.DISK:
                    keep_log(writer, file)
                engine, tables = cls._over(file, writer, durability, scans_checked=bool(options["scan_checksums"]))
                check_own(tables, file)
        return engine

    @classmethod
    def open_read_only(cls, path: Path, *, live: bool) -> Self:
        file = path / FILE
        with _translated(file):
            try:
                check_header(file)
            except FileNotFoundError as error:
                raise damaged(f"{file} is missing") from error
            # Without a WAL the file is all there is. Then SQLite need not make one, for which it would need the folder.
            # A process that writes has one.
            state, log = _state_of(file), _log_of(file)
            access = READ_ONLY if _size(log) or (live and log.exists()) else UNCHANGING
            with _connected(file, access) as reader:
                engine, _ = cls._over(file, reader, Durability.CHANGELOG, scans_checked=True, access=access)
            engine._state = state if access == UNCHANGING else None
        return engine

    @classmethod
    def _over(
        cls,
        file: Path,
        connection: Connection,
        durability: Durability,
        *,
        scans_checked: bool,
        access: str = READ_ONLY,
    ) -> tuple[Self, Schema]:
        """Return the engine over a new connection, with ``access`` for others, and the tables that the file has."""
        tables = read_schema(connection)
        codec = codec_of(checksums=has_checksums(connection, tables, file), scans_checked=scans_checked)
        engine = cls(file, connection, durability, codec)
        engine._access, engine.reads_unguarded = access, access == UNCHANGING
        engine._inode = file.stat().st_ino
        if has_table(tables, SECOND):
            engine.select_families()
        return engine, tables

    def is_current(self) -> bool:
        with suppress(FileNotFoundError):
            # The log first: it is removed after the file has all of it.
            if self.reads_unguarded and (_log_of(self._file).exists() or _state_of(self._file) != self._state):
                return False
            return self._file.stat().st_ino == self._inode
        return False

    def copy_to(self, folder: Path) -> None:
        try:
            with closing(connect(folder / FILE)) as target:
                copy_whole(self._writer, target)
        except Error as error:
            raise StoreUnavailableError(
                f"{self._file} can't be copied to {folder}: {error}. Make room there"
            ) from error

    def capture(self, folder: Path) -> Capture:
        with converted(Error, lambda error: reading_error(error, self._file)):
            capture = SqliteCapture(self._connect, folder)
        self._captures.add(capture)
        return capture

    def capture_changes(self, folder: Path, runs: Sequence[ChangedKeys]) -> Capture:
        def failed(error: Exception) -> StoreError:
            return reading_error(error, self._file)

        with converted(Error, failed):
            reading = SqliteReading(self._connect, self._tables[0], self._codec, failed)
        capture = ChangesCapture(reading, self.meta(), runs, folder)
        self._captures.add(capture)
        return capture

    @classmethod
    def compact(cls, path: Path, options: Mapping[str, object]) -> None:
        engine = cls.open(path, Durability.DISK, options)
        with closing(engine), converted(Error, lambda error: writing_error(error, path / FILE)):
            engine._writer.execute("vacuum")

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        return durability is Durability.CHANGELOG

    def add_family(self) -> None:
        with converted(Error, lambda error: writing_error(error, self._file)):
            # In a separate transaction. The table is not in use before the meta entry is written.
            self._writer.execute(schema(SECOND).replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))

    def select_families(self) -> None:
        places = families_in_use(self.meta().get(FAMILIES))
        if max(places) and not self._query(lambda reader: has_table(read_schema(reader), SECOND)):
            raise damaged(f"{self._file} has no table {SECOND}")
        self._tables = [(DATA, RECORDS)[place] for place in places]
        self.num_families = len(places)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        statement = self._tables[family].lookup
        try:
            if self._reads_by_writer():
                with self._using_writer:
                    row = self._writer.execute(statement, (key,)).fetchone()
            else:
                reader = self._acquire()
                row = reader.execute(statement, (key,)).fetchone()
                self._release(reader)
        except Error as error:
            raise reading_error(error, self._file) from error
        return None if row is None else self._codec.decode(key, row[0])

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._get_all([keys])[0]

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        values = list(map(iter, self._get_all([[key for of, key in keys if of == family] for family in (0, 1)])))
        return [next(values[family]) for family, _ in keys]

    def _get_all(self, keys: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """Return the values of the keys of each family, all of one snapshot."""

        def look(reader: Connection) -> list[list[bytes | None]]:
            reader.execute("begin")
            try:
                return [
                    stored_values(reader, table, of_family, self._codec)
                    for table, of_family in zip(self._tables, keys, strict=False)
                ]
            finally:
                reader.execute("rollback")

        return self._query(look)

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        try:
            if len(ranges) == 1:
                return [self._scan(self._snapshots.acquire(), ranges[0], reverse=reverse)]
            with self._snapshots.acquired() as snapshot:
                with snapshot.lock:
                    # SQLite keeps a snapshot as long as a statement of the connection has more rows. A scan may have
                    # none, so this statement keeps it until all scans have begun.
                    pinning = snapshot.reading.execute("select name from sqlite_schema")
                    try:
                        share = self._snapshots.share
                        return [self._scan(share(snapshot), each, reverse=reverse) for each in ranges]
                    finally:
                        pinning.close()
        except Error as error:
            raise reading_error(error, self._file) from error

    def _scan(self, snapshot: Snapshot[Connection], bounds: ScanRange, *, reverse: bool) -> SqliteScan:
        """Return a scan that is a user of ``snapshot``."""
        return SqliteScan(self._file, self._codec, self._snapshots, snapshot, self._tables, bounds, reverse=reverse)

    def snapshot(self) -> EngineSnapshot:
        with converted(Error, lambda error: reading_error(error, self._file)):
            return SqliteSnapshot(self._file, self._codec, self._tables, self._acquire, self._release)

    def has_records(self) -> bool:
        # On the writing connection if possible: creating another one would take a large part of an opening's time.
        statement = f"select 1 from {self._tables[0].name} limit 1"
        return self._query(lambda reader: reader.execute(statement).fetchone()) is not None

    def meta(self) -> dict[bytes, bytes]:
        def look(reader: Connection) -> list[tuple[bytes, bytes]]:
            # With a deadline, because opening calls this: a damaged tree may contain a cycle.
            reader.set_progress_handler(StatementTimeout(OPENING_S), STEPS_PER_LOOK)
            try:
                return reader.execute("select key, value from meta").fetchall()
            finally:
                reader.set_progress_handler(None, 0)

        return dict(self._codec.decode_pairs(self._query(look)))

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        for ranges, writes, _ in layers:
            self.note_changes(writes, ranges)
        writer = self._writer
        try:
            writer.execute("begin immediate")
            try:
                for layer in layers:
                    table = self._tables[layer.family]
                    for start, end in layer.ranges:
                        delete_range(writer, table, start, end)
                    apply(writer, table, layer, self._codec)
                apply(writer, META, Writes((), meta), self._codec)
                self._snapshots.begin_writing()
                try:
                    writer.execute("commit")
                finally:
                    self._snapshots.end_writing()
            except BaseException:
                if writer.in_transaction:
                    writer.execute("rollback")
                raise
        except Error as error:
            raise writing_error(error, self._file) from error

    def begin(self) -> Transaction:
        try:
            self._writer.execute("begin immediate")
        except Error as error:
            raise writing_error(error, self._file) from error
        self._transaction = SqliteTransaction(self._file, self._writer, self._codec, self._snapshots, self._tables)
        return self._transaction

    def persist(self) -> None:
        """Sync the WAL at PROCESS; otherwise do nothing: the page cache has every write and survives a killed process.

        At PROCESS power loss may take the latest commits, but none from before this call.
        """
        if self._durability is Durability.PROCESS:
            try:
                sync_log(self._file)
            except OSError as error:
                raise must_reopen(f"{self._file} can't be synced: {error.strerror}") from error

    def change_writer(self) -> None:
        self._owner = get_ident()

    def approximate_num_entries(self, family: int = 0) -> int:
        table, parts = self._tables[family].name, self.num_families

        # Counting would read the whole table, and SQLite has no estimate without ANALYZE. So divide the file's size by
        # that of a sample.
        def look(reader: Connection) -> int:
            pages = reader.execute("pragma page_count").fetchone()[0]
            size = reader.execute("pragma page_size").fetchone()[0]
            sample = (
                f"select count(*), sum(length(key) + length(value)) from (select key, value from {table} limit 100)"
            )
            count, total = reader.execute(sample).fetchone()
            return int(count) if count < 100 else max(100, int(pages * size * count / (total or 1)) // parts)

        return self._query(look)

    def verify(self) -> None:
        # Use a new connection: the others have cached pages that were read before.
        with converted(Error, lambda error: reading_error(error, self._file)), closing(self._connect()) as reader:
            problems = [text for (text,) in reader.execute("pragma integrity_check(1)")]
        if problems != ["ok"]:
            raise damaged(f"{self._file} is damaged ({problems[0]})")
        super().verify()

    def metrics(self) -> Mapping[str, int]:
        names = ("page_size", "page_count", "freelist_count")
        page_bytes, pages, free = self._query(
            lambda reader: [int(reader.execute(f"pragma {name}").fetchone()[0]) for name in names]
        )
        return {
            "database_bytes": pages * page_bytes,
            "free_bytes": free * page_bytes,
            "file_size_bytes": _size(self._file),
            "wal_file_size_bytes": _size(_log_of(self._file)),
            "sqlite_version_number": VERSION_NUMBER,
        }

    def close(self) -> None:
        for capture in list(self._captures):
            capture.end()
        with self._lock:
            pool, self._pool = self._pool, []
        try:
            # The writer goes last: the last connection to close checkpoints the WAL.
            for connection in pool:
                connection.close()
            with self._using_writer:
                self._writer.close()
        except Error as error:
            raise writing_error(error, self._file) from error

    def _reads_by_writer(self) -> bool:
        """Return whether this thread reads on the writing connection.

        During a strategy's transaction that connection would show uncommitted data, and another thread may use it. So
        it is not asked: apsw refuses any call beside that of another thread.
        """
        return get_ident() == self._owner and (self._transaction is None or self._transaction.ended)

    def _query(self, look: Callable[[Connection], Answer]) -> Answer:
        """Return the result of ``look`` on committed data: on the writing connection, unless it may show other data."""
        try:
            if self._reads_by_writer():
                with self._using_writer:
                    return look(self._writer)
            reader = self._acquire()
            answer = look(reader)
            self._release(reader)
            return answer
        except Error as error:
            raise reading_error(error, self._file) from error

    def _acquire(self) -> Connection:
        with self._lock:
            if self._pool:
                return self._pool.pop()
        return self._connect()

    def _connect(self) -> Connection:
        """Return a read-only connection, which sees committed data."""
        reader = connect(self._file, self._access)
        reader.execute(_WITHOUT_MAP).fetchall()
        return reader

    def _release(self, reader: Connection) -> None:
        with self._lock:
            if len(self._pool) < _POOL:
                self._pool.append(reader)
                return
        reader.close()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnavailableError(f"{file} can't be examined: {error.strerror}. Make it readable") from error


def _state_of(file: Path) -> tuple[int, int]:
    """Return the time of the last change and the size. Raises: OSError."""
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _log_of(file: Path) -> Path:
    return file.with_name(f"{FILE}-wal")


@contextmanager
def _connected(file: Path, access: str = READ_WRITE) -> Iterator[Connection]:
    """Connect to ``file``, with a deadline for statements of the block. An error in it closes the connection."""
    connection = connect(file, access)
    try:
        connection.set_progress_handler(StatementTimeout(OPENING_S), STEPS_PER_LOOK)
        yield connection
        connection.set_progress_handler(None, 0)
    except BaseException:
        connection.close()
        raise


@contextmanager
def _translated(file: Path) -> Iterator[None]:
    """Raise an error of the opening as that of a store."""
    try:
        yield
    except UnicodeDecodeError as error:
        # A name in the schema is damaged.
        raise damage(error, file) from error
    except Error as error:
        raise opening_error(error, file) from error
    except OSError as error:
        raise StoreUnavailableError(f"{file} can't be opened: {error.strerror}. Make it readable") from error
