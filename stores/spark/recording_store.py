"""The store of bytes that a function writes to: each write is staged in the store, and recorded for the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NoReturn

from stores.changelog.files import StoreChanges
from stores.contract.arguments import check_pairs
from stores.errors import StoreCorruptedError, StoreError
from stores.files.plain_files import parsed_json
from stores.forwarding import ForwardedTimestamps, ForwardingStore
from stores.interface import HoldsStored, KeyValueStore, TopicPartition
from stores.records import TimestampedKeyValue
from stores.records.record_kind import RecordKind
from stores.records.segments import packed

TTL = "query_ttl_ms"
"""The mark with the time to live of a store's records. It is no part of the description, because it may change."""
LOGGED_MARKS = "logged_marks"
"""The mark that lists the names of all marks that were ever set, as JSON: a snapshot has to find them."""


class RecordedTimestamps(ForwardedTimestamps):
    """Timestamps with the lookup of the store below, which is never replaced."""

    def lookup(
        self, form: type[HoldsStored], otherwise: Callable[[bytes], HoldsStored | None]
    ) -> Callable[[bytes], HoldsStored | None]:
        return self._store.inner.timestamps.lookup(form, otherwise)


class RecordingStore(ForwardingStore):
    """A store over ``inner`` that records its changes since the last ``take``.

    The batch commits, restores and closes it: these calls raise StoreError here. Memory is bounded by the keys that one
    batch changes.
    """

    def __init__(self, inner: KeyValueStore) -> None:
        super().__init__(inner)
        self._changes = StoreChanges()

    def take(self) -> StoreChanges:
        """Return the changes since the last call."""
        taken, self._changes = self._changes, StoreChanges()
        return taken

    def put(self, key: bytes, value: bytes | None) -> None:
        self.inner.put(key, value)
        self._changes.pairs[key] = value

    def put_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        check_pairs(pairs)
        staged = list(pairs)
        self.inner.put_all(staged)
        self._changes.pairs.update(staged)

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        existing = self.inner.put_if_absent(key, value)
        if existing is None:
            self._changes.pairs[key] = value
        return existing

    def delete(self, key: bytes) -> bytes | None:
        existing = self.inner.delete(key)
        self._changes.pairs[key] = None
        return existing

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        with self.inner.range(start, end) as doomed:  # a snapshot: it still has the pairs after their removal
            self.inner.delete_range(start, end)
            self._changes.pairs.update((key, None) for key, _ in doomed)

    def set_mark(self, name: str, value: bytes | None) -> None:
        names = logged_marks(self.inner)
        self.inner.set_mark(name, value)
        self._changes.marks[name] = value
        if name not in names:
            listed = json.dumps(sorted({*names, name})).encode()
            self.inner.set_mark(LOGGED_MARKS, listed)
            self._changes.marks[LOGGED_MARKS] = listed

    @property
    def timestamps(self) -> RecordedTimestamps:
        return RecordedTimestamps(self)

    @property
    def deletes_ranges_whole(self) -> bool:
        """False: the log has each removed key."""
        return False

    def commit(self, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> NoReturn:
        """Refuse the commit: a store that commits by itself would lead its log."""
        raise StoreError(f"store {self.name!r} is committed with its batch: leave out the call")

    def rollback(self) -> NoReturn:
        raise StoreError(f"store {self.name!r} is rolled back with its batch: raise an exception for that")

    def restore(self, *arguments: object, **named: object) -> NoReturn:
        raise StoreError(f"store {self.name!r} is restored from the state folder: leave out the call")

    def close(self) -> NoReturn:
        raise StoreError(f"store {self.name!r} stays open for the next batch: leave out the call")


def logged_marks(store: KeyValueStore) -> list[str]:
    """Return the names of all marks of ``store`` that the log has, without the list itself.

    Raises: StoreCorruptedError.
    """
    mark = store.mark(LOGGED_MARKS)
    if mark is None:
        return []
    with suppress(ValueError):
        names = parsed_json(mark)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    raise StoreCorruptedError(
        f"the list of the marks of store {store.name!r} can't be read: remove the local copy, and the next batch "
        "restores it from the state folder"
    )


def keep_ttl(store: KeyValueStore, records: RecordKind | None) -> None:
    """Stage the time to live of ``records`` as a mark, if it is another one than in the state."""
    if not isinstance(records, TimestampedKeyValue) or not store.keeps_marks:
        return
    mark = None if records.ttl_ms is None else packed(records.ttl_ms)
    if mark != store.mark(TTL):
        store.set_mark(TTL, mark)
