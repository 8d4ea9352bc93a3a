"""A store's folder: its files, its lock, and its atomic creation.

    store.json   backend and format version (see ``stores.files.identity``)
    lock         held (flock) while the store is open; names the process
    open         exists while the store is open: the boot it was opened in, the level, and whether a sync has failed
                 (see ``stores.files.identity``)
    unfinished   exists while the store is created or removed: nothing in the folder counts (see ``creation``)
    data/        the engine's files
    data.tmp/    the staging store of a dual store; the spills of an indexed batch, while there are any
    commit       the commit marker of a dual store, while there is one
    damaged      the damage that a reader has found, until the store is checked (``stores.tasks.stores.log_follower``)

Anything else in the folder is foreign, and is not touched.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Self

from stores.engines.engine import Engine
from stores.errors import (
    CommitFailedError,
    ConfigError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from stores.failpoints import Part, declare, reach
from stores.files.creation import (
    DAMAGE_FILE,
    LOCK_FILE,
    check_parts,
    create,
    foreign_names,
    has_changed,
    is_no_folder,
    is_plain,
    is_store,
    is_unfinished,
    is_unused,
    prepare_folder,
    remove_folder,
)
from stores.files.identity import (
    IDENTITY_FILE,
    MARK_FILE,
    STEPS,
    Identity,
    OpenEngine,
    boot_id,
    check_not_torn,
    checked_identity,
    is_durable,
    present_version,
    read_mark,
    write_mark,
)
from stores.files.locks import FileLock, take
from stores.files.plain_files import (
    replace_file,
    sync_folder,
    sync_tree,
    translated_system_errors,
)
from stores.interface import Durability

_log = logging.getLogger(__name__)

STEP_DONE = declare(
    "migration.step_done", "a store's files have the next format, its identity names the one before", part=Part.CHANGE
)
STEP_NOTED = declare("migration.step_noted", "a store's identity names the next format", part=Part.CHANGE)
MIGRATION_FAILPOINTS = (STEP_DONE, STEP_NOTED)
"""The failpoints in the opening of an older store, reached once for each step."""


class StoreDirectory:
    """An open store's folder, locked for this process until ``close``."""

    def __init__(self, path: Path, identity: Identity, lock: int, durability: Durability, *, tearable: bool) -> None:
        self.path = path
        self.identity = identity
        self._lock: FileLock | None = FileLock(lock)
        self._durability = durability
        self._tearable = tearable
        self._unsynced = False
        self._boot = boot_id()
        self.clean = True
        """True if the store was closed by the last process that had it open."""

    @property
    def data(self) -> Path:
        """The engine's folder."""
        return self.path / "data"

    @property
    def staging(self) -> Path:
        """The folder of the staging store or of spills, which hold uncommitted data."""
        return self.path / "data.tmp"

    @classmethod
    def open(
        cls, path: Path, backend: str, durability: Durability, build: Callable[[Path], None], *, tearable: bool
    ) -> Self:
        """Lock the store at ``path``. If there is none, create it: ``build`` fills its folder.

        ``tearable`` is True if power loss may tear the engine at this level.

        Raises: StoreUnavailableError, StoreIncompatibleError, StoreLockedError; StoreCorruptedError if the store was
        open in an earlier boot of the machine, at a level that power loss may tear.
        """
        with translated_system_errors(path):
            if is_no_folder(path):
                raise StoreUnavailableError(f"{path} is a file, not a store's folder: choose another path")
            directory = cls._open_or_create(path, backend, durability, build, tearable=tearable)
            try:
                if durability is Durability.DISK:
                    # The process that created the store may have been killed before this sync.
                    sync_folder(path.parent)
                if not directory._check_mark():
                    # This also syncs the folder, from which that process may have removed the marker of the creation.
                    directory._write_mark()
            except BaseException:
                directory.release()
                raise
        return directory

    @classmethod
    def lock_existing(cls, path: Path, backend: str) -> Self:
        """Lock the existing store at ``path`` without a mark that it is open. Call ``release`` afterwards.

        Use it only to open the engine at DISK, which power loss does not tear. Raises: as ``open``.
        """
        with translated_system_errors(path):
            try:
                directory = cls._open_existing(path, backend, Durability.DISK, tearable=False)
            except _ChangedError as error:
                raise StoreCorruptedError(f"{path} was removed: restore it from its changelog") from error
            directory.clean = not (path / MARK_FILE).exists()
        return directory

    @classmethod
    def _open_or_create(
        cls, path: Path, backend: str, durability: Durability, build: Callable[[Path], None], *, tearable: bool
    ) -> Self:
        while True:
            is_new = prepare_folder(path)
            with suppress(_ChangedError):
                if _is_to_be_made(path):
                    cls._make(path, backend, build, is_new=is_new)
                return cls._open_existing(path, backend, durability, tearable=tearable)

    @staticmethod
    def _make(path: Path, backend: str, build: Callable[[Path], None], *, is_new: bool) -> None:
        """Create the store, unless another process has created it before its lock was taken here."""
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
            if is_unused(path) or is_unfinished(path):
                create(path, backend, build)
        except BaseException:
            with suppress(OSError):
                remove_folder(path, lock)
                if not (is_new or was_cut_short):
                    path.mkdir(exist_ok=True)
            raise
        os.close(lock)

    @classmethod
    def _open_existing(cls, path: Path, backend: str, durability: Durability, *, tearable: bool) -> Self:
        # Check before any change: a store that this release can't read stays unchanged.
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
            # Check again: another process may have migrated or removed the store before the lock was taken.
            if _is_to_be_made(path):
                raise _ChangedError
            check_parts(path)
            identity = checked_identity(path, backend)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock, durability, tearable=tearable)

    def _check_mark(self) -> bool:
        """Check the mark that an earlier process has left. Return True if it is also the mark of this process.

        Raises: StoreCorruptedError; OSError.
        """
        self.clean = False
        mark = read_mark(self.path)
        if mark is None:
            self.clean = True
            return False
        if not mark["tearable"]:
            return False
        check_not_torn(self.path, mark, self._boot)
        unsynced = mark.get("unsynced", False)
        if unsynced and not self._tearable:
            raise StoreCorruptedError(
                f"a sync of {self.path} has failed, so its data may not be on disk: wipe the store and restore it "
                "from its changelog"
            )
        self._unsynced = unsynced
        # Pending data of that process must not be lost under a mark with a higher level. If this level may tear it as
        # well, the mark continues to say so, and closing syncs.
        if not self._tearable:
            self._sync()
        return is_durable(self.path, mark, self._mark())

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
                # A sync is not needed: the new mark matters in this boot only.
                self._write_mark(durable=False)
            raise

    def _mark(self) -> dict[str, object]:
        return {
            "boot": self._boot,
            "pid": os.getpid(),
            "durability": self._durability,
            "tearable": self._tearable or self._unsynced,
            "unsynced": self._unsynced,
        }

    def _write_mark(self, *, durable: bool = True) -> None:
        write_mark(self.path, self._mark(), durable=durable)

    def identify(self, identity: Identity) -> None:
        """Replace the store's identity by ``identity``, after syncing all its files. Raises: OSError."""
        sync_tree(self.path)
        replace_file(self.path / IDENTITY_FILE, identity.text())
        self.identity = identity

    def close(self, *, clean: bool) -> None:
        """Release the folder, even after an error. ``clean`` is True if the engine was closed without an error.

        Raises: StoreUnavailableError on a disk error; the next opening then finds the store unclean.
        """
        if self._lock is None:
            return
        try:
            if clean:
                with translated_system_errors(self.path):
                    if self._tearable:
                        self._sync()
                    if not self._unsynced:
                        (self.path / MARK_FILE).unlink(missing_ok=True)
                        # Otherwise power loss might bring the mark back, and the store would be restored needlessly.
                        sync_folder(self.path)
        finally:
            self.release()

    def note_damage(self, text: str) -> None:
        """Note the damage that a reader has found, for the next opening by a task. For any thread.

        The first note stays. A disk that takes no note is no error: the reader raises that of the damage.
        """
        file = self.path / DAMAGE_FILE
        with suppress(OSError):
            with open(file, "x", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
            _log.warning("a reader has found damage, which the next opening of the task restores: %s (%s)", text, file)

    def release(self) -> None:
        """Close this process's handle of the lock and touch nothing else. May be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def migrate(directory: StoreDirectory, open_engine: OpenEngine) -> None:
    """Bring the store in ``directory``, which is locked and not newer than this release, to the present format.

    One step comes after the other. A step's changes are synced before ``store.json`` names the new version, which is
    replaced atomically. After an interruption the next opening finds the older version and repeats the step.

    Raises: StoreUnavailableError on a disk error, after which the next opening continues; the errors of the steps.
    Source: KIP-892, "Upgrading"; KIP-258, ``upgrade``.
    """

    def verified(folder: Path) -> Engine:
        # Damaged data must not be rewritten with a new, valid checksum.
        engine = open_engine(folder)
        try:
            engine.verify()
        except BaseException:
            with suppress(StoreError):
                engine.close()
            raise
        return engine

    while (version := directory.identity.format_version) < present_version():
        try:
            with translated_system_errors(directory.path):
                STEPS[version - 1](directory.path, verified)
                reach(STEP_DONE)
                directory.identify(directory.identity._replace(format_version=version + 1))
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"{directory.path} could not be migrated from format version {version} to {version + 1}: {error}. "
                "Correct the cause and open the store again"
            ) from error
        reach(STEP_NOTED)


class _ChangedError(Exception):
    """Another process has created or removed the store during a check: check again."""


def _is_to_be_made(path: Path) -> bool:
    """Return True if no store is in the folder. Raises: OSError; _ChangedError if the folder was removed."""
    try:
        return is_unused(path) or is_unfinished(path)
    except FileNotFoundError as error:
        if is_no_folder(path):
            raise
        raise _ChangedError from error


def _check(path: Path, backend: str) -> None:
    """Check that a store of ``backend`` is there. Raises: StoreIncompatibleError, StoreCorruptedError; OSError."""
    try:
        checked_identity(path, backend)
    except StoreCorruptedError as error:
        # A folder with a readable identity is a store's.
        if is_store(path):
            raise
        raise StoreIncompatibleError(
            f"{path} is not a store's folder: it contains {', '.join(foreign_names(path)[:3]) or 'files'}. "
            "Choose another path; nothing was changed"
        ) from error
    if os.path.lexists(path / LOCK_FILE) and not is_plain(path / LOCK_FILE):
        raise StoreCorruptedError(
            f"{path / LOCK_FILE} is not the lock file of the store: wipe the store and restore it from its changelog"
        )


def checked_path(path: str | PathLike[str]) -> Path:
    """Return ``path`` as an absolute path, which stays valid when the process changes its working folder.

    Raises: TypeError if it is no path; ConfigError for text that can't be one: empty, with a NUL, or not encodable.
    """
    if path == "":
        raise ConfigError("a path is not empty: name a folder, or write '.' for the working folder")
    try:
        folder = Path(path)
    except TypeError as error:
        raise TypeError(f"a path is a str or an os.PathLike of one, not {type(path).__name__}") from error
    try:
        folder.as_posix().encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{str(path)!r} is not a valid path, because it can't be encoded as UTF-8: choose another one"
        ) from error
    if "\0" in folder.as_posix():
        raise ConfigError(f"{str(path)!r} is not a valid path, because it contains NUL: choose another one")
    return folder.absolute()
