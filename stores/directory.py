"""A store's folder: what it is, who has it open, and how it comes into being whole or not at all.

    store.json   backend and format version (see ``stores.identity``)
    lock         held (flock) while the store is open; names the process
    open         there while the store is open: the boot it was opened in, the level, and whether a sync has failed
    data/        the engine's files
    data.tmp/    the second store of a dual store, and ``commit`` the marker of its commit, while there is one;
                 of an indexed batch those of transactions that have outgrown memory, while there are any

Creation builds all that in ``NAME.new``, syncs it, renames it and syncs the parent: no engine does the last step,
and LMDB, cut in its first writes, would stay unreadable for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Self

from stores.descriptors import descriptors_lacking
from stores.errors import (
    CommitFailedError,
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.failpoints import declare, reach
from stores.identity import FILE as IDENTITY_FILE
from stores.identity import Identity, checked_identity, present_version
from stores.interface import Durability
from stores.locks import HeldLock, take

CREATE_BUILDING = declare("create.building", "the new store's files are being made beside its final place")
CREATE_BUILT = declare("create.built", "the new store is complete beside its final place, not yet synced")
CREATE_SYNCED = declare("create.synced", "the new store is complete and synced beside its final place")
CREATE_RENAMED = declare("create.renamed", "the new store is at its final place, its parent folder not yet synced")
FAILPOINTS = (CREATE_BUILDING, CREATE_BUILT, CREATE_SYNCED, CREATE_RENAMED)

_PARTS = frozenset({"store", "lock", "open", "data", "commit"})
"""How the names of all that is in a store's folder begin, up to a dot."""

_REMAINS = (".new", ".wiped")
"""How the names of folders end in which a store is being made or removed."""


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
            if path.exists() and not path.is_dir():
                raise StoreUnavailableError(f"{path} is a file, not a store's folder: choose another path")
            if _is_vacant(path):
                _create(path, backend, build)
            directory = cls._held(path, backend, durability, tearable=tearable)
            try:
                if durability is Durability.DISK:
                    # Whoever created it may have been killed before it did so.
                    sync_folder(path.parent)
                directory._check_mark()
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
            held = cls._held(path, backend, Durability.DISK, tearable=False)
            held.clean = not (path / "open").exists()
        return held

    @classmethod
    def _held(cls, path: Path, backend: str, durability: Durability, *, tearable: bool) -> Self:
        if not is_store(path):
            raise StoreIncompatibleError(
                f"{path} is a folder of something else: choose another path; nothing was changed"
            )
        # Before anything is touched: what this release can't read is left as it is.
        checked_identity(path, backend)
        lock = take(path / "lock")
        try:
            # Once more: until the lock was taken another process may have migrated it.
            identity = checked_identity(path, backend)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock, durability, tearable=tearable)

    def _check_mark(self) -> None:
        mark = self.path / "open"
        if not mark.exists():
            return
        self.clean = False
        try:
            told = json.loads(mark.read_text())
            boot, tearable, unsynced = told["boot"], told["tearable"], told.get("unsynced", False)
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


@contextmanager
def system_errors_told(path: Path) -> Iterator[None]:
    """Turn what the system refuses in this block into a StoreUnavailableError that says for which file."""
    try:
        yield
    except OSError as error:
        advice = descriptors_lacking() or "Make it writable, make room, or choose another path"
        raise StoreUnavailableError(f"{error.filename or path}: {error.strerror or error}. {advice}") from error


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


def wipe(path: Path) -> None:
    """Remove the store at ``path``, or what is left of one. Nothing to do where there is none.

    Raises: StoreLockedError where it is open, StoreIncompatibleError where ``path`` is not a store's folder,
    StoreUnavailableError where the disk refuses.
    """
    with system_errors_told(path):
        unfinished = path.with_name(path.name + ".new")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        if not path.exists():
            return
        if not path.is_dir() or not (is_store(path) or _is_vacant(path)):
            raise StoreIncompatibleError(f"{path} is not a store's folder: nothing was removed")
        # Renamed first, so that a wipe cut short never leaves half a store behind.
        doomed = path.with_name(path.name + ".wiped")
        lock = take(path / "lock")
        try:
            if doomed.exists():
                shutil.rmtree(doomed)
            path.rename(doomed)
            sync_folder(path.parent)
        finally:
            os.close(lock)
        shutil.rmtree(doomed)


def boot_id() -> str:
    """A name for the machine's present boot; another one after every restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import time

        # Without Linux's own: the moment of boot, to the minute.
        return f"boot-{int((time.time() - time.monotonic()) // 60)}"


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make the folder ``path`` and those above it that are missing; their names survive power loss.

    ``mode`` is that of ``path`` where it is made here, less what the process's mask takes away. Raises: OSError.
    """
    missing = []
    folder = path
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode if folder == path else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Put a file with ``text`` at ``path`` in one move; unless ``durable``, power loss may tear it. Raises: OSError."""
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make everything below ``path`` survive power loss: each file, then each folder."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            _sync_file(Path(folder, name))
        sync_folder(Path(folder))


def _is_vacant(path: Path) -> bool:
    return not path.exists() or not any(path.iterdir())


def is_store(path: Path) -> bool:
    """Whether the folder is a store's, also one that has lost its identity, or what is left of one that was cut short.

    It has a lock, data, and nothing foreign. Raises: OSError.
    """
    if (path / IDENTITY_FILE).exists():
        return True
    names = {entry.name for entry in path.iterdir()}
    complete = names >= {"lock", "data"} or path.suffix in _REMAINS
    return complete and {name.split(".")[0] for name in names} <= _PARTS


def _create(path: Path, backend: str, build: Callable[[Path], None]) -> None:
    make_folder(path.parent)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # One creator at a time; who comes second finds the store there.
        fcntl.flock(parent, fcntl.LOCK_EX)
        if not _is_vacant(path):
            return
        new = path.with_name(path.name + ".new")
        for leftover in (new, path.with_name(path.name + ".wiped")):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            new.mkdir()
            (new / "lock").touch()
            (new / IDENTITY_FILE).write_text(Identity(backend, present_version()).text())
            reach(CREATE_BUILDING)
            build(new)
            reach(CREATE_BUILT)
            sync_tree(new)
            reach(CREATE_SYNCED)
            new.rename(path)
        except (CommitFailedError, StoreCorruptedError) as error:
            # Nothing is there yet that could be damaged.
            raise StoreUnavailableError(f"{path} can't be created: {error.__cause__ or error}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
        reach(CREATE_RENAMED)
        os.fsync(parent)
    finally:
        os.close(parent)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
