"""RocksDB through rocksdict: data in the default column family, meta entries in ``offsets``, flushed only together.

After an ingestion all meta entries are one record among the data instead (``stores.engines.rocksdb.database``).

Options default to those of Kafka Streams (``RocksDBStore.java``): universal compaction, no compression, three
write buffers of 16 MiB, blocks of 4 KiB, bloom filters that skip the last level. There are two exceptions. For each
family RocksDB starts 16 threads to open its tables, which takes longer than to open those of a small store; here it
starts 4. And all stores of a process share ``shared_memory_bytes`` for cached blocks and write buffers. A store with a
``block_cache_size_bytes`` has its own cache, and write buffers that no budget counts.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar, Self

from rocksdict import AccessType, Checkpoint, Options, WriteBatch, WriteOptions

from stores.contract.levels import AT_ONCE, Persistence
from stores.engines.engine import Capture, Meta, Scan, Writes, converted
from stores.engines.families import FAMILIES, families_in_use
from stores.engines.ingesting import FilePart, IngestingEngine
from stores.engines.record_log import has_cut_record, has_foreign_record, torn_record
from stores.engines.rocksdb.capture import RocksDBCapture
from stores.engines.rocksdb.database import (
    FIRST_KEY,
    META_KEY,
    OFFSETS_FAMILY,
    SECOND_FAMILY,
    checkpoint_folder,
    close_handle,
    database_options,
    has_second_family,
    manifest_of,
    memory_of,
    meta_of,
    open_database,
    read_figures,
    reading_error,
    record_of,
    take_over,
    write_sst_file,
    writing_error,
)
from stores.engines.rocksdb.flushes import Flushes, SharedMemory
from stores.engines.rocksdb.kept_files import lacks_files, with_kept_files
from stores.engines.rocksdb.reader import CACHE_BYTES, DatabaseReader, copy_into, open_reader
from stores.engines.rocksdb.scan import RocksDBScan, RocksDBSnapshot, check_end, shared_scans
from stores.errors import StoreCorruptedError, StoreUnavailableError, damaged
from stores.interface import Durability
from stores.ordered import WHOLE, Bounds, ScanRange
from stores.process import skip_destructors_in_children

_ITERATORS_MAX = 8
"""The most ranges of one snapshot that have an iterator each. Those of more share one, which seeks for each piece."""
_SORT_FROM = 10_000
"""Batches of at least this many entries are written in key order. For smaller ones sorting costs what it saves."""


class RocksDBEngine(IngestingEngine):
    """A RocksDB database for each store. CHANGELOG turns the WAL off; DISK syncs it in every durable write."""

    name: ClassVar[str] = "rocksdb"
    deletes_ranges_whole: ClassVar[bool] = True
    options: ClassVar[Mapping[str, object]] = {
        "write_buffer_size_bytes": 16 << 20,
        "max_write_buffer_number": 3,
        "offsets_write_buffer_size_bytes": 1 << 20,
        "shared_memory_bytes": 128 << 20,
        "block_cache_size_bytes": 0,
        "cache_index_and_filter_blocks": False,
        "max_file_opening_threads": 4,
        # One flush and two compactions at a time. If a compaction of all data is the only one, writes stop at 36 new
        # files: one commit of a load of 100,000,000 records took 56 s, as measured.
        "max_background_jobs": 3,
        "level_zero_file_num_compaction_trigger": 4,
    }
    option_values: ClassVar[Mapping[str, Container[object]]] = {
        "max_write_buffer_number": range(1, 1 << 31),
        "max_file_opening_threads": range(1, 1 << 31),
        "max_background_jobs": range(1, 1 << 10),
        "level_zero_file_num_compaction_trigger": range(1, 1 << 31),
    }
    splits: ClassVar[bool] = True
    reads_live: ClassVar[bool] = True
    captures: ClassVar[bool] = True
    # Its tables never change: a part is a whole table, or a large piece of one.
    part_bytes: ClassVar[int] = 16 << 20
    max_key_bytes = 8 << 20
    max_value_bytes = (1 << 32) - 1

    _used_by: ClassVar[int | None] = None
    """The process that has opened a RocksDB database: this one, or one that it was forked from."""

    def __init__(
        self, db: Any, durability: Durability, memory: SharedMemory | None, options: Mapping[str, object], second: bool
    ) -> None:
        self._db = db
        self._options = options
        # Kept for good: rocksdict flushes when a handle is dropped.
        self._offsets_db = db.get_column_family(OFFSETS_FAMILY)
        self._offsets = db.get_column_family_handle(OFFSETS_FAMILY)
        self._wal = durability is not Durability.CHANGELOG
        self._lazy, self._durable = WriteOptions(), WriteOptions()
        for way in (self._lazy, self._durable):
            # It is a property, although the type stub declares a method.
            setattr(way, "disable_wal", not self._wal)  # noqa: B010
        self._durable.sync = durability is Durability.DISK
        self._sync = durability is Durability.DISK
        db.set_write_options(self._lazy)
        self._second_db: Any = None
        self._flushes = Flushes(db, self._offsets_db)
        if second:
            self._open_second_family(db.get_column_family(SECOND_FAMILY))
        self._stored: list[Any] = [db]
        """The data families in use."""
        self._handles: list[Any] = [None]
        """The handles of these families in a batch; None is the default family."""
        self._file_options: Options | None = None
        self._num_ingested = 0
        self._meta_record = self._find_meta_record()
        """The data family that has the record of all meta entries; None if they are in their own family."""
        if second:
            self.select_families()
        self._reader: DatabaseReader | None = None
        """The handle if it only reads."""
        self._reads_live = False
        self._memory = memory
        if memory is not None:
            memory.join(self._flushes)

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        cls._note_use(path)
        # A process that was killed in ``persist`` may have left this folder.
        shutil.rmtree(checkpoint_folder(path), ignore_errors=True)
        manifest_of(path)
        second = has_second_family(path)
        db = with_kept_files(path, lambda: open_database(path, options, AccessType.read_write(), second=second))
        return cls(db, durability, memory_of(options), options, second)

    @classmethod
    def check_closed(cls, path: Path) -> None:
        # The WAL is empty after a clean close, which flushes.
        manifest = manifest_of(path)
        if manifest is not None and manifest.is_file() and has_cut_record(manifest):
            raise damaged(f"{manifest} is damaged at its end")

    @classmethod
    def repair_after_crash(cls, path: Path) -> None:
        # RocksDB syncs a record of the manifest before it acts on it. So a torn one was never acted on.
        manifest = manifest_of(path)
        if manifest is None or not manifest.is_file():
            return
        begin = torn_record(manifest)
        if begin:
            with manifest.open("rb+") as stream:
                stream.truncate(begin)
                os.fsync(stream.fileno())

    @classmethod
    def is_doubtful(cls, path: Path) -> bool:
        # Any WAL or manifest may have garbage in it: at its end after power loss, anywhere after bit rot.
        files = [file for pattern in ("*.log", "MANIFEST-*") for file in path.glob(pattern)]
        return any(has_foreign_record(file) for file in files if file.is_file())

    @classmethod
    def probe_open(cls, path: Path, options: Mapping[str, object]) -> None:
        # Read-only: it reads the same records without a change.
        open_database(path, options, AccessType.read_only(), second=has_second_family(path)).close()

    @classmethod
    def open_read_only(cls, path: Path, *, live: bool) -> Self:
        cls._note_use(path)
        options = {**cls.options, "block_cache_size_bytes": CACHE_BYTES} if live else cls.options
        try:
            reader = open_reader(path, options, live=live)
        except StoreCorruptedError as error:
            raise lacks_files(path, error) or error from None
        engine = cls(reader.db, Durability.CHANGELOG, None, options, reader.second)
        engine._reader, engine._reads_live = reader, live
        return engine

    def refresh(self) -> None:
        if self._reader is not None and self._reads_live:
            self._reader.catch_up()
            self._meta_record = self._find_meta_record()

    def is_current(self) -> bool:
        return self._reader is None or self._reader.is_current()

    def copy_to(self, folder: Path) -> None:
        with closing(self.open(folder, Durability.DISK, self.options)) as target:
            copy_into(target, self)

    def capture(self, folder: Path) -> Capture:
        return RocksDBCapture(self._db, folder)

    @classmethod
    def compact(cls, path: Path, options: Mapping[str, object]) -> None:
        engine = cls.open(path, Durability.DISK, options)
        with closing(engine), converted(Exception, writing_error):
            for handle in filter(None, (engine._db, engine._second_db, engine._offsets_db)):
                handle.compact_range(None, None)

    @classmethod
    def _note_use(cls, path: Path) -> None:
        """Note that this process uses RocksDB, so that its forked children end without errors.

        Raises: StoreUnavailableError in such a child: RocksDB's threads are not in it, and it would wait forever.
        """
        if cls._used_by is None:
            cls._used_by = os.getpid()
            skip_destructors_in_children()
        elif cls._used_by != os.getpid():
            raise StoreUnavailableError(
                f"{path} can't be opened in a process that was forked from one that has used RocksDB: "
                "start processes with multiprocessing's 'spawn', or with subprocess"
            )

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        # With an unsynced WAL, power loss may leave two WAL files with a hole between them. Without a WAL, families are
        # flushed together and synced, so that power loss leaves an earlier commit.
        return durability is Durability.PROCESS

    def _find_meta_record(self) -> Any | None:
        for handle in filter(None, (self._db, self._second_db)):
            with converted(Exception, reading_error):
                # A lookup may read a data block. Files that were never ingested do not begin with the key.
                ingested = any(file["start_key"] == META_KEY for file in handle.live_files())
                if ingested and handle.get(META_KEY) is not None:
                    return handle
        return None

    def add_family(self) -> None:
        if self._second_db is not None:
            return
        with converted(Exception, writing_error):
            self._open_second_family(self._db.create_column_family(SECOND_FAMILY, database_options(self._options)))

    def _open_second_family(self, second: Any) -> None:
        self._second_db = second
        second.set_write_options(self._lazy)
        self._flushes.add(second)

    def select_families(self) -> None:
        places = families_in_use(self.meta().get(FAMILIES))
        if max(places) and self._second_db is None:
            raise damaged(f"{self._db.path()} has no family {SECOND_FAMILY!r}")
        second = None if self._second_db is None else self._db.get_column_family_handle(SECOND_FAMILY)
        self._stored = [(self._db, self._second_db)[place] for place in places]
        self._handles = [(None, second)[place] for place in places]
        self.num_families = len(places)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        if not key:
            # No key of a store: the record of all meta entries has it.
            return None
        try:
            return self._stored[family].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise reading_error(error) from error

    def bare_lookup(self) -> Callable[[bytes], bytes | None]:
        if self._meta_record is not None:
            return self.get
        lookup: Callable[[bytes], bytes | None] = self._stored[0].get
        return lookup

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._stored[0].get(list(keys))
            # No key of a store: the record of all meta entries has it.
            return values if all(keys) else [value if key else None for key, value in zip(keys, values, strict=True)]
        except Exception as error:
            raise reading_error(error) from error

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        try:
            while True:
                # Like scans: the lookups are of one snapshot if nothing was written between them.
                before = self._num_writes()
                values = [
                    iter(handle.get([key for of, key in keys if of == family]))
                    for family, handle in enumerate(self._stored)
                ]
                if self._num_writes() == before:
                    return [next(values[family]) for family, _ in keys]
        except Exception as error:
            raise reading_error(error) from error

    def scan(self, bounds: ScanRange = WHOLE, *, reverse: bool = False) -> Scan:
        if not bounds.start:
            bounds = bounds._replace(start=FIRST_KEY)
        return RocksDBScan(self._stored[bounds.family], bounds, reverse=reverse)

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        if len(ranges) == 1:
            return [self.scan(ranges[0], reverse=reverse)]
        if len(ranges) > _ITERATORS_MAX:
            # To make an iterator for each would take so long that a busy writer always writes meanwhile.
            return shared_scans(self.snapshot(), ranges, reverse=reverse)
        while True:
            # Each scan has its own snapshot: they are of the same state if nothing was written between them.
            before = self._num_writes()
            scans = [self.scan(bounds, reverse=reverse) for bounds in ranges]
            if self._num_writes() == before:
                return scans

    def snapshot(self) -> RocksDBSnapshot:
        while True:
            # As in ``scans``: the iterators and the meta entries are of one moment if nothing was written meanwhile.
            before, meta = self._num_writes(), self.meta()
            try:
                iterators = [handle.iter() for handle in self._stored]
            except Exception as error:
                raise reading_error(error) from error
            if self._num_writes() == before:
                return RocksDBSnapshot(iterators, meta)

    def _num_writes(self) -> int:
        try:
            # A file that overlaps no other may be ingested without a sequence number.
            return int(self._db.latest_sequence_number()) + self._num_ingested
        except Exception as error:
            raise reading_error(error) from error

    def meta(self) -> dict[bytes, bytes]:
        try:
            # Another thread may read this during the write that moves the entries: then the record is gone.
            recorded = self._meta_record
            record = None if recorded is None else recorded.get(META_KEY)
            if record is not None:
                return meta_of(record)
            meta = dict(self._offsets_db.items())
            check_end(self._offsets_db, max(meta, default=None))
            return meta
        except Exception as error:
            raise reading_error(error) from error

    def write(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True) -> None:
        batch = WriteBatch(True)
        put, delete = batch.put, batch.delete
        in_families = self._second_db is not None
        try:
            for layer in layers:
                ranges, writes, family = layer
                if in_families:
                    batch.set_default_column_family(self._handles[family])
                if ranges:
                    for bounds in ranges:
                        self._delete_range(batch, bounds, layers, family)
                # The first test is faster, and is sufficient if no value is empty.
                if not all(writes.values()) and None in writes.values():
                    for key, value in writes.items():
                        if value is None:
                            delete(key)
                        else:
                            put(key, value)
                elif len(writes) >= _SORT_FROM:
                    for keys in layer.keys_in_order():
                        _exhaust(map(put, keys, map(writes.__getitem__, keys)))
                else:
                    _exhaust(map(put, writes, writes.values()))
            if self._meta_record is not None:
                meta = self._moved_meta(batch, meta)
            for name, entry in meta.items():
                if entry is None:
                    delete(name, self._offsets)
                else:
                    put(name, entry, self._offsets)
            self._db.write(batch, self._durable if durable else self._lazy)
        except Exception as error:
            raise writing_error(error) from error
        self._meta_record = None
        self._flushes.entries += len(meta)
        if self._memory is not None:
            self._memory.wrote(self._flushes)

    def _moved_meta(self, batch: WriteBatch, meta: Mapping[bytes, bytes | None]) -> Mapping[bytes, bytes | None]:
        """Let ``batch`` remove the record of all meta entries. Return what their own family then gets."""
        is_second = self._meta_record is self._second_db
        # Without a handle this would go to the default family of the batch, whichever that is now.
        batch.delete(META_KEY, self._db.get_column_family_handle(SECOND_FAMILY if is_second else "default"))
        outdated = dict.fromkeys(self._offsets_db.keys())
        return {**outdated, **self.meta(), **meta}

    def write_file(self, path: Path, parts: Iterable[FilePart], meta: Meta | None) -> None:
        record = None if meta is None else record_of({**self.meta(), **meta})
        if self._file_options is None:
            self._file_options = database_options(self._options)
        write_sst_file(self._file_options, path, record, parts)

    def ingest(self, files: Sequence[Path]) -> None:
        # Before the files are visible: a reader that finds no record reads the family of the entries instead.
        former, self._meta_record = self._meta_record, self._stored[0]
        self._num_ingested += 1
        try:
            take_over(self._stored[0], files)
        except BaseException:
            self._meta_record = former
            raise
        finally:
            self._num_ingested += 1

    def _delete_range(self, batch: WriteBatch, bounds: Bounds, layers: Sequence[Writes], family: int) -> None:
        start, end = bounds
        if start is not None and start == end:
            # A range of a single key: a range delete slows down every later scan, a key only those that pass it.
            batch.delete(start)
            return
        if end is None:
            # RocksDB needs an end: take it right after the last key, committed or in a layer.
            last = next(iter(self._stored[family].items(backwards=True)), (META_KEY, b""))[0]
            end = max([last, *(key for layer in layers if layer.family == family for key in layer.writes)])
        # A range that begins after its end is empty here, and fatal for RocksDB.
        if (start or FIRST_KEY) <= end:
            # This call of a batch ignores its default family.
            batch.delete_range(start or FIRST_KEY, end + b"\x00", self._handles[family])

    def put(self, key: bytes, value: bytes | None) -> None:
        try:
            if value is None:
                self._stored[0].delete(key)
            else:
                self._stored[0].put(key, value)
        except Exception as error:
            raise writing_error(error) from error

    @property
    def persistence(self) -> Persistence:
        return AT_ONCE if self._wal else self._flushes

    def persist(self) -> None:
        if self._wal:
            return
        # A RocksDB checkpoint is the only call of rocksdict that flushes all families atomically.
        target = checkpoint_folder(Path(self._db.path()))
        # Remove an earlier checkpoint whose removal failed: RocksDB would refuse the path.
        shutil.rmtree(target, ignore_errors=True)
        try:
            Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:
            raise writing_error(error) from error
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def sync(self) -> None:
        if self._sync:
            with converted(Exception, writing_error):
                self._db.flush_wal(True)

    def approximate_num_entries(self, family: int = 0) -> int:
        with converted(Exception, reading_error):
            handle = self._stored[family]
            estimate = int(handle.property_int_value("rocksdb.estimate-num-keys") or 0)
            if self._meta_record is not None and handle is self._meta_record:
                # Each file with the first of all keys has one record of the meta entries.
                estimate -= sum([file["start_key"] == META_KEY for file in handle.live_files()])
            return max(estimate, 0)

    def metrics(self) -> Mapping[str, int]:
        return read_figures(self._stored[-1])

    def close(self) -> None:
        self._offsets = None
        self._handles = []
        if self._memory is not None:
            self._memory.leave(self._flushes)
        self._flushes.wait()
        try:
            # Closing a handle flushes its family alone: flush all of them atomically before.
            if self._reader is None:
                self.persist()
        finally:
            self._close_handles()
            if self._reader is not None:
                self._reader.mirror.cleanup()

    def _close_handles(self) -> None:
        # Close all handles, even after errors: RocksDB holds its lock until then. The data first: if its flush fails,
        # RocksDB does not flush the offsets either.
        with converted(Exception, writing_error), ExitStack() as handles:
            for handle in filter(None, (self._offsets_db, self._second_db, self._db)):
                handles.callback(close_handle, handle)


def _exhaust(steps: Iterator[object]) -> None:
    """Run an iterator to its end without Python bytecode for each item."""
    deque(steps, maxlen=0)
