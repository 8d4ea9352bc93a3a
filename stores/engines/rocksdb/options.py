"""The options of a RocksDB database, made of a store's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rocksdict import BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, Options

from stores.engines.rocksdb.shared_memory import SharedMemory, shared_memory

COMPACTION: Mapping[str, Any] = {
    "universal": DBCompactionStyle.universal,
    "level": DBCompactionStyle.level,
    "fifo": DBCompactionStyle.fifo,
}
COMPRESSION: Mapping[str, Any] = {
    "none": DBCompressionType.none,
    "lz4": DBCompressionType.lz4,
    "snappy": DBCompressionType.snappy,
    "zstd": DBCompressionType.zstd,
}


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
    options.set_compaction_style(COMPACTION[str(settings["compaction_style"])]())
    options.set_compression_type(COMPRESSION[str(settings["compression"])]())
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
