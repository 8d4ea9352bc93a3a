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
from stores.engines.engine import Engine, Scan
from stores.errors import StoreError, StoreIncompatibleError, StoreLockedError, StoreUnavailableError
from stores.files.creation import LOCK_FILE, check_parts, create, is_store, is_unfinished, is_unused, wipe
from stores.files.identity import (
    IDENTITY_FILE,
    MARK_FILE,
    Identity,
    boot_id,
    check_not_torn,
    checked_identity,
    read_identity,
    read_mark,
)
from stores.files.locks import take, take_shared
from stores.files.open_probe import probe_open
from stores.files.plain_files import translated_system_errors
from stores.interface import Position, TopicPartition
from stores.meta_entries import OFFSET, POSITION, decode_marks, decode_offsets
from stores.ordered import WHOLE
from stores.registry import Backend, backend_named, open_store
from stores.shell.sqlite_files import is_changelog

_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
_STORES_SHOWN = 5
ATTEMPTS_MAX = 20
_PAUSE_S = 0.25
"""Between two attempts at a store whose process is in the middle of a large commit."""


Pairs = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True)
class DiskStore:
    """A store's folder, which no process opens or removes while it is held, unless one has it open already."""

    path: Path
    identity: Identity
    backend: Backend
    used_by: StoreLockedError | None
    """The error that names the process which has the store open, if there is one."""

    @property
    def data(self) -> Path:
        """The engine's folder."""
        return self.path / "data"

    @property
    def is_clean(self) -> bool:
        """True if the last process that had the store open has closed it."""
        return not (self.path / MARK_FILE).exists()

    def check_at_rest(self) -> None:
        """Check that no process has the store open, and that power loss has not torn it.

        Raises: StoreLockedError, which names the process; StoreCorruptedError.
        """
        if self.used_by is not None:
            raise self.used_by
        with translated_system_errors(self.path):
            if self.is_clean:
                self.backend.load_engine().check_closed(self.data)
                return
            if (mark := read_mark(self.path)) is not None:
                check_not_torn(self.path, mark, boot_id())


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
def held(path: Path) -> Iterator[DiskStore]:
    """Hold the store in the folder ``path``.

    Raises: StoreUnavailableError, StoreIncompatibleError if there is none; StoreCorruptedError; StoreTooNewError;
    ConfigError for a backend of a package that is not installed.
    """
    with translated_system_errors(path):
        _check_is_store(path)
        check_parts(path)
        identity = checked_identity(path, read_identity(path).backend)
        backend = backend_named(identity.backend)
        lock, used_by = None, None
        try:
            lock = take_shared(path / LOCK_FILE)
        except FileNotFoundError:
            pass
        except StoreLockedError as error:
            used_by = error
    try:
        yield DiskStore(path, identity, backend, used_by)
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def reading(store: DiskStore) -> Iterator[Reading]:
    """Read the committed data of ``store``.

    Raises: StoreLockedError if a process has it open and the engine's files can't be read meanwhile;
    StoreUnavailableError if a commit is incomplete; StoreCorruptedError.
    """
    engine = store.backend.load_engine()
    live = store.used_by is not None
    if not live or not engine.reads_live:
        store.check_at_rest()
    if not live:
        probe_open(engine, store.data, engine.options)
    engine_reader = engine.open_read_only(store.data, live=live)
    try:
        # The entries before and after the scans began are the same, so they are those of the scans' commit.
        meta = None
        scans: list[Scan] = []
        while (newest := engine_reader.meta()) != meta:
            for scan in scans:
                scan.close()
            meta = newest
            scans = engine_reader.scans([WHOLE._replace(family=family) for family in range(engine_reader.num_families)])
        assert meta is not None
        if store.backend.load_strategy().has_unfinished_commit(store.path, meta):
            raise StoreUnavailableError(
                f"{store.path} is in the middle of a large commit: "
                + (
                    "try again when it is done"
                    if live
                    else f"open it as {store.identity.backend!r}, which completes it"
                )
            )

        def pairs(number: int) -> Pairs:
            with closing(scans[number]) as scan:
                while chunk := scan.fetch():
                    yield from chunk

        yield Reading(
            engine_reader,
            decode_offsets(OFFSET, meta),
            decode_offsets(POSITION, meta),
            decode_marks(meta),
            tuple(pairs(number) for number in range(len(scans))),
        )
        for scan in scans:
            scan.close()
    finally:
        engine_reader.close()


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
    for attempt in range(ATTEMPTS_MAX):
        time.sleep(_PAUSE_S if attempt else 0)
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


def _check_is_store(path: Path) -> None:
    if not path.exists():
        raise StoreUnavailableError(f"{path} does not exist: name the folder of a store")
    if not path.is_dir():
        what = "the file of a changelog, which only inspect and dump read" if is_changelog(path) else "a file"
        raise StoreIncompatibleError(f"{path} is {what}: name the folder of a store")
    if is_unfinished(path):
        raise StoreUnavailableError(f"the store in {path} was never complete, or is being removed: there is no data")
    if not is_store(path):
        inner = stores_below(path)
        there = f". There are stores below it: {', '.join(map(str, inner[:_STORES_SHOWN]))}" if inner else ""
        raise StoreIncompatibleError(f"{path} is not a store's folder: name the folder of a store{there}")


def stores_below(path: Path) -> list[Path]:
    """Return the folders of stores below ``path``, in order, as deep as a state directory has them."""
    return sorted({file.parent for depth in _DEPTHS for file in path.glob(f"{depth}/{IDENTITY_FILE}")})


def remove(path: Path) -> None:
    """Remove the store in the folder ``path``, damaged or not. Foreign files stay.

    Raises: StoreUnavailableError, StoreIncompatibleError if there is none; StoreLockedError, which names the process
    that has it open.
    """
    if not (path.is_dir() and is_unfinished(path)):
        _check_is_store(path)
    wipe(path)
