"""The timestamps of a store's values: the fast ways to write and to look them up, and the split of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING

from stores.errors import StoreError
from stores.interface import HoldsStored, Timestamps
from stores.meta_entries import changed_marks, check_marks, encode_marks, merge_marks
from stores.strategies.access import Access, while_open

if TYPE_CHECKING:
    from stores.strategies.store.transactions import StoreTransactions
from pathlib import Path

from stores.engines.families import BOTH, FAMILIES, SECOND, SplitEngine, split_or_whole
from stores.errors import CommitFailedError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.strategies.staging import Staging

SPLIT_BEFORE_WRITE = declare(
    "split.before_write", "a second data family exists, and no meta entry says that it is in use", part=Part.CHANGE
)
SPLIT_AFTER_WRITE = declare(
    "split.after_write", "the records are of an older format, new ones have their own family", part=Part.CHANGE
)
END_SPLIT_BEFORE_WRITE = declare(
    "split.end.before_write", "opening found the last record of an older format gone", part=Part.CHANGE
)
END_SPLIT_AFTER_WRITE = declare(
    "split.end.after_write", "the second data family has all data, and the first is unused", part=Part.CHANGE
)
SPLIT_FAILPOINTS = (SPLIT_BEFORE_WRITE, SPLIT_AFTER_WRITE, END_SPLIT_BEFORE_WRITE, END_SPLIT_AFTER_WRITE)
"""Failpoints that only an upgrade of a store's records reaches."""


def split(staging: Staging, meta: Mapping[bytes, bytes | None]) -> None:
    """Add a second data family for new records, and write ``meta`` with it. Nothing is staged.

    Raises: CommitFailedError.
    """
    engine = staging.engine
    engine.add_family()
    reach(SPLIT_BEFORE_WRITE)
    staging.write_at_once([], {**meta, FAMILIES: BOTH})
    reach(SPLIT_AFTER_WRITE)
    engine.select_families()
    staging.use(split_or_whole(engine))
    staging.access.max_key_bytes += 1


def end_split(staging: Staging, path: Path) -> bool:
    """Make the store whole if its last record of the older format is gone. Return whether it was.

    Raises: StoreUnavailableError.
    """
    engine = staging.engine
    if not isinstance(engine, SplitEngine) or engine.engine.has_records():
        return False
    try:
        reach(END_SPLIT_BEFORE_WRITE)
        staging.write_at_once([], {FAMILIES: SECOND})
    except CommitFailedError as error:
        raise StoreUnavailableError(
            f"the upgrade of {path} could not be ended: {error}. Remove the cause and open the store again"
        ) from error
    reach(END_SPLIT_AFTER_WRITE)
    engine.engine.select_families()
    staging.use(engine.engine)
    staging.access.max_key_bytes -= 1
    return True


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
                    holder = form()
                    holder.stored = value
                    return holder
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
        check_marks(marks)
        split(staging, encode_marks(store._marks, changed_marks(store._marks, marks)))
        store._max_key_bytes = store.access.max_key_bytes
        store._marks = merge_marks(store._marks, marks)

    @property
    def split_has_ended(self) -> bool:
        return self._store._split_has_ended
