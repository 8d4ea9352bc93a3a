"""The atomic swap of a store for a new one that was built beside it: at any time exactly one of the two counts.

The store ``NAME`` lies in a folder of that name, the new one in ``NAME.prepare``. The file ``NAME.swap`` says that the
new one is complete and counts. Once it is written, each opening completes the swap:

1. move the old store to ``NAME.former``, and the new one to ``NAME``;
2. move foreign files of the old folder into the new one;
3. remove the old store's files, then the file ``NAME.swap``.

Before the file is written, the old store counts. ``NAME.prepare`` is then an unfinished upgrade, which may be continued
or removed.

Source: KIP-258, first draft, "X_Y_prepare".
"""

from __future__ import annotations

import os
from pathlib import Path

from stores.errors import StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.creation import foreign_names, is_store, wipe
from stores.files.plain_files import replace_file, sync_folder, sync_tree, translated_system_errors
from stores.tasks.directory.store_places import FORMER_END, PREPARE_END, SWAP_END, beside

SYNCED = declare("upgrade.synced", "the new store is complete and synced, and the old one counts", part=Part.CHANGE)
DECIDED = declare("upgrade.decided", "the new store counts, and lies beside the old one", part=Part.CHANGE)
MOVED = declare("upgrade.moved", "the old store is out of the way, the new one not in its place yet", part=Part.CHANGE)
PLACED = declare(
    "upgrade.placed", "the new store is in its place, the old one's files are still there", part=Part.CHANGE
)
REMOVED = declare(
    "upgrade.removed", "the old one's files are removed, the note of the swap is still there", part=Part.CHANGE
)
FAILPOINTS = (SYNCED, DECIDED, MOVED, PLACED, REMOVED)
"""The failpoints of a swap, in this order."""

_TEXT = "The store in the folder of this name with .prepare takes the place of the one without.\n"


def swap(path: Path) -> None:
    """Swap the closed store at ``path`` for the closed one in ``NAME.prepare``.

    Raises: StoreUnavailableError. One of the two counts then; ``complete`` finds out which.
    """
    former = beside(path, FORMER_END)
    with translated_system_errors(path):
        wipe(former)
        if os.path.lexists(former):
            names = ", ".join(sorted(os.listdir(former))[:3]) if former.is_dir() else "nothing of a store"
            raise StoreUnavailableError(
                f"{former} contains {names}, which is not the store's: move it away, and open the task again"
            )
        sync_tree(beside(path, PREPARE_END))
        reach(SYNCED)
        replace_file(beside(path, SWAP_END), _TEXT)
    reach(DECIDED)
    complete(path)


def complete(path: Path) -> bool:
    """Complete a swap that was decided; return whether there was one. Raises: StoreUnavailableError."""
    note, new, former = (beside(path, end) for end in (SWAP_END, PREPARE_END, FORMER_END))
    with translated_system_errors(path):
        if not note.exists():
            return False
        if os.path.lexists(new):
            if os.path.lexists(path):
                path.rename(former)
                sync_folder(path.parent)
            reach(MOVED)
            new.rename(path)
            sync_folder(path.parent)
        reach(PLACED)
        _return_foreign_files(former, path)
        wipe(former)
        reach(REMOVED)
        note.unlink()
        sync_folder(path.parent)
    return True


def _return_foreign_files(former: Path, path: Path) -> None:
    """Move foreign files of the old store's folder to ``path``. Raises: OSError.

    A file whose name exists there stays in the old folder, and a later swap is refused because of it. The removal of
    the old store syncs its folder.
    """
    if not os.path.lexists(former) or not is_store(former):
        return
    foreign = [name for name in foreign_names(former) if not os.path.lexists(path / name)]
    for name in foreign:
        (former / name).rename(path / name)
    if foreign:
        sync_folder(path)
