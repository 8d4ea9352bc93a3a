"""The store of bytes that a function writes to: each write is staged in the store, and recorded for the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import ClassVar

from stores.changelog.files import StoreChanges
from stores.errors import StoreCorruptedError
from stores.files.plain_files import parsed_json
from stores.forwarding import ForwardedTimestamps, LoggedStore
from stores.interface import HoldsStored, KeyValueStore
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


class RecordingStore(LoggedStore):
    """A store over ``inner`` that records its changes since the last ``take``.

    The batch commits, restores and closes it: these calls raise StoreError here. Memory is bounded by the keys that one
    batch changes.
    """

    refusals: ClassVar[Mapping[str, str]] = {
        "commit": "is committed with its batch: leave out the call",
        "rollback": "is rolled back with its batch: raise an exception for that",
        "restore": "is restored from the state folder: leave out the call",
        "close": "stays open for the next batch: leave out the call",
    }

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

    def _log_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._changes.pairs.update(pairs)

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
