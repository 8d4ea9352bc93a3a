"""A store on disk that is read or copied without being opened: nothing in its folder is changed or recovered.

A backup is a store of its own, at one commit, which is opened like any other.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stores.contract.levels import Durability
from stores.engines.engine import Engine
from stores.engines.families import NEW, OLD
from stores.errors import StoreError, StoreIncompatibleError, StoreUnavailableError
from stores.files.creation import LOCK_FILE, create, is_unfinished, is_unused, wipe
from stores.files.identity import IDENTITY_FILE
from stores.files.locks import take
from stores.files.plain_files import translated_system_errors
from stores.interface import Position, TopicPartition
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets
from stores.ordered import prefix_range
from stores.read_only.held_store import DiskStore, check_is_store
from stores.read_only.store_files import PAUSE_S, TRIES_MAX, files_of
from stores.registry import open_store

Pairs = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Reading:
    """The committed data of a store. Offsets, positions and marks are those of the same commit as ``pairs``."""

    engine: Engine
    offsets: dict[TopicPartition, int]
    position: Position
    marks: dict[str, bytes]
    pairs: tuple[Pairs, ...]
    """All records in key order, per data family."""


@contextmanager
def reading(store: DiskStore) -> Iterator[Reading]:
    """Read the committed data of ``store``.

    Raises: StoreLockedError if a process has it open and the engine's files can't be read meanwhile;
    StoreUnavailableError if a commit is incomplete; StoreCorruptedError.
    """
    with closing(files_of(store)) as files, closing(files.committed()) as snapshot:
        meta = snapshot.meta()

        def pairs(prefix: bytes) -> Pairs:
            with closing(snapshot.scan(prefix_range(prefix))) as scan:
                while chunk := scan.fetch():
                    yield from [(key[len(prefix) :], value) for key, value in chunk] if prefix else chunk

        yield Reading(
            files.engine,
            decode_offsets(OFFSET, meta),
            decode_offsets(POSITION, meta),
            decode_marks(meta),
            tuple(pairs(prefix) for prefix in ((OLD, NEW) if files.is_split else (b"",))),
        )


def back_up(store: DiskStore, target: Path) -> None:
    """Copy ``store`` to the folder ``target``, which is missing or empty, and verify the copy.

    A store that a process has open is copied at its last commit, where its engine allows that. An interrupted backup is
    not a store. Raises: StoreLockedError, which names the process that has the store open; StoreIncompatibleError if
    ``target`` has files; StoreCorruptedError, StoreUnavailableError.
    """
    with translated_system_errors(target):
        is_new = not target.exists()
        if not is_new and (not target.is_dir() or any(target.iterdir())):
            raise _not_empty(target)
        if target.resolve().is_relative_to(store.path.resolve()):
            raise StoreIncompatibleError(f"{target} is inside the store: choose another path for the backup")
        target.mkdir(parents=True, exist_ok=True)
    is_begun = False
    try:
        with translated_system_errors(target):
            lock = take(target / LOCK_FILE)
            try:
                # Another process may have made its backup there meanwhile.
                if not is_unused(target):
                    raise _not_empty(target)
                is_begun = True
                create(target, store.identity.backend, lambda folder: _copy(store, folder))
            finally:
                os.close(lock)
        with open_store(store.identity.backend, target, durability=strongest(store)) as copy:
            copy.verify()
    except BaseException:
        with suppress(OSError, StoreError):
            if is_begun:
                wipe(target)
            if is_new:
                target.rmdir()
        raise


def _not_empty(target: Path) -> StoreIncompatibleError:
    return StoreIncompatibleError(f"{target} is not empty: choose another path for the backup")


def strongest(store: DiskStore) -> Durability:
    """Return the strongest durability level of the store's backend."""
    return next(level for level in reversed(Durability) if level in store.backend.durabilities)


def _copy(store: DiskStore, folder: Path) -> None:
    if store.used_by is None:
        store.check_at_rest()
        for name in ("data", "data.tmp"):
            if (store.path / name).is_dir():
                _copy_folder(store.path / name, folder / name)
        for name in ("open", "commit", IDENTITY_FILE):
            if (store.path / name).exists():
                shutil.copyfile(store.path / name, folder / name)
        return
    shutil.copyfile(store.path / IDENTITY_FILE, folder / IDENTITY_FILE)
    data = folder / "data"
    strategy, engine = store.backend.load_strategy(), store.backend.load_engine()
    for attempt in range(TRIES_MAX):
        time.sleep(PAUSE_S if attempt else 0)
        data.mkdir()
        with suppress(_UnfinishedError), reading(store) as source:
            source.engine.copy_to(data)
            copy = engine.open_read_only(data, live=False)
            try:
                if strategy.has_unfinished_commit(folder, copy.meta()):
                    raise _UnfinishedError
            finally:
                copy.close()
            return
        shutil.rmtree(data)
    raise StoreUnavailableError(f"{store.path} is in the middle of a large commit: try again when it is done")


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder without its permissions: the files of a read-only store must be writable in the backup."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            _copy_folder(entry, target / entry.name)
        else:
            shutil.copyfile(entry, target / entry.name)


class _UnfinishedError(Exception):
    """The copy has a part of a commit."""


def check_removable(path: Path) -> None:
    """Check that ``path`` is the folder of a store, damaged or not.

    Raises: StoreUnavailableError, StoreIncompatibleError.
    """
    if not (path.is_dir() and is_unfinished(path)):
        check_is_store(path)
