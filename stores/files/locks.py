"""Lock files: one owner at a time. The system releases the lock when the owner's process ends.

The lock is the system's (flock), not the file: the file of a process that has ended blocks nobody.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from contextlib import suppress
from pathlib import Path

from stores.errors import StoreLockedError
from stores.files.plain_files import StrangeFileError, open_plain, read_file

TIMEOUT_S = 30.0
"""The time to wait for a lock that is usually held for milliseconds."""
_PAUSE_S = 0.01
_NUMBER_BYTES_MAX = 32


def take(file: Path, *, note: bool = True) -> int:
    """Lock ``file``, which is created if it does not exist. Return a descriptor: closing it releases the lock.

    ``note`` writes this process's number into the file, for the error in other processes. Without it the file is not
    changed.
    Raises: OSError; StrangeFileError if it is a link or no regular file; StoreLockedError if any process, this one
    included, holds it. If the number can't be written, a lock file that was just made is removed again.
    """
    while True:
        descriptor, is_new = _opened(file)
        try:
            _lock(descriptor, file)
            if not _is_still_there(descriptor, file):
                # The former owner has removed the folder: a lock on a removed file excludes nobody.
                os.close(descriptor)
                continue
            if note:
                try:
                    _note(descriptor, f"{os.getpid()}\n".encode())
                except OSError:
                    if is_new:
                        file.unlink()
                    raise
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def take_shared(file: Path) -> int:
    """Lock ``file``, which exists, without a change, beside others that do so. Return a descriptor, as ``take``.

    A file that can only be read is enough. Raises: OSError; StrangeFileError; StoreLockedError if a process has the
    store open.
    """
    descriptor = open_plain(file, os.O_RDONLY)
    try:
        _lock(descriptor, file, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class FileLock:
    """A lock that ``take`` has returned, held until ``close``; where the system allows it, without a descriptor.

    A lock belongs to the open file, which a mapping keeps open when its descriptor is closed. A process has few
    descriptors (often 1,024, at most some thousands), and each store of it has a lock. Source: flock(2); mmap(2).
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._address = _mapped(descriptor)
        if self._address:
            self._descriptor = -1
            os.close(descriptor)

    def close(self) -> None:
        """Release the lock. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, -1
        address, self._address = self._address, 0
        if address:
            _LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE))
        if descriptor >= 0:
            os.close(descriptor)


_LIBC = ctypes.CDLL(None)


def _mapped(descriptor: int) -> int:
    """Map the file and return the address, or 0 on failure. Python's ``mmap`` objects each keep a descriptor."""
    map_file = _LIBC.mmap
    map_file.restype = ctypes.c_void_p
    address: int | None = map_file(
        None, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ, mmap.MAP_SHARED, descriptor, ctypes.c_long(0)
    )
    map_failed = ctypes.c_void_p(-1).value
    return 0 if address in (None, map_failed) else int(address or 0)


def is_lock_file(file: Path) -> bool:
    """Return whether ``file`` is missing or has the content that ``take`` writes: a number, nothing, or either torn.

    Power loss may leave zeros in place of a part of it. Raises: OSError.
    """
    try:
        content = read_file(file, _NUMBER_BYTES_MAX)
    except FileNotFoundError:
        return True
    except StrangeFileError:
        return False
    return not content.strip(b"\x000123456789\n")


def take_in_time(file: Path, timeout_s: float = TIMEOUT_S) -> int:
    """Lock ``file`` as ``take`` does, and wait for its holder. For locks that are held for milliseconds.

    Raises: as ``take``; StoreLockedError, which names the holder, after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return take(file)
        except StoreLockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)


def _opened(file: Path) -> tuple[int, bool]:
    """Return the file's descriptor, and whether the file was created now."""
    while True:
        try:
            return open_plain(file, os.O_RDWR), False
        except FileNotFoundError:
            # If another process makes the file before this call, open that one.
            with suppress(FileExistsError):
                return open_plain(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), True


def _lock(descriptor: int, file: Path, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        who = "this process" if holder == str(os.getpid()) else f"process {holder}"
        raise StoreLockedError(f"{file.parent} is open in {who}: close it there first") from error


def _note(descriptor: int, number: bytes) -> None:
    """Put ``number`` into the file, which has a number. In place: a file that is emptied and written takes a block."""
    if os.fstat(descriptor).st_size > len(number):
        os.ftruncate(descriptor, len(number))
    os.pwrite(descriptor, number, 0)


def _is_still_there(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(file))
    except FileNotFoundError:
        return False
