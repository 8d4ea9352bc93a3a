"""RocksDB through rocksdict: data in the default column family, meta entries in ``offsets``, flushed only together.

Options default to those of Kafka Streams (``RocksDBStore.java``): universal compaction, no compression, three
write buffers of 16 MiB, blocks of 4 KiB, bloom filters that skip the last level. There are two exceptions. For each
family RocksDB starts 16 threads to open its tables, which takes longer than to open those of a small store; here it
starts 4. And all stores of a process share ``shared_memory_bytes`` for cached blocks and write buffers. A store with a
``block_cache_size_bytes`` has its own cache, and write buffers that no budget counts.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from stores.contract.persistence import AT_ONCE, Persistence
from stores.engines.engine import Engine, Scan, Writes, take
from stores.engines.families import FAMILIES, families_in_use
from stores.engines.record_log import has_cut_record, has_foreign_record, torn_record
from stores.engines.rocksdb.flushes import Flushes
from stores.engines.rocksdb.shared_memory import SharedMemory, shared_memory
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError
from stores.files.plain_files import StrangeFileError, read_head
from stores.interface import Durability
from stores.ordered.ranges import Bounds, ScanRange
from stores.process.descriptors import descriptors_lacking

_OFFSETS_FAMILY = "offsets"
"""Name of the column family beside the data. Source: KIP-892, "Atomic Checkpointing"."""

_SECOND_FAMILY = "records"
"""Name of the second data family, once there is one."""

_IN_USE, _CLOSE_PAUSE_S = "Already borrowed", 0.001
"""The error of rocksdict for closing a handle during a call of it, and the pause before the next attempt."""
_NAME_BYTES_MAX = 64
_SORT_FROM = 10_000
"""Batches of at least this many entries are written in key order. For smaller ones sorting costs what it saves."""

_COMPACTION: Mapping[str, Any] = {
    "universal": DBCompactionStyle.universal,
    "level": DBCompactionStyle.level,
    "fifo": DBCompactionStyle.fifo,
}
_COMPRESSION: Mapping[str, Any] = {
    "none": DBCompressionType.none,
    "lz4": DBCompressionType.lz4,
    "snappy": DBCompressionType.snappy,
    "zstd": DBCompressionType.zstd,
}


_FIGURES: Mapping[str, str] = {
    "num_entries_active_mem_table": "num-entries-active-mem-table",
    "num_entries_imm_mem_tables": "num-entries-imm-mem-tables",
    "num_immutable_mem_table": "num-immutable-mem-table",
    "cur_size_active_mem_table_bytes": "cur-size-active-mem-table",
    "cur_size_all_mem_tables_bytes": "cur-size-all-mem-tables",
    "size_all_mem_tables_bytes": "size-all-mem-tables",
    "mem_table_flush_pending": "mem-table-flush-pending",
    "num_running_flushes": "num-running-flushes",
    "compaction_pending": "compaction-pending",
    "num_running_compactions": "num-running-compactions",
    "estimate_pending_compaction_bytes": "estimate-pending-compaction-bytes",
    "total_sst_files_size_bytes": "total-sst-files-size",
    "live_sst_files_size_bytes": "live-sst-files-size",
    "num_live_versions": "num-live-versions",
    "block_cache_capacity_bytes": "block-cache-capacity",
    "block_cache_usage_bytes": "block-cache-usage",
    "block_cache_pinned_usage_bytes": "block-cache-pinned-usage",
    "estimate_num_keys": "estimate-num-keys",
    "estimate_table_readers_mem_bytes": "estimate-table-readers-mem",
    "background_errors": "background-errors",
}
"""RocksDB's properties of the family that holds the data. Source: KIP-607, "Proposed Changes"; units are added."""


class RocksDBEngine(Engine):
    """A RocksDB database for each store. CHANGELOG turns the WAL off; DISK syncs it in every durable write."""

    name: ClassVar[str] = "rocksdb"
    deletes_ranges_whole: ClassVar[bool] = True
    options: ClassVar[Mapping[str, object]] = {
        "write_buffer_size_bytes": 16 << 20,
        "max_write_buffer_number": 3,
        "offsets_write_buffer_size_bytes": 1 << 20,
        "shared_memory_bytes": 128 << 20,
        "block_cache_size_bytes": 0,
        "block_size_bytes": 4 << 10,
        "bloom_filter_bits_per_key": 10,
        "optimize_filters_for_hits": True,
        "compaction_style": "universal",
        "compression": "none",
        "max_background_jobs": 2,
        "max_open_files": -1,
        "max_file_opening_threads": 4,
        "level_zero_file_num_compaction_trigger": 4,
    }
    option_values: ClassVar[Mapping[str, Container[object]]] = {
        "bloom_filter_bits_per_key": range(101),
        "compaction_style": tuple(_COMPACTION),
        "compression": tuple(_COMPRESSION),
        "max_write_buffer_number": range(1, 1 << 31),
        "max_background_jobs": range(1, 1 << 31),
        "max_open_files": range(-1, 1 << 31),
        "max_file_opening_threads": range(1, 1 << 31),
        "level_zero_file_num_compaction_trigger": range(1, 1 << 31),
    }
    splits: ClassVar[bool] = True
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
        self._offsets_db = db.get_column_family(_OFFSETS_FAMILY)
        self._offsets = db.get_column_family_handle(_OFFSETS_FAMILY)
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
            self._open_second_family(db.get_column_family(_SECOND_FAMILY))
        self._stored: list[Any] = [db]
        """The data families in use."""
        self._handles: list[Any] = [None]
        """The handles of these families in a batch; None is the default family."""
        if second:
            self.select_families()
        self._memory = memory
        if memory is not None:
            memory.join(self._flushes)

    @classmethod
    def open(cls, path: Path, durability: Durability, options: Mapping[str, object]) -> Self:
        cls._refuse_after_fork(path)
        # A process that was killed in ``persist`` may have left this folder.
        shutil.rmtree(_checkpoint_folder(path), ignore_errors=True)
        _manifest(path)
        second = _has_second_family(path)
        db = _opened(path, options, AccessType.read_write(), second=second)
        return cls(db, durability, memory_of(options), options, second)

    @classmethod
    def check_closed(cls, path: Path) -> None:
        # The WAL is empty after a clean close, which flushes.
        manifest = _manifest(path)
        if manifest is not None and manifest.is_file() and has_cut_record(manifest):
            raise StoreCorruptedError(
                f"{manifest} is damaged at its end: wipe the store and restore it from its changelog"
            )

    @classmethod
    def repair_after_crash(cls, path: Path) -> None:
        # RocksDB syncs a record of the manifest before it acts on it. So a torn one was never acted on.
        manifest = _manifest(path)
        if manifest is None or not manifest.is_file():
            return
        begin = torn_record(manifest)
        if begin:
            with manifest.open("rb+") as opened:
                opened.truncate(begin)
                os.fsync(opened.fileno())

    @classmethod
    def is_doubtful(cls, path: Path) -> bool:
        # Any WAL or manifest may have garbage in it: at its end after power loss, anywhere after bit rot.
        files = [file for pattern in ("*.log", "MANIFEST-*") for file in path.glob(pattern)]
        return any(has_foreign_record(file) for file in files if file.is_file())

    @classmethod
    def probe_open(cls, path: Path, options: Mapping[str, object]) -> None:
        # Read-only: it reads the same records without a change.
        _opened(path, options, AccessType.read_only(), second=_has_second_family(path)).close()

    @classmethod
    def _refuse_after_fork(cls, path: Path) -> None:
        """Refuse to open a database in a forked child: RocksDB's threads are not in it, and it would wait forever."""
        if cls._used_by not in (None, os.getpid()):
            raise StoreUnavailableError(
                f"{path} can't be opened in a process that was forked from one that has used RocksDB: "
                "start processes with multiprocessing's 'spawn', or with subprocess"
            )
        cls._used_by = os.getpid()

    @classmethod
    def torn_by_power_loss(cls, durability: Durability) -> bool:
        # With an unsynced WAL, power loss may leave two WAL files with a hole between them. Without a WAL, families are
        # flushed together and synced, so that power loss leaves an earlier commit.
        return durability is Durability.PROCESS

    def add_family(self) -> None:
        if self._second_db is not None:
            return
        try:
            self._open_second_family(self._db.create_column_family(_SECOND_FAMILY, database_options(self._options)))
        except Exception as error:
            raise _writing_error(error) from error

    def _open_second_family(self, second: Any) -> None:
        self._second_db = second
        second.set_write_options(self._lazy)
        self._flushes.add(second)

    def select_families(self) -> None:
        places = families_in_use(self.meta().get(FAMILIES))
        if max(places) and self._second_db is None:
            raise StoreCorruptedError(
                f"{self._db.path()} has no family {_SECOND_FAMILY!r}: wipe the store and restore it from its changelog"
            )
        second = None if self._second_db is None else self._db.get_column_family_handle(_SECOND_FAMILY)
        self._stored = [(self._db, self._second_db)[place] for place in places]
        self._handles = [(None, second)[place] for place in places]
        self.num_families = len(places)

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        try:
            return self._stored[family].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise _reading_error(error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._stored[0].get(list(keys))  # type: ignore[no-any-return]
        except Exception as error:
            raise _reading_error(error) from error

    def get_each(self, keys: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        try:
            while True:
                # Like scans: the lookups are of one snapshot if nothing was written between them.
                before = self._num_writes()
                found = [
                    iter(stored.get([key for of, key in keys if of == family]))
                    for family, stored in enumerate(self._stored)
                ]
                if self._num_writes() == before:
                    return [next(found[family]) for family, _ in keys]
        except Exception as error:
            raise _reading_error(error) from error

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool = False, reverse: bool = False) -> Scan:
        return self._scan(start, end, end_open, 0, reverse=reverse)

    def _scan(self, start: bytes | None, end: bytes | None, end_open: bool, family: int, *, reverse: bool) -> Scan:
        stored = self._stored[family]
        try:
            pairs = stored.items(backwards=reverse, from_key=end if reverse else start)
        except Exception as error:
            raise _reading_error(error) from error
        return _RocksDBScan(stored, pairs, start, end, end_open=end_open, reverse=reverse)

    def scans(self, ranges: Sequence[ScanRange], *, reverse: bool = False) -> list[Scan]:
        if len(ranges) == 1:
            return [self._scan(*ranges[0], reverse=reverse)]
        while True:
            # Each scan has its own snapshot: they are of the same state if nothing was written between them.
            before = self._num_writes()
            made = [self._scan(*bounds, reverse=reverse) for bounds in ranges]
            if self._num_writes() == before:
                return made

    def _num_writes(self) -> int:
        try:
            return int(self._db.latest_sequence_number())
        except Exception as error:
            raise _reading_error(error) from error

    def meta(self) -> dict[bytes, bytes]:
        try:
            meta = dict(self._offsets_db.items())
            _check_end(self._offsets_db, max(meta, default=None))
            return meta
        except Exception as error:
            raise _reading_error(error) from error

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
            for name, entry in meta.items():
                if entry is None:
                    delete(name, self._offsets)
                else:
                    put(name, entry, self._offsets)
            self._db.write(batch, self._durable if durable else self._lazy)
        except Exception as error:
            raise _writing_error(error) from error
        self._flushes.entries += len(meta)
        if self._memory is not None:
            self._memory.wrote(self._flushes)

    def _delete_range(self, batch: WriteBatch, bounds: Bounds, layers: Sequence[Writes], family: int) -> None:
        start, end = bounds
        if start is not None and start == end:
            # A range of a single key: a range delete slows down every later scan, a key only those that pass it.
            batch.delete(start)
            return
        if end is None:
            # RocksDB needs an end: take it right after the last key, committed or in a layer.
            last = next(iter(self._stored[family].items(backwards=True)), (b"", b""))[0]
            end = max([last, *(key for layer in layers if layer.family == family for key in layer.writes)])
        # A range that begins after its end is empty here, and fatal for RocksDB.
        if (start or b"") <= end:
            # This call of a batch ignores its default family.
            batch.delete_range(start or b"", end + b"\x00", self._handles[family])

    def put(self, key: bytes, value: bytes | None) -> None:
        try:
            if value is None:
                self._stored[0].delete(key)
            else:
                self._stored[0].put(key, value)
        except Exception as error:
            raise _writing_error(error) from error

    @property
    def persistence(self) -> Persistence:
        return AT_ONCE if self._wal else self._flushes

    def persist(self) -> None:
        if self._wal:
            return
        # A RocksDB checkpoint is the only call of rocksdict that flushes all families atomically.
        target = _checkpoint_folder(Path(self._db.path()))
        # Remove an earlier checkpoint whose removal failed: RocksDB would refuse the path.
        shutil.rmtree(target, ignore_errors=True)
        try:
            Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:
            raise _writing_error(error) from error
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def sync(self) -> None:
        if self._sync:
            try:
                self._db.flush_wal(True)
            except Exception as error:
                raise _writing_error(error) from error

    def approximate_num_entries(self, family: int = 0) -> int:
        try:
            return int(self._stored[family].property_int_value("rocksdb.estimate-num-keys") or 0)
        except Exception as error:
            raise _reading_error(error) from error

    def property(self, name: str) -> int | None:
        """Return an integer property of RocksDB, such as ``rocksdb.num-immutable-mem-table``; None if unknown."""
        value = self._stored[-1].property_int_value(name)
        return None if value is None else int(value)

    def metrics(self) -> Mapping[str, int]:
        try:
            return {
                name: value for name, key in _FIGURES.items() if (value := self.property(f"rocksdb.{key}")) is not None
            }
        except Exception as error:
            raise _reading_error(error) from error

    def close(self) -> None:
        self._offsets = None
        self._handles = []
        if self._memory is not None:
            self._memory.leave(self._flushes)
        self._flushes.wait()
        try:
            # Closing a handle flushes its family alone: flush all of them atomically before.
            self.persist()
        finally:
            self._close_handles()

    def _close_handles(self) -> None:
        # Close all handles, even after errors: RocksDB holds its lock until then. The data first: if its flush fails,
        # RocksDB does not flush the offsets either.
        try:
            try:
                _close(self._db)
            finally:
                try:
                    if self._second_db is not None:
                        _close(self._second_db)
                finally:
                    _close(self._offsets_db)
        except Exception as error:
            raise _writing_error(error) from error


def _close(handle: Any) -> None:
    """Close a handle. While another thread is in a call of it, rocksdict refuses, so try again."""
    while True:
        try:
            handle.close()
            return
        except RuntimeError as error:
            if str(error) != _IN_USE:
                raise
        time.sleep(_CLOSE_PAUSE_S)


class _RocksDBScan(Scan):
    """A scan over a rocksdict iterator, which is a snapshot.

    Bounds are compared here, because rocksdict does not copy bounds that it is given.
    """

    def __init__(
        self,
        db: Any,
        pairs: Iterator[tuple[bytes, bytes]],
        start: bytes | None,
        end: bytes | None,
        *,
        end_open: bool,
        reverse: bool,
    ) -> None:
        self._db = db
        self._pairs: Iterator[tuple[bytes, bytes]] | None = pairs
        self._last = end if reverse else start
        self._start, self._end, self._end_open, self._reverse = start, end, end_open, reverse
        self._size = 32

    def fetch(self) -> list[tuple[bytes, bytes]]:
        if self._pairs is None:
            return []
        try:
            chunk, ended = take(self._pairs, self._size)
            if chunk:
                self._last = chunk[-1][0]
            if ended:
                self._pairs = None
                _check_end(self._db, self._last, reverse=self._reverse)
        except Exception as error:
            raise _reading_error(error) from error
        self._size = min(2 * self._size, 512)
        end, start = self._end, self._start
        if self._reverse:
            if end is not None and self._end_open and chunk and chunk[0][0] == end:
                del chunk[0]
            if start is not None and chunk and chunk[-1][0] < start:
                self._pairs = None
                chunk = [pair for pair in chunk if pair[0] >= start]
        elif end is not None and chunk and (chunk[-1][0] > end or (self._end_open and chunk[-1][0] == end)):
            self._pairs = None
            chunk = [pair for pair in chunk if pair[0] < end or (pair[0] == end and not self._end_open)]
        return chunk

    def close(self) -> None:
        self._pairs = None


def _check_end(db: Any, last: bytes | None, *, reverse: bool = False) -> None:
    """Raise the error that ended a scan at ``last``, if there was one: rocksdict's iterators end silently at damage."""
    probe = db.iter()
    try:
        if not reverse:
            probe.seek((last or b"") + b"\x00")
        elif last is None:
            probe.seek_to_last()
        else:
            probe.seek_for_prev(last)
            if probe.valid():
                probe.prev()
        probe.status()
    finally:
        # An exception keeps this frame alive, and an iterator the database, which could then not be opened again.
        del probe


def _has_second_family(path: Path) -> bool:
    """Return whether the database has a second data family, which must then be named when it is opened."""
    if not (path / "CURRENT").exists():
        return False
    try:
        return _SECOND_FAMILY in Rdict.list_cf(str(path))
    except Exception as error:
        raise _opening_error(error, path) from error


def _opened(path: Path, options: Mapping[str, object], access: AccessType, *, second: bool) -> Any:
    data, offsets = database_options(options), database_options(options)
    offsets.set_write_buffer_size(cast(int, options["offsets_write_buffer_size_bytes"]))
    try:
        # Pass the families on every opening: without them rocksdict opens the database with default options.
        families = {"default": data, _OFFSETS_FAMILY: offsets}
        if second:
            families[_SECOND_FAMILY] = database_options(options)
        return Rdict(str(path), options=data, column_families=families, access_type=access)
    except Exception as error:
        raise _opening_error(error, path) from error


def _exhaust(steps: Iterator[object]) -> None:
    """Run an iterator to its end without Python bytecode for each item."""
    deque(steps, maxlen=0)


def database_options(settings: Mapping[str, object]) -> Options:
    number = {name: cast(int, value) for name, value in settings.items()}
    table = BlockBasedOptions()
    memory = memory_of(settings)
    table.set_block_cache(Cache(number["block_cache_size_bytes"]) if memory is None else memory.cache)
    table.set_block_size(number["block_size_bytes"])
    if number["bloom_filter_bits_per_key"]:
        table.set_bloom_filter(number["bloom_filter_bits_per_key"], False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_block_based_table_factory(table)
    if memory is not None:
        options.set_write_buffer_manager(memory.write_buffers)
    # One shard for the cache of open tables is enough: tables are pinned, so that lookups in this cache are rare.
    options.set_table_cache_num_shard_bits(0)
    options.set_write_buffer_size(number["write_buffer_size_bytes"])
    options.set_max_write_buffer_number(number["max_write_buffer_number"])
    options.set_optimize_filters_for_hits(bool(settings["optimize_filters_for_hits"]))
    options.set_compaction_style(_COMPACTION[str(settings["compaction_style"])]())
    options.set_compression_type(_COMPRESSION[str(settings["compression"])]())
    options.set_max_background_jobs(number["max_background_jobs"])
    options.set_max_open_files(number["max_open_files"])
    options.set_max_file_opening_threads(number["max_file_opening_threads"])
    options.set_level_zero_file_num_compaction_trigger(number["level_zero_file_num_compaction_trigger"])
    # Keep RocksDB's messages (its file LOG) short: without its statistics, which it writes every ten minutes.
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def memory_of(settings: Mapping[str, object]) -> SharedMemory | None:
    """Return the memory that a database with these settings shares; None if it has its own cache."""
    if settings["block_cache_size_bytes"] or not settings["shared_memory_bytes"]:
        return None
    return shared_memory(cast(int, settings["shared_memory_bytes"]))


def _manifest(path: Path) -> Path | None:
    """Return the path of the current manifest, None if there is no file CURRENT, which names it.

    RocksDB accepts any content of CURRENT as a name, and reports an impossible name as a disk error.
    Raises: OSError; StoreCorruptedError if the content is not the name of a manifest.
    """
    current = path / "CURRENT"
    try:
        name = read_head(current, _NAME_BYTES_MAX)
    except FileNotFoundError:
        return None
    except StrangeFileError as error:
        raise StoreCorruptedError(f"{error}: wipe the store and restore it from its changelog") from error
    if not re.fullmatch(rb"MANIFEST-\d+\n", name):
        raise StoreCorruptedError(f"{current} names no manifest: wipe the store and restore it from its changelog")
    return path / name.decode().strip()


def _checkpoint_folder(path: Path) -> Path:
    return path.with_name(path.name + ".flush")


def _opening_error(error: Exception, path: Path) -> StoreError:
    text = str(error)
    damaged = text.startswith(("Corruption", "Invalid argument", "NotFound")) or "MANIFEST" in text or "CURRENT" in text
    if damaged and not _is_refused_by_system(text):
        return StoreCorruptedError(f"RocksDB refuses {path}: {text}. Wipe the store and restore it from its changelog")
    return StoreUnavailableError(f"RocksDB can't open {path}: {text}. {descriptors_lacking()}".rstrip())


def _is_refused_by_system(text: str) -> bool:
    """Return whether the operating system refused a call, so that the files need not be damaged."""
    return text.startswith("IO error") and any(
        os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
    )


def _reading_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    return StoreUnavailableError(f"RocksDB can't read: {text}. Close the store and open it again")


def _writing_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    # After a failed write or sync RocksDB's handle is unusable, and its WAL may still have the batch.
    return CommitFailedError(
        f"RocksDB can't write: {text}. Close the store, open it again and continue from its committed offset",
        reopen=True,
    )
