"""Stores that no task opens: kept when a topology no longer names them, and removed after a delay.

The delay begins when a start first finds such a store, which the file ``.unnamed`` keeps (JSON: seconds since 1970 by
path), or with the store's last use, if that was later. A store that is named again is forgotten there. Without the file
the delay begins anew. Source: KIP-816; Kafka Streams, ``state.cleanup.delay.ms``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from stores.creation import LOCK_FILE as STORE_LOCK_FILE
from stores.creation import foreign_names, is_store, wipe
from stores.errors import StoreError, StoreLockedError
from stores.files import read_json, replace_file, system_errors_told
from stores.interface import TopicPartition
from stores.locks import take
from stores.registry import StoreBackend, backends
from stores.tasks.directory_layout import JOURNAL_FILE
from stores.tasks.identifier import TaskId
from stores.tasks.layout import Place, parts, places
from stores.tasks.placement import place_stores
from stores.tasks.relocation_journal import (
    RELOCATING_FILE,
    offsets_of,
    owners,
    take_offsets,
    take_origins,
)
from stores.tasks.state_directory import LOCK_FILE, StateDirectory, last_used
from stores.tasks.topology import Topology

UNNAMED_FILE = ".unnamed"
_BYTES_MAX = 64 << 20
_log = logging.getLogger(__name__)

Kept = Iterable[tuple[TaskId, Place]]


def note_kept(state: StateDirectory, kept: Kept) -> dict[str, float]:
    """Note the stores that are kept, by path below the state directory; returns since when each is. Raises: OSError."""
    known = _read(state.path / UNNAMED_FILE)
    now = time.time()
    paths = [str(place.within(Path(str(task_id)))) for task_id, place in kept]
    since = {path: min(known.get(path, now), now) for path in paths}
    if since != known:
        replace_file(state.path / UNNAMED_FILE, json.dumps(since) + "\n", durable=False)
    return since


def clean_stores(state: StateDirectory, topology: Topology, older_than_s: float) -> list[Path]:
    """Remove stores that ``topology`` does not name, or names elsewhere, where there is one: those that are kept, and
    were not used, for ``older_than_s`` seconds. Returns where they were.

    A store that is open stays, and one that has anything foreign in its folder. Nothing is done while another process
    relocates. Raises: StoreUnavailableError.
    """
    with system_errors_told(state.path), ExitStack() as held:
        if not state.path.is_dir():
            return []
        try:
            held.callback(os.close, take(state.path / RELOCATING_FILE))
        except StoreLockedError:
            return []
        if os.path.lexists(state.path / JOURNAL_FILE):
            return []
        kept = place_stores(state, topology).kept
        since = note_kept(state, kept)
        oldest = time.time() - older_than_s
        removed = []
        for task_id, place in kept:
            path = place.within(state.folder(task_id))
            used = max(map(last_used, parts(path)), default=oldest)
            if since[str(place.within(Path(str(task_id))))] <= oldest and used <= oldest:
                with suppress(StoreError, FileNotFoundError):
                    if _remove(state, task_id, place):
                        removed.append(path)
        for path in removed:
            _log.info("removed %s, which no task opens", path)
        return removed


def _remove(state: StateDirectory, task_id: TaskId, place: Place) -> bool:
    folder = state.folder(task_id)
    path = place.within(folder)
    own = backends().get(place.engine or "")
    folders = [part for part in parts(path) if part.is_dir() and not part.is_symlink()]
    is_library_s = all(is_store(part) and not foreign_names(part) for part in folders)
    if not is_library_s and not isinstance(own, StoreBackend):
        return False
    with ExitStack() as held:
        try:
            held.callback(os.close, take(folder / LOCK_FILE, note=False))
        except StoreLockedError:
            if not is_library_s:
                # Only the task's lock says that such a store is not open.
                return False
            # An open task has no entries of stores that it does not have, and a store that it has is locked.
        else:
            for part in folders:
                if (part / STORE_LOCK_FILE).is_file():
                    # Refused here, before its entries are gone.
                    os.close(take(part / STORE_LOCK_FILE, note=False))
            _forget(folder, task_id, place.store)
        for part in folders:
            if is_library_s:
                wipe(part)
            elif own is not None:
                own.wipe(part)
        for part in parts(path):
            # The note of a swap, once neither store is there.
            if part.is_file():
                part.unlink()
    return True


def _forget(folder: Path, task_id: TaskId, store: str) -> None:
    """Take the entries of a store out of its task's files."""
    found = offsets_of(folder)
    gone = [topic for topic, number in found if number == task_id.partition and owners(topic, {store}, None)]
    take_offsets(folder, (TopicPartition(topic, task_id.partition) for topic in gone))
    take_origins(folder, [store], {place.store for place in places(folder)})
    position = folder / f"{store}.position"
    if position.is_file() and not position.is_symlink():
        position.unlink()


def _read(file: Path) -> dict[str, float]:
    try:
        told = read_json(file, _BYTES_MAX)
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {path: at for path, at in told.items() if isinstance(at, int | float) and not isinstance(at, bool)}
