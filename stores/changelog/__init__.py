"""The changelog, embedded in one SQLite file or in memory: the ordered log of which stores are materializations."""

from stores.changelog.interface import Changelog, Producer, Record
from stores.changelog.memory import MemoryChangelog
from stores.changelog.sqlite import SqliteChangelog

__all__ = ["Changelog", "MemoryChangelog", "Producer", "Record", "SqliteChangelog"]
