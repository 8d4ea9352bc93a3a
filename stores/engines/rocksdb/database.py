"""A RocksDB database on disk: its options, column families, handles, figures and errors, and the SST files it ingests.

rocksdict ingests files into one column family in a call, so the meta entries of a commit must be in the family of its
data. They are one record with an empty key, which no store accepts as a key and which is before all others. As long as
this record is there, the family of the meta entries does not count.

RocksDB makes five syncs, at every level of durability: of the file, of the manifest, of the file again after linking it
into its folder, of the folder, and of the manifest. The last is the commit point.
Source: RocksDB, ``ExternalSstFileIngestionJob::Prepare``; its system calls, recorded with strace.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from stores.engines.engine import converted
from stores.engines.ingesting import FilePart
from stores.engines.rocksdb.flushes import SharedMemory, shared_memory
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, damaged
from stores.files.plain_files import StrangeFileError, read_head
from stores.process import descriptors_lacking

_BLOOM_FILTER_BITS_PER_KEY = 10
"""About one lookup in a hundred of an absent key reads a block. Source: RocksDB's wiki, "RocksDB Bloom Filter"."""
_BUFFERS = 4
"""A write buffer is at most one part of so many of the shared memory, half of which is for write buffers."""


def database_options(settings: Mapping[str, object]) -> Options:
    """Return the options of one database.

    Compaction, compression and filters are those of a store of Kafka Streams. Source: Kafka Streams, ``RocksDBStore``.
    """
    number = {name: cast(int, value) for name, value in settings.items()}
    table = BlockBasedOptions()
    memory = memory_of(settings)
    table.set_block_cache(Cache(number["block_cache_size_bytes"]) if memory is None else memory.cache)
    table.set_bloom_filter(_BLOOM_FILTER_BITS_PER_KEY, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    write_buffer_bytes = number["write_buffer_size_bytes"]
    if memory is not None:
        options.set_write_buffer_manager(memory.write_buffers)
        write_buffer_bytes = min(write_buffer_bytes, number["shared_memory_bytes"] // _BUFFERS)
    if settings["cache_index_and_filter_blocks"]:
        _keep_in_cache(table)
    options.set_block_based_table_factory(table)
    # One shard for the cache of open tables is enough: tables are pinned, so that lookups in this cache are rare.
    options.set_table_cache_num_shard_bits(0)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(number["max_write_buffer_number"])
    options.set_optimize_filters_for_hits(True)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_compression_type(DBCompressionType.none())
    options.set_max_file_opening_threads(number["max_file_opening_threads"])
    options.set_max_background_jobs(number["max_background_jobs"])
    options.set_level_zero_file_num_compaction_trigger(number["level_zero_file_num_compaction_trigger"])
    # Keep RocksDB's messages (its file LOG) short: without its statistics, which it writes every ten minutes.
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _keep_in_cache(table: BlockBasedOptions) -> None:
    """Keep indexes and filters in the cache, in parts that it can drop; only the index of the parts always stays.

    Outside of the cache, those of all tables take memory that nothing limits. A compaction makes a filter from the keys
    of one part, and not from those of a whole table. A lookup takes an eighth longer, as measured.
    Source: RocksDB's wiki, "Partitioned Index Filters".
    """
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_top_level_index_and_filter(True)


def memory_of(settings: Mapping[str, object]) -> SharedMemory | None:
    """Return the memory that a database with these settings shares; None if it has its own cache."""
    if settings["block_cache_size_bytes"] or not settings["shared_memory_bytes"]:
        return None
    return shared_memory(cast(int, settings["shared_memory_bytes"]))


OFFSETS_FAMILY = "offsets"
"""Name of the column family beside the data. Source: KIP-892, "Atomic Checkpointing"."""

SECOND_FAMILY = "records"
"""Name of the second data family, once there is one."""

_IN_USE, _CLOSE_PAUSE_S = "Already borrowed", 0.001
"""The error of rocksdict for closing a handle during a call of it, and the pause before the next attempt."""
_NAME_BYTES_MAX = 64


def open_database(
    path: Path,
    options: Mapping[str, object],
    access: AccessType,
    *,
    second: bool,
    also: Callable[[Options], None] = lambda _: None,
) -> Any:
    """Return a handle of the database. ``also`` sets more options. Raises: StoreError."""

    def configured() -> Options:
        family = database_options(options)
        also(family)
        return family

    data, offsets = configured(), configured()
    offsets.set_write_buffer_size(cast(int, options["offsets_write_buffer_size_bytes"]))
    with converted(Exception, lambda error: opening_error(error, path)):
        # Pass the families on every opening: without them rocksdict opens the database with default options.
        families = {"default": data, OFFSETS_FAMILY: offsets}
        if second:
            families[SECOND_FAMILY] = configured()
        return Rdict(str(path), options=data, column_families=families, access_type=access)


def has_second_family(path: Path) -> bool:
    """Return whether the database has a second data family, which must then be named when it is opened."""
    return (path / "CURRENT").exists() and SECOND_FAMILY in column_families(path)


def column_families(path: Path) -> frozenset[str]:
    """Return the names of all column families."""
    with converted(Exception, lambda error: opening_error(error, path)):
        return frozenset(Rdict.list_cf(str(path)))


def close_handle(handle: Any) -> None:
    """Close a handle. While another thread is in a call of it, rocksdict refuses, so try again."""
    while True:
        try:
            handle.close()
            return
        except RuntimeError as error:
            if str(error) != _IN_USE:
                raise
        time.sleep(_CLOSE_PAUSE_S)


def manifest_of(path: Path) -> Path | None:
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
        raise damaged(str(error)) from error
    if not re.fullmatch(rb"MANIFEST-\d+\n", name):
        raise damaged(f"{current} names no manifest")
    return path / name.decode().strip()


def checkpoint_folder(path: Path) -> Path:
    return path.with_name(path.name + ".flush")


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
"""RocksDB's properties. Source: KIP-607, "Proposed Changes"; units are added."""


def read_figures(db: Any) -> Mapping[str, int]:
    """Return the figures of a column family that RocksDB has. Raises: StoreCorruptedError, StoreUnavailableError."""
    with converted(Exception, reading_error):
        return {
            name: int(value)
            for name, key in _FIGURES.items()
            if (value := db.property_int_value(f"rocksdb.{key}")) is not None
        }


META_KEY: Final = b""
"""The key of the record of all meta entries."""
FIRST_KEY: Final = b"\x00"
"""The first key that a store can have."""
_LENGTH = struct.Struct(">I")


def record_of(meta: Mapping[bytes, bytes | None]) -> bytes:
    """Return the record of ``meta``: each name and each entry, by name, with its length before it. None is left out."""
    fields = [field for name, entry in sorted(meta.items()) if entry is not None for field in (name, entry)]
    return b"".join([part for field in fields for part in (_LENGTH.pack(len(field)), field)])


def meta_of(record: bytes) -> dict[bytes, bytes]:
    """Return the meta entries in a record. Raises: StoreCorruptedError."""
    fields, at = [], 0
    while at + _LENGTH.size <= len(record):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(record, at)[0]
        fields.append(record[begin:at])
    if at != len(record) or len(fields) % 2:
        raise damaged("the record of offsets in the RocksDB database is damaged")
    return dict(zip(fields[::2], fields[1::2], strict=True))


def write_sst_file(
    options: Options,
    path: Path,
    record: bytes | None,
    parts: Iterable[FilePart],
) -> None:
    """Write a file of sorted entries, with the record of the meta entries first if it is given.

    Raises: CommitFailedError; no file is left.
    """
    try:
        writer = SstFileWriter(options)
        writer.open(str(path))
        put = writer.__setitem__
        if record is not None:
            put(META_KEY, record)
        for keys, values in parts:
            if None in values:
                for key, value in zip(keys, values, strict=True):
                    if value is None:
                        del writer[key]
                    else:
                        put(key, value)
            else:
                deque(map(put, keys, values), maxlen=0)
        writer.finish()
    except BaseException as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        # Reading what is to be written may fail as well, with an error of the store.
        if type(error) is Exception:
            raise file_error(error, path) from error
        raise


def take_over(family: Any, files: Sequence[Path]) -> None:
    """Ingest the files into a column family, in one atomic step. Raises: CommitFailedError."""
    options = IngestExternalFileOptions()
    # A hard link, and not a copy.
    options.set_move_files(True)
    try:
        family.ingest_external_file([str(file) for file in files], options)
    except Exception as error:
        raise writing_error(error) from error


_REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip


def opening_error(error: Exception, path: Path) -> StoreError:
    text = str(error)
    damaged = text.startswith(("Corruption", "Invalid argument", "NotFound")) or "MANIFEST" in text or "CURRENT" in text
    if damaged and not _is_refused_by_system(text):
        return StoreCorruptedError(f"RocksDB refuses {path}: {text}. Wipe the store and restore it from its changelog")
    advice = descriptors_lacking(text) or "Correct the cause and open the store again"
    return StoreUnavailableError(f"RocksDB can't open {path}: {text}. {advice}")


def _is_refused_by_system(text: str) -> bool:
    """Return whether the operating system refused a call, so that the files need not be damaged."""
    # An error of CURRENT comes within another: "Invalid argument: Found options incompatible ...: IO error: ...".
    return "IO error" in text and any(os.strerror(number) in text for number in _REFUSALS)


def reading_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    return StoreUnavailableError(f"RocksDB can't read: {_advised(text)} Close the store and open it again")


def writing_error(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("Corruption"):
        return StoreCorruptedError(
            f"RocksDB found corruption: {text}. Wipe the store and restore it from its changelog"
        )
    # After a failed write or sync RocksDB's handle is unusable, and its WAL may still have the batch.
    return CommitFailedError(
        f"RocksDB can't write: {_advised(text)} Close the store, open it again and continue from its committed offset",
        reopen=True,
    )


def file_error(error: Exception, path: Path) -> CommitFailedError:
    """Return the error of a file that could not be written for a commit. The database has seen nothing of it."""
    return CommitFailedError(f"RocksDB can't write {path}: {_advised(str(error))} Remove the cause and commit again")


def _advised(text: str) -> str:
    """Return the sentence about an error, and one about the lack of descriptors if that is the cause."""
    return f"{text}. {descriptors_lacking(text)}." if os.strerror(errno.EMFILE) in text else f"{text}."
