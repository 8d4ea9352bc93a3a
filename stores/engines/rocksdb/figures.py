"""RocksDB's own figures of a column family, by their names among a store's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stores.engines.rocksdb.errors import reading_error

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
    try:
        return {
            name: value
            for name, key in _FIGURES.items()
            if (value := integer_property(db, f"rocksdb.{key}")) is not None
        }
    except Exception as error:
        raise reading_error(error) from error


def integer_property(db: Any, name: str) -> int | None:
    """Return an integer property of a column family; None if RocksDB does not know it."""
    value = db.property_int_value(name)
    return None if value is None else int(value)
