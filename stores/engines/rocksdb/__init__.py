"""The engine of RocksDB, split by job: its database and options, scans, flushes, shared memory, and errors."""

from stores.engines.rocksdb.engine import RocksDBEngine
from stores.engines.rocksdb.options import database_options

__all__ = ["RocksDBEngine", "database_options"]
