"""The engine of SQLite, split by job: its tables and statements, scans, the transaction, and errors."""

from stores.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
