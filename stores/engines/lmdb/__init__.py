"""The engine of LMDB, split by job: its map and file, scans, the transaction, and errors."""

from stores.engines.lmdb.engine import LmdbEngine

__all__ = ["LmdbEngine"]
