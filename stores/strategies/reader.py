"""A store as other threads see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stores.errors import StoreUnavailableError
from stores.interface import IsolationLevel, KeyValueIterator, ReadOnlyKeyValueStore
from stores.strategies.arguments import as_bytes

if TYPE_CHECKING:
    from stores.strategies.store import EngineStore


class StoreReader(ReadOnlyKeyValueStore):
    """A store as another thread sees it, at one isolation level."""

    def __init__(self, store: EngineStore, level: IsolationLevel) -> None:
        self._store, self._level = store, level

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._store._get(self._level, as_bytes("key", key))
        except StoreUnavailableError:
            # The store may have been closed meanwhile, by the writer's thread.
            self._store._check_open()
            raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._store._check_open()
        return [self.get(key) for key in keys]

    def range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store.scan(self._level, start, end)

    def reverse_range(self, start: bytes | None, end: bytes | None) -> KeyValueIterator:
        return self._store.scan(self._level, start, end, reverse=True)

    def prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._store.scan_prefix(self._level, prefix)

    def reverse_prefix_scan(self, prefix: bytes) -> KeyValueIterator:
        return self._store.scan_prefix(self._level, prefix, reverse=True)

    def approximate_num_entries(self) -> int:
        return self._store.approximate_num_entries()
