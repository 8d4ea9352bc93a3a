"""Create and remove a store in its folder: all of it or nothing, and no foreign file.

Both happen in place, under the store's lock. The file ``unfinished`` says that the store in the folder is incomplete.
It is written and synced before the first of the store's files is created or removed. It is removed after the last of
them is synced, or removed. A process that finds it removes the store's files and starts over. Foreign files stay.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from stores.errors import CommitFailedError, StoreCorruptedError, StoreIncompatibleError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.identity import IDENTITY_FILE, Identity, present_version
from stores.files.locks import is_lock_file, take
from stores.files.plain_files import (
    StrangeFileError,
    check_plain,
    make_file,
    make_folder,
    read_file,
    read_json,
    remove,
    replace_file,
    sync_folder,
    sync_tree,
    translated_system_errors,
)
from stores.process import descriptors_lacking

CREATE_BUILDING = declare(
    "create.building", "the new store's files are being made, in a folder that does not count", part=Part.CREATION
)
CREATE_BUILT = declare(
    "create.built", "the new store is complete, not yet synced, and does not count", part=Part.CREATION
)
CREATE_SYNCED = declare(
    "create.synced", "the new store is complete and synced, and does not count yet", part=Part.CREATION
)
CREATE_FINISHED = declare(
    "create.finished", "the new store counts, which is not yet synced, nor is its name", part=Part.CREATION
)
FAILPOINTS = (CREATE_BUILDING, CREATE_BUILT, CREATE_SYNCED, CREATE_FINISHED)

LOCK_FILE, _MARKER = "lock", "unfinished"
_MARKER_TEXT = b"A store is being made or removed in this folder: nothing of it counts yet, or any more.\n"
_NEW_MARKER = f"{_MARKER}.new"
DAMAGE_FILE = "damaged"
_FILES = (
    IDENTITY_FILE,
    "open",
    "commit",
    DAMAGE_FILE,
    *(f"{name}.new" for name in (IDENTITY_FILE, "open", "commit", _MARKER)),
)
CAPTURED = "data.snapshot"
"""The folder of a snapshot that is being sent elsewhere, or of changes that are fetched from one. It counts for nothing
when the store is opened."""
_FOLDERS = ("data", "data.tmp", "data.flush", "data.tmp.flush", CAPTURED)
_PARTS = frozenset({*_FILES, *_FOLDERS, LOCK_FILE, _MARKER})
"""The names of the store's own files and folders in its folder."""
_HIDDEN = (".fuse_hidden", ".nfs")
"""The beginnings of the names under which FUSE and NFS keep a file that was removed while it was open."""
_TRIES, _PAUSE_S = 20, 0.01


def is_store(path: Path) -> bool:
    """Return True if the folder is a store's, even if that is damaged, or its creation or removal was interrupted.

    It has a store's identity file or marker, or a store's lock and data and no foreign files. Raises: OSError.
    """
    if is_unfinished(path) or _has_identity(path):
        return True
    if foreign_names(path) or not _names(path) >= {LOCK_FILE, "data"}:
        return False
    return is_lock_file(path / LOCK_FILE) and not _has_other_identity(path)


def is_complete(path: Path) -> bool:
    """Return True if there is a store at ``path`` that is neither being made nor removed. Raises: OSError."""
    return path.is_dir() and not is_unused(path) and not is_unfinished(path)


def foreign_names(path: Path) -> list[str]:
    """Return the names in the store's folder ``path`` that are not the store's, in order. Raises: OSError."""
    return sorted(_names(path) - _PARTS)


def is_unused(path: Path) -> bool:
    """Return True if the folder has no files except those that a creation makes first. Raises: OSError."""
    names = _names(path)
    if names - {LOCK_FILE, _NEW_MARKER}:
        return False
    # Files of those names may be foreign: they are the library's if they have the content that it writes.
    marker = _content(path / _NEW_MARKER)
    return is_lock_file(path / LOCK_FILE) and marker is not None and _is_torn_marker(marker)


def is_unfinished(path: Path) -> bool:
    """Return True if the folder has an incomplete store: one that was being made or removed. Raises: OSError."""
    if _content(path / _MARKER) == _MARKER_TEXT:
        return True
    # What ``_mark_wiped`` leaves on a full disk.
    return not os.path.lexists(path / IDENTITY_FILE) and _has_identity(path, _MARKER)


def check_parts(path: Path) -> None:
    """Check that the store in the folder ``path`` is made of plain files and folders, before any of them is opened.

    Raises: OSError; StoreCorruptedError if a link, a pipe or the like has the name of one.
    """
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name in _FOLDERS or (entry.name in _FILES and not entry.is_file(follow_symlinks=False)):
                    check_plain(Path(entry.path), folder=entry.name in _FOLDERS)
    except StrangeFileError as error:
        raise StoreCorruptedError(f"{error}: wipe the store and restore it from its changelog") from error


def create(path: Path, backend: str, build: Callable[[Path], None]) -> None:
    """Make a new store in the folder ``path``, whose lock is held; ``build`` makes its data there.

    Files of an incomplete store are removed first. After an error only the lock file is left.

    Raises: OSError; StoreUnavailableError; errors of ``build``.
    """
    try:
        _put_marker(path)
        _clear(path)
        with open(make_file(path / IDENTITY_FILE), "w", encoding="utf-8") as file:
            file.write(Identity(backend, present_version()).text())
        reach(CREATE_BUILDING)
        build(path)
        reach(CREATE_BUILT)
        sync_tree(path)
        reach(CREATE_SYNCED)
        (path / _MARKER).unlink()
    except BaseException as error:
        with suppress(OSError):
            _clear(path)
            _remove_marker(path)
        if isinstance(error, CommitFailedError | StoreCorruptedError):
            # A store that was never complete can't be damaged.
            reason = str(error.__cause__ or error)
            raise StoreUnavailableError(
                f"{path} can't be created: {reason}. {descriptors_lacking(reason)}".rstrip()
            ) from error
        raise
    reach(CREATE_FINISHED)
    sync_folder(path)
    sync_folder(path.parent)


def wipe(path: Path) -> None:
    """Remove the store at ``path``, complete or not; do nothing if there is none.

    Foreign files stay, and so does the folder then: it still counts as a store's, and a store can be made there again.

    Raises: StoreLockedError if it is open; StoreIncompatibleError if ``path`` is not a store's folder;
    StoreUnavailableError on a disk error.
    """
    with translated_system_errors(path):
        if not _may_be_wiped(path):
            return
        with suppress(FileNotFoundError):
            if not is_plain(path / LOCK_FILE):
                # Something else than a lock file is not held by any process.
                remove(path / LOCK_FILE)
        try:
            lock = take(path / LOCK_FILE)
        except FileNotFoundError:
            # Another process has just removed it.
            return
        try:
            # Check again: before the lock was taken, another process may have replaced the store by something else.
            if is_store(path):
                _mark_wiped(path)
                _clear(path)
                _remove_marker(path)
        except BaseException:
            os.close(lock)
            raise
        remove_folder(path, lock)
        with suppress(FileNotFoundError):
            sync_folder(path.parent)


def _may_be_wiped(path: Path) -> bool:
    """Return True if anything is at ``path``. Raises: StoreIncompatibleError for what is no store's folder; OSError."""
    while os.path.lexists(path):
        # A missing part means that another process is removing the store: look again.
        with suppress(FileNotFoundError):
            if not is_no_folder(path) and (is_store(path) or is_unused(path)):
                return True
            if is_no_folder(path) or not has_changed(path, lambda: None if is_store(path) else _refuse_wipe(path)):
                _refuse_wipe(path)
    return False


def _refuse_wipe(path: Path) -> NoReturn:
    raise StoreIncompatibleError(f"{path} is not a store's folder: nothing was removed")


def has_changed(path: Path, check: Callable[[], None]) -> bool:
    """Return whether another process that creates or removes a store caused the error of ``check`` at ``path``.

    ``check`` may have seen an incomplete folder. So it is called again with the store's lock held, unless the lock file
    may be foreign. Raises: StoreLockedError if that process is still working; OSError.
    """
    try:
        if is_unused(path) or is_unfinished(path):
            return True
        if not os.path.lexists(path / LOCK_FILE):
            # The lock file is removed last, together with the folder.
            return is_unused(path)
        if foreign_names(path) or not is_lock_file(path / LOCK_FILE):
            return False
        lock = take(path / LOCK_FILE, note=False)
    except FileNotFoundError:
        return True
    try:
        if not (is_unused(path) or is_unfinished(path)):
            check()
    except (FileNotFoundError, StoreCorruptedError, StoreIncompatibleError):
        return False
    finally:
        os.close(lock)
    return True


def is_no_folder(path: Path) -> bool:
    """Return True if something is at ``path`` that is no folder, nor a link to one. Raises: OSError."""
    try:
        # A single call: another process may create or remove the folder between two.
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return path.is_symlink()


def remove_folder(path: Path, lock: int) -> None:
    """Remove the folder ``path`` if it has neither a store nor foreign files, and release its lock in any case.

    ``lock`` is the descriptor of the lock. It is closed before the folder is removed: FUSE and NFS keep a file that is
    open at its removal in its folder, under a name of their own, until it is closed. Another process may create a store
    here by then, and has a folder that is not empty, or makes it again. A link to a folder stays. Raises: OSError.
    """
    try:
        unused = is_unused(path)
        if unused:
            remove(path / _NEW_MARKER)
            (path / LOCK_FILE).unlink(missing_ok=True)
    finally:
        os.close(lock)
    if unused:
        remove_empty(path)


def remove_empty(path: Path) -> None:
    """Remove the folder if it is empty, or soon will be: FUSE learns later that a file was closed."""
    for _ in range(_TRIES):
        try:
            path.rmdir()
        except OSError:
            with suppress(OSError):
                if (names := os.listdir(path)) and all(name.startswith(_HIDDEN) for name in names):
                    time.sleep(_PAUSE_S)
                    continue
        return


def prepare_folder(path: Path) -> bool:
    """Make the folder ``path`` unless it exists; return whether it was made. Raises: OSError."""
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def is_plain(path: Path) -> bool:
    """Return True if ``path`` is a regular file. Raises: OSError, also where there is none."""
    try:
        check_plain(path, folder=False)
    except StrangeFileError:
        return False
    return True


def _put_marker(path: Path) -> None:
    """Mark the store as incomplete; the mark survives power loss."""
    # Replace it even if it exists: the process that wrote it may have been killed before the sync.
    replace_file(path / _MARKER, _MARKER_TEXT.decode())


def _mark_wiped(path: Path) -> None:
    """Mark the store as incomplete before its removal, even on a full disk: a removal may serve to make room."""
    try:
        _put_marker(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remove(path / _NEW_MARKER)
        # Without its identity file the folder is not a store.
        if _has_identity(path):
            (path / IDENTITY_FILE).replace(path / _MARKER)
            sync_folder(path)


def _remove_marker(path: Path) -> None:
    """Remove the marker after the removal of the store's files is durable; beside foreign files it stays."""
    sync_folder(path)
    if not foreign_names(path):
        (path / _MARKER).unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove all files of the store except its lock and the marker."""
    for name in (*_FILES, *_FOLDERS):
        remove(path / name)


def _names(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if not name.startswith(_HIDDEN)}


def _content(file: Path) -> bytes | None:
    """Return the content of a small file; empty if there is none, None if the library did not write it."""
    try:
        return read_file(file, len(_MARKER_TEXT))
    except FileNotFoundError:
        return b""
    except StrangeFileError:
        return None


def _is_torn_marker(content: bytes) -> bool:
    """Return whether the content may be a torn write of the marker: a part of it, or zeros in its place."""
    return all(byte in (0, own_byte) for byte, own_byte in zip(content, _MARKER_TEXT, strict=False))


def _has_other_identity(path: Path) -> bool:
    """Return True if the identity file is foreign JSON, which has none of the fields that the library writes."""
    try:
        content = read_json(path / IDENTITY_FILE)
    except (FileNotFoundError, ValueError):
        return False
    return not isinstance(content, dict) or not {"backend", "format_version", "checksum"} & content.keys()


def _has_identity(path: Path, name: str = IDENTITY_FILE) -> bool:
    try:
        content = read_json(path / name)
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(content, dict) and isinstance(content.get("backend"), str) and "format_version" in content
