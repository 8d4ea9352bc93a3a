"""Stores that no task opens: kept when a topology no longer names them, and removed after a delay.

The delay begins when a task that opens first finds such a store, or with the store's last use, if that was later. The
file ``.unnamed`` has these times (JSON: seconds since 1970 by path). A store that is named again loses its entry. If
the file is lost, the delay starts over. Source: KIP-816; Kafka Streams, ``state.cleanup.delay.ms``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from stores.errors import StoreError, StoreLockedError
from stores.files.creation import LOCK_FILE as STORE_LOCK_FILE
from stores.files.creation import foreign_names, is_store, is_unused, remove_empty, wipe
from stores.files.locks import take
from stores.files.plain_files import read_json, replace_file, translated_system_errors
from stores.registry import StoreBackend, backends
from stores.tasks.directory.placement import Located, StoreEntries, place_stores
from stores.tasks.directory.relocation_journal import tidy
from stores.tasks.directory.state_directory import LOCK_FILE, StateDirectory, Watch, last_used, unused_by
from stores.tasks.directory.store_places import JOURNAL_FILE, RELOCATING_FILE, parts
from stores.tasks.identifier import Home, StorePartition
from stores.tasks.topology import Topology

UNNAMED_FILE = ".unnamed"
_BYTES_MAX = 64 << 20
_log = logging.getLogger(__name__)


def note_kept(state: StateDirectory, kept: Iterable[Located]) -> dict[str, float]:
    """Note the kept stores by path below the state directory; return since when each is kept. Raises: OSError."""
    times = _read(state.path / UNNAMED_FILE)
    now = time.time()
    since = {path: min(times.get(path, now), now) for path in map(_relative, kept)}
    if since != times:
        replace_file(state.path / UNNAMED_FILE, json.dumps(since) + "\n", durable=False)
    return since


def kept_homes(state: StateDirectory, topology: Topology) -> set[Home]:
    """Return the tasks and own folders that have a kept store. Raises: StoreUnavailableError, StoreCorruptedError."""
    with translated_system_errors(state.path):
        return {located.home for located in place_stores(state, topology).kept}


def clean_stores(state: StateDirectory, topology: Topology, older_than: float | Watch) -> list[Path]:
    """Remove the stores that no task opens, after they were kept and unused for so many seconds; return their paths.

    A ``Watch`` decides by what it has seen, without the note of since when they are kept.

    These are stores that ``topology`` does not name, and stores whose right place has another one. An open store stays,
    and so does one with foreign files in its folder. Nothing is done while another process relocates stores.

    Raises: StoreUnavailableError; StoreCorruptedError if the note of the layout is damaged.
    """
    with translated_system_errors(state.path), ExitStack() as locks:
        if not state.path.is_dir():
            return []
        try:
            locks.callback(os.close, take(state.path / RELOCATING_FILE))
        except StoreLockedError:
            return []
        if os.path.lexists(state.path / JOURNAL_FILE):
            return []
        unused_stores = place_stores(state, topology).kept
        since = note_kept(state, unused_stores)
        is_unused = unused_by(older_than)
        removals = []
        for located in unused_stores:
            path = located.path(state.path)
            last_use = max(map(last_used, parts(path)), default=0.0)
            noted = last_use if isinstance(older_than, Watch) else max(last_use, since[_relative(located)])
            if is_unused(path, noted):
                with suppress(StoreError, FileNotFoundError):
                    if _remove(state, located):
                        removals.append(path)
        for path in removals:
            _log.info("removed %s, which no task opens", path)
        return removals


def _remove(state: StateDirectory, located: Located) -> bool:
    home, engine, _ = located
    folder, path = state.path / str(home), located.path(state.path)
    own = backends().get(engine)
    folders = [part for part in parts(path) if part.is_dir() and not part.is_symlink()]
    is_other_s = isinstance(own, StoreBackend)
    # An interrupted removal may have left an empty folder.
    is_library_s = all(
        (is_store(part) and not foreign_names(part)) or (is_unused(part) and not is_other_s) for part in folders
    )
    if not is_library_s and not is_other_s:
        return False
    with ExitStack() as locks:
        try:
            locks.callback(os.close, take(folder / LOCK_FILE, note=False))
        except StoreLockedError:
            if isinstance(home, StorePartition) or not is_library_s:
                # It is open in a task; or it is another package's store, and only the task's lock protects it.
                return False
            # If a task is open, its files have no entries of this store, unless it has the store open and locked.
        else:
            for part in folders:
                if (part / STORE_LOCK_FILE).is_file():
                    # A locked store is refused here, before its entries are removed.
                    os.close(take(part / STORE_LOCK_FILE, note=False))
            _forget(state.path, located)
        for part in folders:
            if is_library_s:
                wipe(part)
            elif own is not None:
                own.wipe(part)
        for part in parts(path):
            # The note of a swap goes last, after both stores.
            if part.is_file():
                part.unlink()
        if isinstance(home, StorePartition):
            tidy(state.path, home)
    if isinstance(home, StorePartition):
        # Where a removed lock file is hidden as long as it is held, this could not be done before.
        for empty_folder in (folder, folder.parent):
            remove_empty(empty_folder)
    return True


def _forget(state: Path, located: Located) -> None:
    """Remove the entries of a store from the files of its task, or from its own files."""
    entries, store = StoreEntries(state, located.home), located.store
    is_alone = isinstance(located.home, StorePartition)
    partitions = {key for key in entries.offsets() if is_alone or store in entries.owners(key, [store], None)}
    entries.remove(partitions, {store})
    position = entries.folder / f"{store}.position"
    if position.is_file() and not position.is_symlink():
        position.unlink()


def _relative(located: Located) -> str:
    return str(located.path(Path()))


def _read(file: Path) -> dict[str, float]:
    try:
        content = read_json(file, _BYTES_MAX)
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {path: at for path, at in content.items() if isinstance(at, int | float) and not isinstance(at, bool)}
