"""Stores whose description was refused: they stay open for their caller, and do not block their folder.

``over(open_store(...))`` that raises leaves nobody a reference by which the store could be closed.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from stores.interface import KeyValueStore

_folders: WeakKeyDictionary[KeyValueStore, Path] = WeakKeyDictionary()
_refused: dict[Path, KeyValueStore] = {}


def note_opened(path: Path, store: KeyValueStore) -> None:
    """Remember the folder of ``store``. A store in memory has none."""
    if store.persistent:
        _folders[store] = path.absolute()


def note_refused(store: KeyValueStore) -> None:
    """Let the next opening of the store's folder in this process close ``store``."""
    folder = _folders.get(store)
    if folder is not None:
        _refused[folder] = store


def close_refused(path: Path) -> None:
    """Close the store at ``path`` if it was refused. Raises as ``StateStore.close``."""
    if _refused:
        store = _refused.pop(path.absolute(), None)
        if store is not None:
            store.close()
