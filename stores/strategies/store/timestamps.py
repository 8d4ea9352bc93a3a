"""The timestamps of a store's values: the fast ways to write and to look them up, and the split of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING

from stores.contract import marks as kept_marks
from stores.errors import StoreError
from stores.interface import HoldsStored, Timestamps
from stores.strategies.access import Access, while_open
from stores.strategies.family_split import split

if TYPE_CHECKING:
    from stores.strategies.store.transactions import StoreTransactions


class StoreTimestamps(Timestamps):
    """The timestamps of ``store``, which are always kept."""

    _store: StoreTransactions

    def __init__(self, store: StoreTransactions) -> None:
        super().__init__(store)
        self._batch = store.staging.batch

    @property
    def access(self) -> Access:
        """The access of the store."""
        return self._store.access

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        # The same as ``Store.put``, without the cost of a call.
        store = self._store
        if type(key) is bytes and type(value) is bytes and type(timestamp_ms) is int and not timestamp_ms >> 62:
            key_bytes = len(key)
            batch = self._batch
            if batch is not None and 0 < key_bytes <= store._max_key_bytes and get_ident() == store._writer:
                num_bytes = key_bytes + len(value) + 8
                if num_bytes <= batch.room_bytes and key not in batch.writes and not batch.deep:
                    batch.room_bytes -= num_bytes
                    # Big-endian; faster than a ``Struct``.
                    batch.writes[key] = timestamp_ms.to_bytes(8) + value
                    return
            store.put(key, timestamp_ms.to_bytes(8) + value)
            return
        super().put(key, value, timestamp_ms)

    def lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        batch, staging = self._batch, self._store.staging
        if batch is None:
            return otherwise

        def lookup(key: bytes) -> HoldsStored | None:
            # The same as ``Store.get``, without its calls.
            if type(key) is bytes:
                writes = batch.writes
                try:
                    if key in writes:
                        value = writes[key]
                    elif batch.deep:
                        value = staging.look_up(key)
                    elif key in (recent := batch.recent):
                        value = recent[key]
                    else:
                        bare_lookup = staging.bare_lookup
                        value = bare_lookup(key)
                except Exception:
                    # The error may be the engine's own: the longer way raises the one for the caller.
                    return otherwise(key)
                if value is None:
                    return None
                if len(value) >= 8:
                    found = form()
                    found.stored = value
                    return found
            return otherwise(key)

        return lookup

    @property
    def is_split(self) -> bool:
        return self._store.staging.is_split

    @property
    def can_split(self) -> bool:
        return self.is_split or self._store.staging.engine.splits

    @while_open
    def split(self, marks: Mapping[str, bytes | None]) -> None:
        store, staging = self._store, self._store.staging
        if not staging.engine.splits:
            super().split(marks)
        if not store._is_clean():
            raise StoreError(f"store {store.name!r} has staged writes: commit or roll back before splitting it")
        if self.is_split:
            raise StoreError(f"store {store.name!r} is split already")
        kept_marks.check(marks)
        split(staging, kept_marks.encode(store._marks, kept_marks.changed(store._marks, marks)))
        store._max_key_bytes = store.access.max_key_bytes
        store._marks = kept_marks.merge(store._marks, marks)

    @property
    def split_has_ended(self) -> bool:
        return self._store._split_has_ended
