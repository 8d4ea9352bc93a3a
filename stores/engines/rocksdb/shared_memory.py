"""Memory that all RocksDB stores of a process share: one block cache, to which their write buffers are charged.

RocksDB's own write buffer manager flushes the database that is being written, however small its buffers are. With large
buffers in idle stores, the others would flush all the time. So at a lower limit, the store with the largest write
buffers is flushed in the background.

Source: Kafka Streams, "Memory Management", RocksDB, ``BoundedMemoryRocksDBConfig``.
"""

from __future__ import annotations

from contextlib import suppress
from random import sample
from threading import Lock
from weakref import WeakSet

from rocksdict import Cache, WriteBufferManager

from stores.engines.rocksdb.flushes import Flushes
from stores.errors import StoreError

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
