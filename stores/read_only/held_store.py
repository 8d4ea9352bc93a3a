"""A store on disk without opening it: its folder, its identity and its state; nothing in it is changed or recovered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stores.changelog.schema import is_changelog
from stores.errors import StoreIncompatibleError, StoreLockedError, StoreUnavailableError
from stores.files.creation import LOCK_FILE, check_parts, is_store, is_unfinished, is_unused
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
from stores.files.locks import take_shared
from stores.files.plain_files import translated_system_errors
from stores.registry import Backend, backend_named

_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
_STORES_SHOWN = 5


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


@contextmanager
def held(path: Path) -> Iterator[DiskStore]:
    """Hold the store in the folder ``path``.

    Raises: StoreUnavailableError, StoreIncompatibleError if there is none; StoreCorruptedError; StoreTooNewError;
    ConfigError for a backend of a package that is not installed.
    """
    with translated_system_errors(path):
        check_is_store(path)
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


def check_is_store(path: Path) -> None:
    if not path.exists():
        raise StoreUnavailableError(f"{path} does not exist: name the folder of a store")
    if not path.is_dir():
        what = "the file of a changelog, which only inspect and dump read" if is_changelog(path) else "a file"
        raise StoreIncompatibleError(f"{path} is {what}: name the folder of a store")
    if is_unfinished(path):
        raise StoreUnavailableError(f"the store in {path} was never complete, or is being removed: there is no data")
    if not is_store(path):
        if is_unused(path):
            raise StoreUnavailableError(f"{path} is empty: no store was made in it yet")
        if is_store(path):
            return  # A process has made it meanwhile.
        inner = stores_below(path)
        there = f". There are stores below it: {', '.join(map(str, inner[:_STORES_SHOWN]))}" if inner else ""
        raise StoreIncompatibleError(f"{path} is not a store's folder: name the folder of a store{there}")


def stores_below(path: Path) -> list[Path]:
    """Return the folders of stores below ``path``, in order, as deep as a state directory has them."""
    return sorted({file.parent for depth in _DEPTHS for file in path.glob(f"{depth}/{IDENTITY_FILE}")})
