"""The engine of RocksDB, split by job: its database and options, scans, flushes, shared memory, and errors."""

from stores.engines.rocksdb.database import database_options
from stores.engines.rocksdb.engine import RocksDBEngine

__all__ = ["RocksDBEngine", "database_options"]
