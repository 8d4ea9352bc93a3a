"""The damage that a reader has noted beside a store: the next opening by a task checks whether it is still there.

A reader outside of the function, such as a view or a query, reads what the task itself may not read for long. Its error
comes to a caller who can't restore the store.
"""

from __future__ import annotations

import logging
from pathlib import Path

from stores.errors import CommitFailedError, StoreCorruptedError, damaged
from stores.files.creation import DAMAGE_FILE
from stores.files.plain_files import translated_system_errors
from stores.interface import KeyValueStore

_log = logging.getLogger(__name__)


def check_noted(store: KeyValueStore, path: Path) -> None:
    """Check a store in the folder ``path`` whole if a reader has noted damage. The note of a sound store is removed.

    It takes the time of a few scans. Raises: StoreCorruptedError; StoreUnavailableError if the note can't be removed.
    """
    note = path / DAMAGE_FILE
    if not store.persistent or not note.exists():
        return
    if is_damaged(store):
        raise damaged(f"a reader has found damage of {path}, and a check found it again")
    with translated_system_errors(note):
        note.unlink()
    _log.warning("a reader had found damage of %s, and a check of the whole store found none", path)


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
