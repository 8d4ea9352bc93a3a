"""A store's folder: what it is, who has it open, and how it comes into being whole or not at all.

    store.json   backend and format version, written once
    lock         held (flock) while the store is open; names the process
    open         there while the store is open: the boot it was opened in, the level, and whether a sync has failed
    data/        the engine's files
    data.tmp/    the second store of a dual store, and ``commit`` the marker of its commit, while there is one

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

from stores.errors import (
    CommitFailedError,
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.failpoints import declare, reach
from stores.interface import Durability

FORMAT_VERSION = 1

CREATE_BUILDING = declare("create.building", "the new store's files are being made beside its final place")
CREATE_BUILT = declare("create.built", "the new store is complete beside its final place, not yet synced")
CREATE_SYNCED = declare("create.synced", "the new store is complete and synced beside its final place")
CREATE_RENAMED = declare("create.renamed", "the new store is at its final place, its parent folder not yet synced")
FAILPOINTS = (CREATE_BUILDING, CREATE_BUILT, CREATE_SYNCED, CREATE_RENAMED)

_PARTS = frozenset({"store", "lock", "open", "data", "commit"})
"""How the names of all that is in a store's folder begin, up to a dot."""


class StoreDirectory:
    """An open store's folder, locked for this process until ``close``."""

    def __init__(self, path: Path, lock: int, durability: Durability, *, tearable: bool) -> None:
        self.path = path
        self._lock = lock
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
        """The folder of the second store, which holds what is not committed."""
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
            _check_identity(path, backend)
            directory = cls(path, _lock(path), durability, tearable=tearable)
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
        new = self.path / "open.new"
        with open(new, "w") as file:
            json.dump(mark, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        new.replace(self.path / "open")
        if durable:
            sync_folder(self.path)

    def close(self, *, clean: bool) -> None:
        """Give the folder back, whatever happens; ``clean`` says that the engine closed without an error.

        Raises: StoreUnavailableError where the disk refuses; the next one to open it then finds it unclean.
        """
        if self._lock < 0:
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
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


@contextmanager
def system_errors_told(path: Path) -> Iterator[None]:
    """Turn what the system refuses in this block into a StoreUnavailableError that says for which file."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(
            f"{error.filename or path}: {error.strerror or error}. Make it writable, make room, or choose another path"
        ) from error


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
        if not path.is_dir() or not (_is_ours(path) or _is_vacant(path)):
            raise StoreIncompatibleError(f"{path} is not a store's folder: nothing was removed")
        # Renamed first, so that a wipe cut short never leaves half a store behind.
        doomed = path.with_name(path.name + ".wiped")
        lock = _lock(path)
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


def make_folder(path: Path) -> None:
    """Make the folder ``path`` and those above it that are missing; their names survive power loss. Raises: OSError."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


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


def _is_ours(path: Path) -> bool:
    """Whether the folder is a store's, also one that has lost its identity: with a lock, data, and nothing foreign."""
    if (path / "store.json").exists():
        return True
    names = {entry.name for entry in path.iterdir()}
    return names >= {"lock", "data"} and {name.split(".")[0] for name in names} <= _PARTS


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
            (new / "store.json").write_text(json.dumps({"backend": backend, "format_version": FORMAT_VERSION}) + "\n")
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


def _check_identity(path: Path, backend: str) -> None:
    identity = path / "store.json"
    if not _is_ours(path):
        raise StoreIncompatibleError(f"{path} is a folder of something else: choose another path; nothing was changed")
    if not identity.exists():
        raise StoreCorruptedError(f"{identity} is gone: wipe the store and restore it from its changelog")
    try:
        told = json.loads(identity.read_text())
        kept, version = told["backend"], int(told["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptedError(
            f"{identity} can't be read: wipe the store and restore it from its changelog"
        ) from error
    if version > FORMAT_VERSION:
        raise StoreIncompatibleError(
            f"{path} has format version {version}; this release reads up to {FORMAT_VERSION}: "
            "open it with a newer release, or wipe the store and restore it from its changelog"
        )
    if kept != backend:
        raise StoreIncompatibleError(
            f"{path} holds a store of the backend {kept!r}, not {backend!r}: open it as that, or choose another path"
        )


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        who = "this process" if holder == str(os.getpid()) else f"process {holder}"
        raise StoreLockedError(f"{path} is open in {who}: close it there first") from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
