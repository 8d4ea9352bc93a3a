"""A backup of a store: a store of its own, at one commit, which is opened like any other."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from stores.contract.levels import Durability
from stores.errors import StoreError, StoreIncompatibleError, StoreUnavailableError
from stores.files.creation import LOCK_FILE, create, is_unused, wipe
from stores.files.identity import FILE as IDENTITY_FILE
from stores.files.locks import take
from stores.files.plain_files import translated_system_errors
from stores.registry import open_store
from stores.shell.disk_store import DiskStore, reading

ATTEMPTS_MAX = 20
_PAUSE_S = 0.25
"""Between two attempts at a store whose process is in the middle of a large commit."""


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
    begun = False
    try:
        with translated_system_errors(target):
            lock = take(target / LOCK_FILE)
            try:
                # Another process may have made its backup there meanwhile.
                if not is_unused(target):
                    raise _not_empty(target)
                begun = True
                create(target, store.identity.backend, lambda folder: _copy(store, folder))
            finally:
                os.close(lock)
        with open_store(store.identity.backend, target, durability=strongest(store)) as copy:
            copy.verify()
    except BaseException:
        with suppress(OSError, StoreError):
            if begun:
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
    copied = folder / "data"
    strategy, engine = store.backend.load_strategy(), store.backend.load_engine()
    for attempt in range(ATTEMPTS_MAX):
        time.sleep(_PAUSE_S if attempt else 0)
        copied.mkdir()
        with suppress(_UnfinishedError), reading(store) as source:
            source.engine.copy_to(copied)
            copy = engine.open_read_only(copied, live=False)
            try:
                if strategy.has_unfinished_commit(folder, copy.meta()):
                    raise _UnfinishedError
            finally:
                copy.close()
            return
        shutil.rmtree(copied)
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
