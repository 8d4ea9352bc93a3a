"""The trust of a task in a store that an earlier process has left: may its data be used with its offset?

Source: KIP-844, step 1.1; KIP-892, "Error Handling"; KIP-129, unclean shutdown.
"""

from __future__ import annotations

from stores.errors import CommitFailedError, StoreCorruptedError, TaskCorruptedError
from stores.interface import KeyValueStore, RecoveryOutcome
from stores.records.record_kind import is_empty
from stores.tasks.directory.origin_file import Origin

UNCLEAN = "it keeps uncommitted writes among the committed ones, and was not closed with a checkpoint"
SWITCHED = "it was written at least once and not closed cleanly: it may have writes that were never committed"
NO_OFFSET = "it has data, and its changelog offset is unknown"
ROLLED_BACK = "it keeps uncommitted writes among the committed ones, and the transaction was rolled back"
IN_DOUBT = "it keeps no offset with its data, and it is unknown how much of a commit reached the disk"


class Trust:
    """The rules of one task under its guarantee.

    ``origin`` is the store's entry in the origin file, as an earlier task has left it; None for no entry.
    """

    def __init__(self, *, exactly_once: bool) -> None:
        self.exactly_once = exactly_once
        """True if a store whose data has no known offset must be wiped."""

    def is_checked(self, origin: Origin | None) -> bool:
        """Return whether data without a known offset is wiped: an exactly-once task, now or before, requires it."""
        return self.exactly_once or origin is Origin.EXACTLY_ONCE

    def check_import(self, origin: Origin | None) -> None:
        """Check that an offset may be imported into the store. Raises: TaskCorruptedError."""
        if self.is_checked(origin) and origin is not Origin.CLEAN:
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN)

    def check(self, store: KeyValueStore, offset: int | None, origin: Origin | None) -> None:
        """Check that the data of ``store`` is that of ``offset``, or that there is none. Raises: TaskCorruptedError."""
        if not self.is_checked(origin):
            return
        mixes = store.persistent and not keeps_apart(store)
        unclean = mixes and not _was_closed(store, origin)
        if (unclean or origin is Origin.AT_LEAST_ONCE or offset is None) and not is_empty(store):
            raise TaskCorruptedError(SWITCHED if origin is Origin.AT_LEAST_ONCE else UNCLEAN if mixes else NO_OFFSET)

    def may_be_mixed(self, store: KeyValueStore, origin: Origin | None) -> bool:
        """Return whether ``store``, opened and checked, may still have writes that are in no changelog."""
        if self.is_checked(origin):
            return False
        trusted = origin is not Origin.AT_LEAST_ONCE if keeps_apart(store) else _was_closed(store, origin)
        return not trusted and not is_empty(store)

    def origin(self, store: KeyValueStore, *, mixed: bool, running: bool) -> Origin | None:
        """Return the entry of the origin file for a running task or after a clean close; None for no entry.

        ``mixed`` is True if ``store`` may have writes that are in no changelog.
        """
        if not store.persistent:
            return None
        if keeps_apart(store):
            return Origin.AT_LEAST_ONCE if mixed else None
        if running:
            return Origin.EXACTLY_ONCE if self.exactly_once else Origin.AT_LEAST_ONCE
        return Origin.AT_LEAST_ONCE if mixed else Origin.CLEAN


def keeps_apart(store: KeyValueStore) -> bool:
    """Return True if the store's own files identify the committed data and its offset."""
    return store.transactional and store.manages_offsets


def is_damaged(store: KeyValueStore) -> bool:
    """Return whether a verification or a scan of all data, staged writes included, finds damage."""
    try:
        store.verify()
        with store.all() as pairs:
            for _ in pairs:
                pass
    except (StoreCorruptedError, CommitFailedError):
        # An engine that has aborted its transaction because of the damage can't be read.
        return True
    return False


def _was_closed(store: KeyValueStore, origin: Origin | None) -> bool:
    return origin is Origin.CLEAN and store.recover().outcome is RecoveryOutcome.NOTHING_TO_DO
