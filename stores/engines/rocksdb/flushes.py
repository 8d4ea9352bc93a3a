"""Flushes of a RocksDB database, of all its families together and in the background."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from rocksdict import CompactOptions

from stores.errors import StoreUnavailableError
from stores.persistence import Persistence

_UNFLUSHED = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
"""Properties of a family: its entries that are not in a file yet."""
_HELD = "rocksdb.cur-size-all-mem-tables"
"""Property of a family: the memory of its write buffers that are not in a file yet."""


class Flushes(Persistence):
    """Flushes of a database that has no log: all families as one, on a thread of their own.

    A mark is the number of meta entries written so far: of those, only what is in a memtable is not persistent. With
    ``atomic_flush`` a manual compaction of one family begins with a flush of all of them, during which other threads
    run (a checkpoint, which flushes all of them as well, holds Python's lock). The family of the meta entries is the
    one to compact: it is the smallest. Source: RocksDB, ``DBImpl::CompactRangeInternal``.
    """

    def __init__(self, db: Any, offsets_db: Any) -> None:
        self._data = [db]
        self._db = offsets_db
        self.entries = 0
        """Meta entries written so far. The engine counts them, since it does in every commit."""
        self._options = CompactOptions()
        # Else it would wait for the compactions that are under way.
        self._options.set_exclusive_manual_compaction(False)
        self._thread: Thread | None = None
        self._lock = Lock()

    def add(self, db: Any) -> None:
        """Add a data family."""
        self._data.append(db)

    def mark(self) -> int:
        return self.entries

    def persisted(self) -> int:
        entries = self.entries
        try:
            return entries - sum(int(self._db.property_int_value(name) or 0) for name in _UNFLUSHED)
        except Exception as error:
            raise StoreUnavailableError(f"RocksDB can't tell what is flushed: {error}") from error

    def held_bytes(self) -> int:
        """The size of its write buffers. From any thread."""
        try:
            return sum(int(each.property_int_value(_HELD) or 0) for each in (*self._data, self._db))
        except Exception as error:
            raise StoreUnavailableError(f"RocksDB can't tell what it holds: {error}") from error

    def begin(self) -> None:
        # Another store's thread may ask for it, too, where they share memory.
        with self._lock:
            if not self.is_running():
                self._thread = Thread(target=self._flush, name="rocksdb-flush")
                self._thread.start()

    def is_running(self) -> bool:
        """Whether a flush that was begun here goes on."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join()

    def _flush(self) -> None:
        # Where it fails RocksDB takes no more writes: the next commit raises, and says why.
        with suppress(Exception):
            self._db.compact_range(None, None, self._options)
