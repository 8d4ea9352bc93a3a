"""The library's own files and folders: made exclusively, replaced atomically, synced by name, never through a link.

A link, a pipe or a folder where one of our files belongs is never followed, waited for or written to.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stores.errors import StoreIncompatibleError, StoreUnavailableError
from stores.process import descriptors_lacking

SMALL_BYTES_MAX = 64 << 10
"""The limit for small files, such as a store's identity and its lock; all that the library writes are shorter."""

_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""The error numbers for a link that is not followed, for a folder, and for a socket."""
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a file",
}


class StrangeFileError(ValueError):
    """A file, link or folder that the library never makes is in the place of one of its files."""


@contextmanager
def translated_system_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of this block as a StoreUnavailableError that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        advice = descriptors_lacking() or "Make it writable, make room, or choose another path"
        raise StoreUnavailableError(f"{error.filename or path}: {error.strerror or error}. {advice}") from error
    except StrangeFileError as error:
        raise StoreUnavailableError(f"{error}. Remove it, or choose another path") from error


def open_plain(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open the file ``path`` itself, and return its descriptor; ``flags`` and ``mode`` are those of ``os.open``.

    Raises: OSError; StrangeFileError if it is not a regular file; it is then neither read nor changed.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in _NO_FILE and os.path.lexists(path):
            raise _strange(path, os.lstat(path).st_mode) from error
        raise
    file_mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(file_mode):
        os.close(descriptor)
        raise _strange(path, file_mode)
    return descriptor


def read_file(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """Return the content of the file ``path``, of at most ``bytes_max`` bytes.

    Raises: OSError; StrangeFileError where it is no regular file, or longer.
    """
    content = read_head(path, bytes_max + 1)
    if len(content) > bytes_max:
        raise StrangeFileError(f"{path} has more than {bytes_max:,} bytes, which the library never writes there")
    return content


def read_head(path: Path, num_bytes: int) -> bytes:
    """Return the first ``num_bytes`` of the file ``path``, or all of it. Raises: OSError; StrangeFileError."""
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        content = os.read(descriptor, num_bytes)
        while 0 < len(content) < num_bytes and (more := os.read(descriptor, num_bytes - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def read_json(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> object:
    """Return the content of the JSON file ``path``, of at most ``bytes_max`` bytes.

    Raises: OSError; ValueError if it is not JSON, or is nested too deeply.
    """
    return parsed_json(read_file(path, bytes_max))


def parsed_json(text: bytes | str) -> object:
    """Return what ``text`` has as JSON. Raises: ValueError if it is not JSON, or is nested too deeply."""
    try:
        value: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    return value


def make_file(path: Path, mode: int = 0o666) -> int:
    """Make the empty file ``path``, and return its descriptor, open for writing.

    A leftover of that name is removed first: use it for names that are the library's own. Raises: OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_plain(path, flags, mode)
    except FileExistsError:
        path.unlink()
        return open_plain(path, flags, mode)


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Put a file with ``text`` at ``path`` as ``atomic_write`` does. Raises: OSError."""
    atomic_write(path, text.encode(), durable=durable)


def atomic_write(
    path: Path, content: bytes, *, durable: bool = True, before_sync: Callable[[], None] | None = None
) -> None:
    """Put a file with ``content`` at ``path`` in one step; unless ``durable``, power loss may tear it. Raises: OSError.

    It is written beside ``path``, synced, renamed, and its folder synced. ``before_sync`` is called once it is written.
    """
    new = path.with_name(path.name + ".new")
    with open(make_file(new), "wb") as file:
        file.write(content)
        file.flush()
        if before_sync is not None:
            before_sync()
        if durable:
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        sync_folder(path.parent)


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


def remove(path: Path) -> None:
    """Remove the file, link or folder ``path``, if it exists. Raises: OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_durably(file: Path) -> None:
    """Remove ``file``, if it exists; its name does not survive power loss. Raises: OSError."""
    if os.path.lexists(file):
        file.unlink()
        sync_folder(file.parent)


def check_plain(path: Path, *, folder: bool) -> None:
    """Check that ``path`` is a regular file or, if ``folder``, a folder with only regular files and folders below it.

    A missing file or folder passes. Raises: OSError; StrangeFileError.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise _strange(path, mode)
    if folder:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    check_plain(Path(entry.path), folder=entry.is_dir(follow_symlinks=False))


def check_no_link(root: Path, path: Path) -> None:
    """Check that ``path`` lies below the folder ``root``, without a link on the way from there; parts may be missing.

    So nothing outside of ``root`` is opened, renamed or removed under such a path. ``root`` itself may be a link.
    Raises: StoreIncompatibleError; OSError.
    """
    if not path.is_relative_to(root) or ".." in path.relative_to(root).parts:
        raise StoreIncompatibleError(f"{path} is not inside of {root}: nothing was opened or changed there")
    for number in range(len(root.parts), len(path.parts)):
        part = Path(*path.parts[: number + 1])
        if part.is_symlink():
            raise StoreIncompatibleError(
                f"{part} is a link, and nothing in {root} is opened, moved or removed through a link: put what it "
                "names in its place. Nothing was changed"
            )


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make everything below ``path`` survive power loss: each file, then each folder. Links are left alone."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            _sync_file(Path(folder, name))
        sync_folder(Path(folder))


def _sync_file(path: Path) -> None:
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except StrangeFileError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _strange(path: Path, mode: int) -> StrangeFileError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a device")
    return StrangeFileError(f"{path} is {kind}, which the library never creates there")
