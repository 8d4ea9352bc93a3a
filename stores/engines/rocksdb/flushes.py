"""Background flushes of all column families of a RocksDB database together."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from rocksdict import CompactOptions

from stores.contract.persistence import Persistence
from stores.errors import StoreUnavailableError

_UNFLUSHED = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
"""Properties of a family: the number of its entries in memtables, which are not in a file yet."""
_HELD = "rocksdb.cur-size-all-mem-tables"
"""Property of a family: the memory of its write buffers that are not in a file yet."""


class Flushes(Persistence):
    """Flushes of a database without a WAL: all families atomically, on a separate thread.

    A mark is the number of meta entries written so far; those in a memtable are not persistent. With ``atomic_flush`` a
    manual compaction of one family begins with a flush of all families, and other Python threads run during it. A
    RocksDB checkpoint also flushes all of them, but holds Python's interpreter lock. The family of the meta entries is
    compacted, because it is the smallest. Source: RocksDB, ``DBImpl::CompactRangeInternal``.
    """

    def __init__(self, db: Any, offsets_db: Any) -> None:
        self._data = [db]
        self._db = offsets_db
        self.entries = 0
        """The number of meta entries written so far. The engine updates it in every commit."""
        self._options = CompactOptions()
        # Otherwise it would wait for running compactions.
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
            raise StoreUnavailableError(
                f"RocksDB can't report which writes are flushed: {error}. Close the store and open it again"
            ) from error

    def held_bytes(self) -> int:
        """Return the size of the write buffers. May be called on any thread."""
        try:
            return sum(int(each.property_int_value(_HELD) or 0) for each in (*self._data, self._db))
        except Exception as error:
            raise StoreUnavailableError(
                f"RocksDB can't report the size of its write buffers: {error}. Close the store and open it again"
            ) from error

    def begin(self) -> bool:
        # A thread of another store may call this as well, if the stores share memory.
        with self._lock:
            if self.is_running():
                return False
            self._thread = Thread(target=self._flush, name="rocksdb-flush")
            self._thread.start()
            return True

    def is_running(self) -> bool:
        """Return True while a flush that was begun here is running."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join()

    def _flush(self) -> None:
        # After a failed flush RocksDB refuses writes: the next commit raises the reason.
        with suppress(Exception):
            self._db.compact_range(None, None, self._options)
