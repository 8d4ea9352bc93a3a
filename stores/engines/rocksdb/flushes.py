"""Background flushes of a RocksDB database, and the memory that all RocksDB stores of a process share.

The stores share one block cache, to which their write buffers are charged. RocksDB's own write buffer manager flushes
the database that is being written, however small its buffers are. With large buffers in idle stores, the others would
flush all the time. So at a lower limit, the store with the largest write buffers is flushed in the background.

Source: Kafka Streams, "Memory Management", RocksDB, ``BoundedMemoryRocksDBConfig``.
"""

from __future__ import annotations

from contextlib import suppress
from random import sample
from threading import Lock, Thread
from typing import Any
from weakref import WeakSet

from rocksdict import Cache, CompactOptions, WriteBufferManager

from stores.contract.levels import Persistence
from stores.errors import StoreError, StoreUnavailableError

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
            thread = Thread(target=self._flush, name="rocksdb-flush")
            thread.start()
            # Only now: nobody can wait for a thread that the process had no room for.
            self._thread = thread
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


_LOOKED_AT = 32
"""The number of stores to compare before a flush: comparing thousands would take longer than a commit."""
_WORTH_BYTES = 64 << 10
"""A store with smaller write buffers is not flushed for the sake of others."""


class SharedMemory:
    """The memory shared by all stores with the same ``num_bytes``; half of it is for write buffers."""

    def __init__(self, num_bytes: int) -> None:
        self.cache = Cache(num_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(num_bytes // 2, False, self.cache)
        self._flush_above = num_bytes * 3 // 8
        """The limit for a background flush, below that of RocksDB's manager, which is seven eighths of its part."""
        self._stores: WeakSet[Flushes] = WeakSet()
        self._flushing: Flushes | None = None
        self._lock = Lock()

    def join(self, store: Flushes) -> None:
        """Add a store that was just opened."""
        with self._lock:
            self._stores.add(store)

    def leave(self, store: Flushes) -> None:
        """Remove a store that is about to be closed."""
        with self._lock:
            self._stores.discard(store)
            if self._flushing is store:
                self._flushing = None

    def wrote(self, store: Flushes) -> None:
        """Begin to flush the store with the largest write buffers, if the total is too large. ``store`` was written."""
        if self.write_buffers.get_usage() <= self._flush_above:
            return
        with self._lock:
            if self._flushing is not None and self._flushing.is_running():
                return
            others = list(self._stores - {store})
            looked_at = [store, *sample(others, min(_LOOKED_AT, len(others)))]
            num_bytes, _, largest = max((_held_bytes(each), -place, each) for place, each in enumerate(looked_at))
            if num_bytes >= _WORTH_BYTES:
                self._flushing = largest
                # The write is made: if the process has no room for a thread, a later one tries again.
                with suppress(RuntimeError):
                    largest.begin()


def _held_bytes(store: Flushes) -> int:
    with suppress(StoreError):
        return store.held_bytes()
    # Another thread is closing the store.
    return 0


_memories: dict[int, SharedMemory] = {}
_memories_lock = Lock()


def shared_memory(num_bytes: int) -> SharedMemory:
    """Return the memory for stores that are opened with ``num_bytes``. It is created with the first of them."""
    with _memories_lock:
        memory = _memories.get(num_bytes)
        if memory is None:
            memory = _memories[num_bytes] = SharedMemory(num_bytes)
        return memory
