"""A store's folder: what it is, who has it open, and how it comes into being whole or not at all.

    store.json   backend, format version and durability-independent facts, written once
    lock         held (flock) while the store is open; names the process
    open         there while the store is open: the boot it was opened in, and the level
    data/        the engine's files; ``data.tmp/`` the second store of a dual store

Creation builds all that in ``NAME.new``, syncs it, renames it and syncs the parent: no engine does the last step,
and LMDB, cut in its first writes, would stay unreadable for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from stores.errors import StoreCorruptedError, StoreIncompatibleError, StoreLockedError, StoreUnavailableError
from stores.failpoints import declare, reach
from stores.interface import Durability

FORMAT_VERSION = 1

CREATE_BUILDING = declare("create.building", "the new store's files are being made beside its final place")
CREATE_BUILT = declare("create.built", "the new store is complete beside its final place, not yet synced")
CREATE_SYNCED = declare("create.synced", "the new store is complete and synced beside its final place")
CREATE_RENAMED = declare("create.renamed", "the new store is at its final place, its parent folder not yet synced")
FAILPOINTS = (CREATE_BUILDING, CREATE_BUILT, CREATE_SYNCED, CREATE_RENAMED)


class StoreDirectory:
    """An open store's folder, locked for this process until ``close``."""

    def __init__(self, path: Path, lock: int, *, tearable: bool) -> None:
        self.path = path
        self._lock = lock
        self._tearable = tearable
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
        try:
            if path.exists() and not path.is_dir():
                raise StoreUnavailableError(f"{path} is a file, not a store's folder: choose another path")
            if _is_vacant(path):
                _create(path, backend, build)
            _check_identity(path, backend)
            directory = cls(path, _lock(path), tearable=tearable)
            try:
                directory._check_mark()
                directory._write_mark(durability)
            except BaseException:
                os.close(directory._lock)
                raise
        except OSError as error:
            raise StoreUnavailableError(
                f"{error.filename or path}: {error.strerror or error}. Make it writable, or choose another path"
            ) from error
        return directory

    def _check_mark(self) -> None:
        mark = self.path / "open"
        if not mark.exists():
            return
        self.clean = False
        try:
            told = json.loads(mark.read_text())
            boot, tearable = told["boot"], told["tearable"]
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
        # What that process left in the page cache must not be lost under a mark that promises more.
        sync_tree(self.path)

    def _write_mark(self, durability: Durability) -> None:
        mark = {"boot": boot_id(), "pid": os.getpid(), "durability": durability, "tearable": self._tearable}
        new = self.path / "open.new"
        with open(new, "w") as file:
            json.dump(mark, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / "open")
        sync_folder(self.path)

    def close(self, *, clean: bool) -> None:
        """Give the folder back; ``clean`` says that the engine closed without an error."""
        if self._lock < 0:
            return
        try:
            if clean:
                if self._tearable:
                    sync_tree(self.path)
                (self.path / "open").unlink(missing_ok=True)
        finally:
            os.close(self._lock)
            self._lock = -1


def wipe(path: Path) -> None:
    """Remove the store at ``path``, or what is left of one. Nothing to do where there is none.

    Raises: StoreLockedError where it is open, StoreIncompatibleError where ``path`` is not a store's folder.
    """
    unfinished = path.with_name(path.name + ".new")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    if not path.exists():
        return
    if not (path / "store.json").exists() and any(path.iterdir()):
        raise StoreIncompatibleError(f"{path} is not a store's folder: nothing was removed")
    lock = _lock(path)
    # Renamed first, so that a wipe cut short never leaves half a store behind.
    doomed = path.with_name(path.name + ".wiped")
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    sync_folder(path.parent)
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


def _create(path: Path, backend: str, build: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # One creator at a time; who comes second finds the store there.
        fcntl.flock(parent, fcntl.LOCK_EX)
        if not _is_vacant(path):
            return
        new = path.with_name(path.name + ".new")
        for leftover in (new, path.with_name(path.name + ".wiped")):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir()
        (new / "lock").touch()
        (new / "store.json").write_text(json.dumps({"backend": backend, "format_version": FORMAT_VERSION}) + "\n")
        reach(CREATE_BUILDING)
        build(new)
        reach(CREATE_BUILT)
        sync_tree(new)
        reach(CREATE_SYNCED)
        new.rename(path)
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
    if not identity.exists():
        raise StoreIncompatibleError(f"{path} is a folder of something else: choose another path; nothing was changed")
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
