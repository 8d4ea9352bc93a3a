"""Replacement of folders under a journal: what was there counts before the journal, what is new counts from then on.

What is new is built beside what is there, and synced. Then:

1. the journal, a file, is written: the replacement is decided;
2. folders are renamed;
3. what is no longer needed is removed, and the journal last.

A process that finds a journal carries it out from its beginning. Without one, what was built is continued or removed.

A store ``NAME`` is replaced by the one in ``NAME.prepare``, under the journal ``NAME.swap``. It is moved to
``NAME.former``, its foreign files to the new store, and the rest is removed. It may be a store that Kafka Streams has
left. Stores that change their places have one journal together (``stores.tasks.directory.relocation_journal``).

Source: KIP-258, first draft, "X_Y_prepare".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from stores.errors import StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.creation import foreign_names, is_store, wipe
from stores.files.plain_files import replace_file, sync_folder, sync_tree, translated_system_errors
from stores.tasks.directory.store_places import (
    FORMER_END,
    PREPARE_END,
    SWAP_END,
    beside,
    is_streams_store,
    kept_from_streams,
    remove_streams_store,
    streams_foreign_names,
)

SYNCED = declare("replacement.synced", "the new store is complete and synced, and the old one counts", part=Part.CHANGE)
DECIDED = declare("replacement.decided", "the journal is durable, and nothing else has changed", part=Part.CHANGE)
RENAMED = declare("replacement.renamed", "one more folder has its new name, not yet synced", part=Part.CHANGE)
PLACED = declare("replacement.placed", "all folders have their new names, durably", part=Part.CHANGE)
CLEARED = declare("replacement.cleared", "all but the removal of the journal is done", part=Part.CHANGE)
FINISHED = declare("replacement.finished", "the journal is gone, and all is done", part=Part.CHANGE)
FAILPOINTS = (DECIDED, RENAMED, PLACED, CLEARED, FINISHED)
"""The failpoints of every replacement, in this order. That of one store reaches SYNCED before them."""

_TEXT = "The store in the folder of this name with .prepare takes the place of the one without.\n"


def decide(journal: Path, text: str) -> None:
    """Write the journal: from now on ``carry_out`` is due. Raises: OSError; it may then be decided or not."""
    replace_file(journal, text)
    reach(DECIDED)


def carry_out(journal: Path, renames: Iterable[tuple[Path, Path]], clear: Callable[[], None]) -> None:
    """Carry out a replacement that is decided, from its beginning. It may have been interrupted anywhere.

    ``renames`` yields each path that is not renamed yet, with its new one, and has synced all of them when it ends.
    ``clear`` does the rest. Raises: OSError, after which the next call continues.
    """
    for source, target in renames:
        source.rename(target)
        reach(RENAMED)
    reach(PLACED)
    clear()
    reach(CLEARED)
    journal.unlink(missing_ok=True)
    sync_folder(journal.parent)
    reach(FINISHED)


def replace_store(path: Path, before_decision: Callable[[], None] = lambda: None) -> None:
    """Replace the closed store at ``path``, if there is one, by the closed one in ``NAME.prepare``.

    ``before_decision`` is called once that is synced. Raises: StoreUnavailableError; its errors. One of the two stores
    counts then; ``complete`` finds out which.
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
        before_decision()
        decide(beside(path, SWAP_END), _TEXT)
    complete(path)


def remove_unfinished(path: Path) -> None:
    """Remove what an undecided replacement of the store at ``path`` has left beside it. Raises: StoreError."""
    with translated_system_errors(path):
        wipe(beside(path, PREPARE_END))
        former = beside(path, FORMER_END)
        if os.path.lexists(former) and is_store(former):
            wipe(former)


def complete(path: Path) -> bool:
    """Complete a replacement of the store at ``path`` that was decided; return whether one was. Raises: StoreError."""
    journal = beside(path, SWAP_END)
    with translated_system_errors(path), ExitStack() as locks:
        if not journal.exists():
            return False
        if is_streams_store(path):
            locks.enter_context(kept_from_streams(path))
        carry_out(journal, _renames(path), partial(_remove_former, path))
    return True


def _renames(path: Path) -> Iterator[tuple[Path, Path]]:
    new = beside(path, PREPARE_END)
    if os.path.lexists(new):
        if os.path.lexists(path):
            yield path, beside(path, FORMER_END)
            sync_folder(path.parent)
        yield new, path
    sync_folder(path.parent)


def _remove_former(path: Path) -> None:
    """Remove the former store, but for foreign files, which move to the new one unless it has their names."""
    former = beside(path, FORMER_END)
    if is_streams_store(former):
        _move(streams_foreign_names(former), former, path)
        remove_streams_store(former)
        return
    if os.path.lexists(former) and is_store(former):
        _move(foreign_names(former), former, path)
    wipe(former)


def _move(names: Iterable[str], source: Path, target: Path) -> None:
    free_names = [name for name in names if not os.path.lexists(target / name)]
    for name in free_names:
        (source / name).rename(target / name)
    if free_names:
        sync_folder(target)
