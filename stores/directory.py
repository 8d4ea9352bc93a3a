"""A store's folder: what it is, who has it open, and how it comes into being whole or not at all.

    store.json   backend and format version (see ``stores.identity``)
    lock         held (flock) while the store is open; names the process
    open         there while the store is open: the boot it was opened in, the level, and whether a sync has failed
    unfinished   there while the store is made or removed: nothing in the folder counts (see ``stores.creation``)
    data/        the engine's files
    data.tmp/    the second store of a dual store, and ``commit`` the marker of its commit, while there is one;
                 of an indexed batch those of transactions that have outgrown memory, while there are any

Anything else in the folder is foreign, and left alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Self

from stores.creation import (
    CREATE_BUILDING,
    CREATE_BUILT,
    CREATE_FINISHED,
    CREATE_SYNCED,
    FAILPOINTS,
    LOCK_FILE,
    check_parts,
    create,
    foreign_names,
    has_changed,
    is_no_folder,
    is_plain,
    is_store,
    is_unfinished,
    is_vacant,
    prepare_folder,
    remove_folder,
    wipe,
)
from stores.errors import (
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.files import read_json, replace_file, sync_folder, sync_tree, system_errors_told
from stores.identity import FILE as IDENTITY_FILE
from stores.identity import Identity, checked_identity
from stores.interface import Durability
from stores.locks import HeldLock, take

__all__ = [
    "CREATE_BUILDING",
    "CREATE_BUILT",
    "CREATE_FINISHED",
    "CREATE_SYNCED",
    "FAILPOINTS",
    "StoreDirectory",
    "boot_id",
    "checked_path",
    "is_store",
    "wipe",
]


class StoreDirectory:
    """An open store's folder, locked for this process until ``close``."""

    def __init__(self, path: Path, identity: Identity, lock: int, durability: Durability, *, tearable: bool) -> None:
        self.path = path
        self.identity = identity
        self._lock: HeldLock | None = HeldLock(lock)
        self._durability = durability
        self._tearable = tearable
        self._unsynced = False
        self.clean = True
        """Whether whoever had the store last closed it."""

    @property
    def data(self) -> Path:
        """The engine's folder."""
        return self.path / "data"

    @property
    def staging(self) -> Path:
        """The folder of the second store, or second stores, which hold what is not committed."""
        return self.path / "data.tmp"

    @classmethod
    def open(
        cls, path: Path, backend: str, durability: Durability, build: Callable[[Path], None], *, tearable: bool
    ) -> Self:
        """Lock the store at ``path``, creating it first where there is none: ``build`` fills its folder.

        ``tearable`` says that power loss may tear the engine at this level.

        Raises: StoreUnavailableError, StoreIncompatibleError, StoreLockedError, and StoreCorruptedError where the
        store was open, at a level that power loss may tear, in an earlier boot of the machine.
        """
        with system_errors_told(path):
            if is_no_folder(path):
                raise StoreUnavailableError(f"{path} is a file, not a store's folder: choose another path")
            directory = cls._made_or_held(path, backend, durability, build, tearable=tearable)
            try:
                if durability is Durability.DISK:
                    # Whoever created it may have been killed before it did so.
                    sync_folder(path.parent)
                directory._check_mark()
                # This syncs the folder as well, from which that one may have removed the marker of its creation.
                directory._write_mark()
            except BaseException:
                directory.give_up()
                raise
        return directory

    @classmethod
    def hold(cls, path: Path, backend: str) -> Self:
        """Lock the store at ``path``, which is there, and leave no mark that it was open; then ``give_up``.

        For who opens its engine at DISK only, which nothing tears. Raises: as ``open``.
        """
        with system_errors_told(path):
            try:
                held = cls._held(path, backend, Durability.DISK, tearable=False)
            except _ChangedError as error:
                raise StoreCorruptedError(f"{path} has been removed: restore it from its changelog") from error
            held.clean = not (path / "open").exists()
        return held

    @classmethod
    def _made_or_held(
        cls, path: Path, backend: str, durability: Durability, build: Callable[[Path], None], *, tearable: bool
    ) -> Self:
        while True:
            is_new = prepare_folder(path)
            with suppress(_ChangedError):
                if _is_to_be_made(path):
                    cls._make(path, backend, build, is_new=is_new)
                return cls._held(path, backend, durability, tearable=tearable)

    @staticmethod
    def _make(path: Path, backend: str, build: Callable[[Path], None], *, is_new: bool) -> None:
        """Create the store, unless another process has done so by the time that its lock is ours."""
        was_cut_short = is_unfinished(path)
        try:
            lock = take(path / LOCK_FILE)
        except FileNotFoundError as error:
            raise _ChangedError from error
        except OSError:
            if is_new:
                with suppress(OSError):
                    path.rmdir()
            raise
        try:
            if is_vacant(path) or is_unfinished(path):
                create(path, backend, build)
        except BaseException:
            with suppress(OSError):
                remove_folder(path)
                if not (is_new or was_cut_short):
                    path.mkdir(exist_ok=True)
            raise
        finally:
            os.close(lock)

    @classmethod
    def _held(cls, path: Path, backend: str, durability: Durability, *, tearable: bool) -> Self:
        # Before anything is touched: what this release can't read is left as it is.
        try:
            _check(path, backend)
        except (FileNotFoundError, StoreCorruptedError, StoreIncompatibleError) as error:
            if has_changed(path, lambda: _check(path, backend)):
                raise _ChangedError from error
            raise
        try:
            lock = take(path / LOCK_FILE)
        except FileNotFoundError as error:
            raise _ChangedError from error
        try:
            # Once more: until the lock was taken another process may have migrated it, or removed it.
            if _is_to_be_made(path):
                raise _ChangedError
            check_parts(path)
            identity = checked_identity(path, backend)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock, durability, tearable=tearable)

    def _check_mark(self) -> None:
        mark = self.path / "open"
        try:
            self.clean = False
            told = read_json(mark)
            if not isinstance(told, dict):
                raise TypeError(f"it is a {type(told).__name__}")
            boot, tearable, unsynced = told["boot"], told["tearable"], told.get("unsynced", False)
        except FileNotFoundError:
            self.clean = True
            return
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptedError(
                f"{mark} can't be read: wipe the store and restore it from its changelog"
            ) from error
        if not tearable:
            return
        if boot != boot_id():
            raise StoreCorruptedError(
                f"{self.path} was open when the machine stopped, at a level of durability that power loss may tear: "
                "wipe the store and restore it from its changelog"
            )
        if unsynced and not self._tearable:
            raise StoreCorruptedError(
                f"the disk has refused to keep {self.path}, so that it can't survive power loss: wipe the store and "
                "restore it from its changelog"
            )
        self._unsynced = unsynced
        # What that process left in the page cache must not be lost under a mark that promises more.
        self._sync()

    def _sync(self) -> None:
        """Sync all there is; where that fails once, the mark says so, and the store counts as torn in the next boot.

        A second try may seem to succeed: the system forgets what it could not write.
        """
        if self._unsynced:
            return
        try:
            sync_tree(self.path)
        except OSError:
            self._unsynced = True
            with suppress(OSError):
                # Only this boot has to know: in the next one the mark counts as it is.
                self._write_mark(durable=False)
            raise

    def _write_mark(self, *, durable: bool = True) -> None:
        mark = {
            "boot": boot_id(),
            "pid": os.getpid(),
            "durability": self._durability,
            "tearable": self._tearable or self._unsynced,
            "unsynced": self._unsynced,
        }
        replace_file(self.path / "open", json.dumps(mark), durable=durable)

    def identify(self, identity: Identity) -> None:
        """Let the store be what ``identity`` says from now on, after syncing all that makes it so. Raises: OSError."""
        sync_tree(self.path)
        replace_file(self.path / IDENTITY_FILE, identity.text())
        self.identity = identity

    def close(self, *, clean: bool) -> None:
        """Give the folder back, whatever happens; ``clean`` says that the engine closed without an error.

        Raises: StoreUnavailableError where the disk refuses; the next one to open it then finds it unclean.
        """
        if self._lock is None:
            return
        try:
            if clean:
                with system_errors_told(self.path):
                    if self._tearable:
                        self._sync()
                    if not self._unsynced:
                        (self.path / "open").unlink(missing_ok=True)
                        # Else power loss might bring it back, and the store would be restored for nothing.
                        sync_folder(self.path)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Close this process's handle of the lock and touch nothing else. May be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


class _ChangedError(Exception):
    """Another process has made or removed the store while it was looked at: look again."""


def _is_to_be_made(path: Path) -> bool:
    """Whether no store is in the folder. Raises: OSError; _ChangedError where the folder has gone."""
    try:
        return is_vacant(path) or is_unfinished(path)
    except FileNotFoundError as error:
        if is_no_folder(path):
            raise
        raise _ChangedError from error


def _check(path: Path, backend: str) -> None:
    """Raises StoreIncompatibleError or StoreCorruptedError unless a store of ``backend`` is in the folder; OSError."""
    if not is_store(path):
        raise StoreIncompatibleError(
            f"{path} is a folder of something else, with {', '.join(foreign_names(path)[:3]) or 'files'} in it: "
            "choose another path; nothing was changed"
        )
    checked_identity(path, backend)
    if os.path.lexists(path / LOCK_FILE) and not is_plain(path / LOCK_FILE):
        raise StoreCorruptedError(
            f"{path / LOCK_FILE} is not the lock file of the store: wipe the store and restore it from its changelog"
        )


def checked_path(path: str | PathLike[str]) -> Path:
    """``path``, absolute: it goes on meaning the same when the process changes its folder.

    Raises: TypeError for what is no path; ConfigError for text that can't be one: with a NUL, or not encodable.
    """
    found = Path(path)
    try:
        found.as_posix().encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{str(path)!r} is no path, since it can't be written in UTF-8: choose another") from error
    if "\0" in found.as_posix():
        raise ConfigError(f"{str(path)!r} is no path, since it has a NUL in it: choose another")
    return found.absolute()


def boot_id() -> str:
    """A name for the machine's present boot; another one after every restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without Linux's own: the moment of boot, to the minute.
        return f"boot-{int((time.time() - time.monotonic()) // 60)}"
